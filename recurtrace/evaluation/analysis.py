"""All that the paper says of adaptive depth, computed from two sweeps and the heads of one model, as one JSON file."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from recurtrace.evaluation.statistics import (
    by_seed,
    composition,
    deepened,
    depth_histogram,
    gap_closed,
    hard_easy_gap,
    head_calibration,
    paired_bootstrap,
    threshold_sweep,
    transitions,
)
from recurtrace.halting.calibrate import calibrate
from recurtrace.halting.comparison import Head, Result, compare
from recurtrace.halting.oracle import continue_labels
from recurtrace.halting.policies import at_depths, signal_values, stop_depths
from recurtrace.halting.sweep_files import Sweep

FOLDS = 8
TASK_DEPTHS = (1, 2, 4, 6, 8)


def analyse(
    heldout: Sweep, test: Sweep, heads: Mapping[str | None, Head], probe_depths: list[int], margin: float = 0.01
) -> dict[str, Any]:
    """The comparison of methods and, where the model has a head of its own, everything about that head."""
    seeds = evaluation_seeds(test)
    results = {result.method.name: result for result in compare(heldout, test, heads)}
    best = max((r for r in results.values() if r.method.signal == "fixed"), key=lambda r: r.accuracy)
    found: dict[str, Any] = {
        "model": test.manifest.get("model"),
        "data": test.manifest["data"],
        "items": len(test),
        "depths": len(test.depths),
        "seeds": len(np.unique(seeds)),
        "heldout_items": len(heldout),
        "best_fixed": best.method.name,
        "methods": [_row(result, best, seeds) for result in results.values()],
        "fixed": [{"depth": t, **_means(test, t)} for t in test.depths],
    }
    if None not in heads:
        return found
    own, labels = results["recurtrace"], continue_labels(test["loss"], margin)
    probs = signal_values(test, "head", heads[None])
    threshold = own.threshold or 0.0
    right_at_one = test["correct"][:, 0]
    change = transitions(best.correct, own.correct)
    floor = own.floor
    found |= {
        "threshold": threshold,
        "floor": floor,
        "transition": {**asdict(change), "net": change.net, "points": change.points, "p_value": change.p_value},
        "histogram": depth_histogram(own.depths),
        "head_calibration": [asdict(row) for row in head_calibration(probs, labels, probe_depths, threshold)],
        "deepened": _deepened(own, test, labels),
        "composition": asdict(
            composition(
                own.depths,
                right_at_one,
                [f"{item['task']} {item['bucket']}".strip() for item in test.items],
                np.array([item["answer_tokens"] for item in test.items]),
                floor,
            )
        ),
        "threshold_sweep": [asdict(row) for row in threshold_sweep(probs, test["correct"], seeds)],
        "gap_closed": gap_closed(best.accuracy, own.accuracy, results["ceiling-correct"].accuracy)
        if results["ceiling-correct"].accuracy > best.accuracy
        else None,
        "leave_one_out": _leave_one_out(probs, test, seeds, floor),
        "operating_points": _operating_points(heldout, test, heads[None], probs, own, seeds),
        "tasks": _tasks(heldout, test, heads),
    }
    return _known(found)


def _known(value: Any) -> Any:
    """The same with None for what cannot be said, such as the mean of no items: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _known(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_known(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def evaluation_seeds(test: Sweep) -> np.ndarray:
    """[n] the seed of each item; where there are none, eight stretches of the sweep's stratified order."""
    seeds = np.array([item["seed"] for item in test.items])
    return seeds if (seeds >= 0).all() else np.arange(len(test)) * FOLDS // len(test)


def _means(test: Sweep, t: int) -> dict[str, float]:
    return {"accuracy": float(test["correct"][:, t - 1].mean()), "nll": float(test["loss"][:, t - 1].mean())}


def _row(result: Result, best: Result, seeds: np.ndarray) -> dict[str, Any]:
    change = transitions(best.correct, result.correct)
    interval = paired_bootstrap(result.correct * 1.0 - best.correct, seeds)
    return {
        "name": result.method.name,
        "title": result.method.title,
        "ours": result.method.ours,
        "accuracy": result.accuracy,
        "correct": int(result.correct.sum()),
        "mean_depth": result.mean_depth,
        "nll": float(result.nll.mean()),
        "net": change.net,
        "p_value": change.p_value,
        "gain_low": interval.low,
        "gain_high": interval.high,
        "threshold": result.threshold,
        "floor": result.floor,
        "seed_accuracy": by_seed(result.correct, seeds),
    }


def _deepened(own: Result, test: Sweep, labels: np.ndarray) -> dict[str, Any]:
    found = deepened(own.depths, test["correct"], labels, own.floor)
    rates: dict[str, float | None] = {}
    for name in ("precision", "recall", "positive_base_rate", "flip_rate", "flip_base_rate"):
        try:
            rates[name] = getattr(found, name)
        except ZeroDivisionError:  # nothing went deeper, or nothing should have
            rates[name] = None
    return {**asdict(found), **rates}


def _leave_one_out(probs: np.ndarray, test: Sweep, seeds: np.ndarray, floor: int) -> dict[str, Any]:
    """Each evaluation seed at the threshold that the others would choose: does the gain hang on its own threshold?

    This looks at test items, and chooses nothing: the reported threshold is that of the held-out ones.
    """
    seeded = Sweep(
        {**test.manifest, "split": "check"},
        [{**item, "seed": int(seed)} for item, seed in zip(test.items, seeds, strict=True)],
        test.arrays,
    )
    folds = calibrate(seeded, probs, "head", "nll", floor, len(test.depths)).folds
    gains = [fold["accuracy_gain"] for fold in folds]
    return {"mean": float(np.mean(gains)), "low": min(gains), "high": max(gains), "folds": folds}


def _operating_points(
    heldout: Sweep, test: Sweep, head: Head, probs: np.ndarray, own: Result, seeds: np.ndarray
) -> list[dict[str, Any]]:
    """The calibrated point, and without a floor the one of best held-out accuracy, where depth is easier to see."""
    values = signal_values(heldout, "head", head)
    free = calibrate(heldout, values, "head", "accuracy", 1, len(test.depths), folds=0).point
    points = []
    for name, threshold, floor in (("main", own.threshold or 0.0, own.floor), ("difficulty", free.threshold, 1)):
        depths = stop_depths(probs, "head", threshold, floor)
        gap = hard_easy_gap(depths, test["correct"][:, 0])
        per_seed = [hard_easy_gap(depths[seeds == s], test["correct"][seeds == s, 0]) for s in np.unique(seeds)]
        hard = ~test["correct"][:, 0].astype(bool)
        points.append(
            {
                "name": name,
                "threshold": threshold,
                "floor": floor,
                "mean_depth": float(depths.mean()),
                "accuracy": float(at_depths(test["correct"], depths).mean()),
                "easy": gap.easy,
                "hard": gap.hard,
                "gap": gap.gap,
                "seeds": [{"easy": one.easy, "hard": one.hard, "gap": one.gap} for one in per_seed],
                "easy_histogram": depth_histogram(depths[~hard]),
                "hard_histogram": depth_histogram(depths[hard]),
            }
        )
    return points


def _tasks(heldout: Sweep, test: Sweep, heads: Mapping[str | None, Head]) -> list[dict[str, Any]]:
    """Each task by itself: the head of its name or else the model's, at the threshold of its own held-out items."""
    rows = []
    for task in sorted({item["task"] for item in test.items}):
        part = test.of_tasks([task])
        head = heads.get(task, heads[None])
        row: dict[str, Any] = {"task": task, "items": len(part), "own_head": task in heads}
        fixed = {t: float(part["correct"][:, t - 1].mean()) for t in TASK_DEPTHS if t <= len(part.depths)}
        row |= {
            "fixed": fixed[max(fixed)],
            "best": max(fixed.values()),
            "best_depth": max(fixed, key=lambda t: fixed[t]),
        }
        if any(item["task"] == task for item in heldout.items):
            own = heldout.of_tasks([task])
            budget = len(part.depths)
            point = calibrate(own, signal_values(own, "head", head), "head", "nll", 1, budget, folds=0).point
            depths = stop_depths(signal_values(part, "head", head), "head", point.threshold, 1)
            row |= {"adaptive": float(at_depths(part["correct"], depths).mean()), "mean_depth": float(depths.mean())}
        rows.append(row)
    return rows
