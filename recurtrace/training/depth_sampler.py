"""The depth of a training step (appendix "Variable-Depth Training"): clamped log-normal Poisson.

A pure function of (seed, index of the forward pass): a resumed run draws what the unbroken one would have, and every
process draws the same without asking the others.
"""

import math
from dataclasses import dataclass

import numpy as np

from recurtrace.model import RecurTraceConfig


@dataclass(frozen=True)
class DepthSampler:
    seed: int
    mean: float = 4.0
    """Target mean before the clamp."""
    sigma: float = 0.5
    """Deviation in log space."""
    maximum: int = 8

    @classmethod
    def of(cls, config: RecurTraceConfig, seed: int) -> "DepthSampler":
        return cls(seed, config.loop_train_mean, config.loop_train_sigma, config.loop_train_max)

    def __call__(self, index: int) -> int:
        """z ~ N(log r̄ - σ²/2, σ), r ~ Poisson(e^z) + 1 with r̄ = mean - 1, clamped to [1, maximum]."""
        rng = np.random.default_rng((self.seed, index))
        z = rng.normal(math.log(self.mean - 1) - self.sigma**2 / 2, self.sigma)
        return int(min(rng.poisson(math.exp(z)) + 1, self.maximum))
