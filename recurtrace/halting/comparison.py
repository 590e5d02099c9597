"""Every way to choose a depth, on the same items: calibrated on one sweep, measured on another.

Shapes: n examples · T depths.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from recurtrace.errors import RecurTraceError
from recurtrace.halting.calibrate import OperatingPoint, Selector, best_fixed, calibrate
from recurtrace.halting.methods import METHODS, Method, fixed_depth
from recurtrace.halting.oracle import Oracle, correctness_depths
from recurtrace.halting.policies import at_depths, signal_values, stop_depths
from recurtrace.halting.sweep_files import Sweep
from recurtrace.model.heads import Head


@dataclass(frozen=True)
class Result:
    """A method on the test items."""

    method: Method
    depths: np.ndarray
    """[n] the depth of every item."""
    correct: np.ndarray
    """[n] whether it was right there."""
    nll: np.ndarray
    """[n] its loss there."""
    threshold: float | None
    floor: int

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def mean_depth(self) -> float:
        return float(self.depths.mean())


def compare(
    heldout: Sweep,
    test: Sweep,
    heads: Mapping[str | None, Head],
    oracle: Oracle | None = None,
    select: Selector = "nll",
    every_threshold: bool = False,
    floor: int | None = None,
    max_depth: int | None = None,
) -> list[Result]:
    """All methods whose head is there, with thresholds and floors from `heldout`; ceilings come last.

    `every_threshold` takes no method's own: those of ACT and PonderNet are chosen on held-out items too. `floor` is for
    the methods without one of their own, instead of the best fixed depth; `max_depth` is the budget T_max of all.
    """
    _refuse_other_model(heldout, test)
    results = [_at(fixed_depth(t), test, np.full(len(test), t), None, t) for t in test.depths]
    for method in (*METHODS, *_further(heads, {item.task for item in test.items})):
        if method.signal != "head" or _fits(heads.get(method.head), method):
            head = heads[method.head] if method.signal == "head" else None
            chosen = replace(method, threshold=None) if every_threshold else method
            chosen = replace(chosen, floor=floor if method.floor is None else method.floor)
            point = operating_point(chosen, heldout, head, select, max_depth)
            values = signal_values(test, method.signal, head)
            depths = stop_depths(values, method.signal, point.threshold, point.min_depth, point.max_depth)
            results.append(_at(method, test, depths, point.threshold, point.min_depth))
    return results + ceilings(test, oracle or Oracle())


def _fits(head: Head | None, method: Method) -> bool:
    """A head is a method's only if it was trained as the method says."""
    return head is not None and head.settings.objective == method.objective


def _further(heads: Mapping[str | None, Head], tasks: set[str]) -> list[Method]:
    """Heads under names of their own, such as another strength of a penalty; not those trained for other tasks."""
    known = {method.head for method in METHODS if method.signal == "head"}
    like = {method.objective: method for method in reversed(METHODS) if method.signal == "head"}
    further = [
        (name, head.settings.objective)
        for name, head in heads.items()
        if name is not None and name not in known and not (head.tasks and tasks - set(head.tasks))
    ]
    return [
        replace(like[objective], name=name, head=name, title=f"{like[objective].title}: {name}", ours=True)
        for name, objective in further
    ]


def operating_point(
    method: Method, heldout: Sweep, head: Head | None, select: Selector = "nll", max_depth: int | None = None
) -> OperatingPoint:
    """Threshold and floor of a method: its own where it has them, the rest from held-out data."""
    budget = min(max_depth or len(heldout.depths), len(heldout.depths))
    if method.threshold is not None:
        floor = best_fixed(heldout["loss"]) if method.floor is None else method.floor
        return OperatingPoint(method.threshold, floor, budget, np.nan, np.nan, np.nan)
    values = signal_values(heldout, method.signal, head)
    return calibrate(
        heldout, values, method.signal, select=select, min_depth=method.floor, max_depth=budget, folds=0
    ).point


def ceilings(test: Sweep, oracle: Oracle) -> list[Result]:
    """What no rule can pass: every item at the first depth that is right, or where its measured loss says stop."""
    right = Method("ceiling-correct", "Correctness oracle", "oracle")
    lowest = Method("ceiling-loss", "Loss oracle", "oracle")
    return [
        _at(right, test, correctness_depths(test["correct"]), None, 1),
        _at(lowest, test, oracle.depths(test["loss"]), None, 1),
    ]


def _at(method: Method, test: Sweep, depths: np.ndarray, threshold: float | None, floor: int) -> Result:
    return Result(method, depths, at_depths(test["correct"], depths), at_depths(test["loss"], depths), threshold, floor)


def _refuse_other_model(heldout: Sweep, test: Sweep) -> None:
    for name in ("loop_fingerprint", "base_fingerprint", "depths"):
        if getattr(heldout.manifest, name) != getattr(test.manifest, name):
            raise RecurTraceError(
                f"the sweeps differ in their {name.replace('_', ' ')}; make both with one model at the same depths."
            )
    if heldout.split == "test":
        raise RecurTraceError(
            "the sweep passed as held-out is of test items, and thresholds are never fitted to them; pass one of "
            "held-out items."
        )
