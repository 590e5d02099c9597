"""Thresholds and floors, chosen on held-out sweeps and never on test items.

The floor is the fixed depth with the lowest held-out loss. Among thresholds, the smallest mean depth that loses no
likelihood against the best that any threshold reaches: against the floor alone, stopping everything there would do.
Or, where loops are rationed, the largest mean depth within the ration.

Shapes: n examples · T depths.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from recurtrace.errors import RecurTraceError
from recurtrace.halting.policies import at_depths, stop_depths
from recurtrace.halting.signals import SIGNALS
from recurtrace.halting.sweep_files import Sweep

Selector = Literal["nll", "accuracy"]
CANDIDATES = 200


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, and what it gave on the examples it was measured on."""

    threshold: float
    min_depth: int
    max_depth: int
    mean_depth: float
    nll: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    signal: str
    select: Selector
    point: OperatingPoint
    fixed: dict[int, dict[str, float]]
    """Held-out NLL and accuracy of every fixed depth."""
    folds: list[dict[str, float]]
    """Each fold at the threshold that the others chose: its gain in accuracy and likelihood over the floor."""
    examples: int
    mean_loops: float | None = None
    """The ration that chose the threshold, instead of `select`."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(
    sweep: Sweep,
    values: np.ndarray,
    signal: str,
    *,
    select: Selector = "nll",
    min_depth: int | None = None,
    max_depth: int | None = None,
    tolerance: float = 0.0,
    mean_loops: float | None = None,
    folds: int = 8,
) -> Calibration:
    """Choose floor (unless given) and threshold for a signal [n, T] measured along a held-out sweep.

    `mean_loops` is a ration: the threshold that spends it, with a floor of 1 unless another is given.
    """
    if sweep.split in ("test", "train"):
        raise RecurTraceError(
            f"this is a sweep of {sweep.split} items, but thresholds are chosen on held-out ones; sweep with "
            "--split heldout."
        )
    sweep.require_every_depth()
    loss, correct = sweep["loss"], sweep["correct"]
    if not np.isfinite(loss).all():
        raise RecurTraceError("the sweep holds losses that are not finite; its model diverged at some depth.")
    max_depth = min(max_depth or loss.shape[1], loss.shape[1])
    if min_depth is None and mean_loops is not None:
        min_depth = 1
    floor = best_fixed(loss[:, :max_depth]) if min_depth is None else min_depth
    if not 1 <= floor <= max_depth:
        raise RecurTraceError(f"the floor must lie between 1 and the budget of {max_depth}, got {floor}.")

    def chosen(rows: np.ndarray) -> OperatingPoint:
        tried = None if mean_loops is None else between(values[rows][:, floor - 1 : max_depth - 1], signal)
        points = operating_points(values[rows], loss[rows], correct[rows], signal, floor, max_depth, tried)
        return best_point(points, select, tolerance) if mean_loops is None else rationed(points, mean_loops)

    everything = np.arange(len(sweep))
    fold_of = sweep.folds(folds)
    tried = []
    for fold in np.unique(fold_of) if folds > 1 and len(np.unique(fold_of)) > 1 else ():
        inside, point = fold_of == fold, chosen(everything[fold_of != fold])
        depths = stop_depths(values[inside], signal, point.threshold, floor, max_depth)
        tried.append(
            {
                "threshold": point.threshold,
                "mean_depth": float(depths.mean()),
                "accuracy_gain": float((at_depths(correct[inside], depths) - 1.0 * correct[inside, floor - 1]).mean()),
                "nll_gain": float((loss[inside, floor - 1] - at_depths(loss[inside], depths)).mean()),
            }
        )
    fixed = {
        t: {"nll": float(loss[:, t - 1].mean()), "accuracy": float(correct[:, t - 1].mean())}
        for t in range(1, max_depth + 1)
    }
    return Calibration(signal, select, chosen(everything), fixed, tried, len(sweep), mean_loops)


def best_fixed(losses: np.ndarray) -> int:
    """The fixed depth with the lowest mean loss, the smallest of equals."""
    return int(losses.mean(axis=0).argmin()) + 1


def operating_points(
    values: np.ndarray,
    loss: np.ndarray,
    correct: np.ndarray,
    signal: str,
    min_depth: int,
    max_depth: int,
    tried: list[float] | None = None,
) -> list[OperatingPoint]:
    """One for every threshold that is tried, by default those that could make a difference, by rising mean depth."""
    points = []
    for threshold in tried or thresholds(values[:, min_depth - 1 : max_depth - 1], signal):
        depths = stop_depths(values, signal, threshold, min_depth, max_depth)
        nll, accuracy = float(at_depths(loss, depths).mean()), float(at_depths(correct, depths).mean())
        points.append(OperatingPoint(threshold, min_depth, max_depth, float(depths.mean()), nll, accuracy))
    return sorted(points, key=lambda point: point.mean_depth)


def thresholds(values: np.ndarray, signal: str) -> list[float]:
    """Candidates: hundredths for probabilities, else between the quantiles of what occurs, below and above them all."""
    return [hundredth / 100 for hundredth in range(101)] if SIGNALS[signal].probability else between(values, signal)


def between(values: np.ndarray, signal: str) -> list[float]:
    """Thresholds between the quantiles of what occurs, below and above them all."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return [0.0]
    levels = np.unique(np.quantile(finite, np.linspace(0, 1, CANDIDATES)))
    tried = np.array([levels[0] - 1, *(levels[1:] + levels[:-1]) / 2, levels[-1] + 1], dtype=np.float64)
    return (np.clip(tried, 0, 1) if SIGNALS[signal].probability else tried).tolist()


def best_point(points: list[OperatingPoint], select: Selector, tolerance: float = 0.0) -> OperatingPoint:
    """The smallest mean depth within `tolerance` of the lowest NLL (or the highest accuracy)."""
    score = (lambda point: -point.nll) if select == "nll" else (lambda point: point.accuracy)
    best = max(map(score, points))
    return min((point for point in points if score(point) >= best - tolerance), key=lambda point: point.mean_depth)


def rationed(points: list[OperatingPoint], mean_loops: float) -> OperatingPoint:
    """The largest mean depth that is no larger than `mean_loops`."""
    least = min(point.mean_depth for point in points)
    if least > mean_loops:
        raise RecurTraceError(
            f"no threshold spends {mean_loops:g} loops or fewer, the least is {least:.2f}; give more loops, or a "
            "smaller floor."
        )
    return max((point for point in points if point.mean_depth <= mean_loops), key=lambda point: point.mean_depth)
