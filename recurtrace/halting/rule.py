"""The stopping rule (Algorithm 1): the first loop t ≥ T_min whose signal says stop, or else T_max.

Written once, for every place that stops a loop: a live model, a server, an evaluation, a sweep. No torch here.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Direction = Literal["below", "above"]


@dataclass(frozen=True)
class StoppingRule:
    threshold: float
    """τ: where the signal says stop."""
    min_depth: int = 1
    """Floor T_min."""
    max_depth: int = 16
    """Budget T_max."""
    stops: Direction = "below"
    """Stop once the signal is below the threshold (a probability of continuing), or not below it (a confidence)."""

    def asks(self, t: int) -> bool:
        """Whether the signal decides after loop `t`: below the floor and at the budget it is not read."""
        return self.min_depth <= t < self.max_depth

    def halts(self, t: int, values: Any) -> Any:
        """Who stops after loop `t`, from the signal of each: one answer for all, or one for each value.

        `values` may be an array or a tensor; the answer is of its kind.
        """
        if not self.asks(t):
            return t >= self.max_depth
        return values < self.threshold if self.stops == "below" else values >= self.threshold

    def depths(self, values: np.ndarray) -> np.ndarray:
        """[n] the depth of each row of a signal [n, T] that was measured after loops 1..T; none goes beyond T."""
        budget = min(self.max_depth, values.shape[1])
        halts = np.empty((len(values), budget), dtype=bool)
        for t in range(1, budget + 1):
            halts[:, t - 1] = self.halts(t, values[:, t - 1])
        halts[:, -1] = True
        return halts.argmax(axis=1) + 1
