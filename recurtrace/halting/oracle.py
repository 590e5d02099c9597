"""The oracle (Eq. 6): where a deeper loop would lower the loss, read from the measured losses of every depth.

Shapes: n examples · T depths, loss of depth t in column t-1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from recurtrace.errors import RecurTraceError


@dataclass(frozen=True)
class Oracle:
    """When a deeper loop is worth it. A head remembers which one it was trained on."""

    margin: float = 0.01  # δ, Eq. 6
    horizon: int | None = 16
    """Deepest loop looked at; None: the deepest measured."""
    depth_cost: float = 0.0

    @classmethod
    def of(cls, settings: Any) -> "Oracle":
        """From anything that has its fields, such as the settings of a head's training."""
        return cls(settings.margin, settings.horizon, settings.depth_cost)

    def labels(self, losses: np.ndarray) -> np.ndarray:
        """[n, T] who should go on."""
        return continue_labels(losses, self.margin, self.horizon, self.depth_cost)

    def depths(self, losses: np.ndarray) -> np.ndarray:
        """[n] where each should stop."""
        return target_depths(self.labels(losses))


def continue_labels(
    losses: np.ndarray, margin: float = 0.01, horizon: int | None = None, depth_cost: float = 0.0
) -> np.ndarray:
    """[n, T] whether some depth t' in t+1..horizon has a loss below L_t - δ, each extra loop charged `depth_cost`."""
    if not np.isfinite(losses).all():
        raise RecurTraceError("the sweep holds losses that are not finite; its model diverged at some depth.")
    depths = losses.shape[1]
    horizon = depths if horizon is None else min(horizon, depths)
    charged = losses[:, :horizon] + depth_cost * np.arange(horizon)  # only differences count
    labels = np.zeros(losses.shape, dtype=bool)
    best_later = np.minimum.accumulate(charged[:, :0:-1], axis=1)[:, ::-1]  # [n, horizon - 1]
    labels[:, : horizon - 1] = best_later < charged[:, :-1] - margin
    return labels


def target_depths(labels: np.ndarray) -> np.ndarray:
    """[n] the first depth from which no deeper one is worth it."""
    return labels.argmin(axis=1) + 1


def correctness_depths(correct: np.ndarray) -> np.ndarray:
    """[n] the first depth whose answer is right; 1 where none is."""
    return np.where(correct.any(axis=1), correct.argmax(axis=1), 0) + 1
