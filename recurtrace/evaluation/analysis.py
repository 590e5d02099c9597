"""All that the paper says of adaptive depth, computed from two sweeps and the heads of one model."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Literal

import numpy as np

from recurtrace.evaluation.statistics import (
    as_many,
    by_seed,
    composition,
    deepened,
    depth_histogram,
    gap_closed,
    hard_easy_gap,
    head_calibration,
    mean_gap,
    paired_bootstrap,
    threshold_sweep,
    transitions,
)
from recurtrace.halting.calibrate import best_fixed, between, calibrate, operating_points, rationed
from recurtrace.halting.comparison import Result, compare
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.policies import at_depths, signal_values, stop_depths
from recurtrace.halting.sweep_files import Sweep
from recurtrace.model.heads import Head
from recurtrace.records import (
    Analysis,
    BucketResult,
    DeepenedItems,
    FixedResult,
    Fold,
    HeadAnalysis,
    LeaveOneOut,
    MatchedResult,
    MethodResult,
    OperatingPointResult,
    TaskResult,
    Transition,
    WorkedItem,
    items_hash,
    known,
)

TASK_DEPTHS = (1, 2, 4, 6, 8)
ILLUSTRATION = 0.10  # threshold without a floor at which the paper shows how depth follows difficulty


def analyse(
    heldout: Sweep,
    test: Sweep,
    heads: Mapping[str | None, Head],
    *,
    oracle: Oracle,
    supervised: list[int],
    every_threshold: bool = False,
    floor: int | None = None,
    max_depth: int | None = None,
) -> Analysis:
    """The comparison of methods and, where the model has a head of its own, everything about that head.

    `oracle` and the `supervised` depths are those the head was trained on; the rest is as in `compare`.
    """
    seeds = test.folds()
    compared = compare(heldout, test, heads, oracle, "nll", every_threshold, floor, max_depth)
    results = {result.method.name: result for result in compared}
    best = max((r for r in results.values() if r.method.signal == "fixed"), key=lambda r: r.accuracy)
    found = Analysis(
        model=test.manifest.model,
        data=test.manifest.data,
        items=len(test),
        depths=len(test.depths),
        seeds=len(np.unique(seeds)),
        heldout_items=len(heldout),
        best_fixed=best.method.name,
        methods=[_method(result, best, seeds, heads) for result in results.values()],
        fixed=[_fixed(test, t) for t in test.depths],
        items_sha256=items_hash(item.key for item in test.items),
        best_heldout=best_fixed(heldout["loss"]),
    )
    own = results.get("recurtrace")
    if own is None:
        return found
    labels = oracle.labels(test["loss"])
    probs, heldout_probs = (signal_values(sweep, "head", heads[None]) for sweep in (test, heldout))
    threshold = own.threshold or 0.0
    ceiling = results["ceiling-correct"].accuracy
    return HeadAnalysis(
        **vars(found),
        threshold=threshold,
        floor=own.floor,
        transition=_transition(best, own),
        histogram=depth_histogram(own.depths),
        head_calibration=head_calibration(probs, labels, supervised, threshold),
        deepened=_deepened(own, test, labels),
        composition=composition(
            own.depths,
            test["correct"][:, 0],
            [f"{item.task} {item.bucket}".strip() for item in test.items],
            np.array([item.answer_tokens for item in test.items]),
            own.floor,
        ),
        threshold_sweep=threshold_sweep(probs, test["correct"], seeds),
        gap_closed=gap_closed(best.accuracy, own.accuracy, ceiling),
        leave_one_out=_leave_one_out(probs, test, own.floor, max_depth),
        operating_points=_operating_points(heldout, heldout_probs, test, probs, own, max_depth),
        tasks=_tasks(heldout, test, heads),
        buckets=_buckets(own, test, oracle),
        matched=_matched(own.depths, threshold, test),
        rations=_rations(heldout, heldout_probs, test, probs, own.floor, max_depth),
        worked=_worked(own, test, probs),
        heldout_calibration=head_calibration(heldout_probs, oracle.labels(heldout["loss"]), supervised, threshold),
    )


def _fixed(test: Sweep, t: int) -> FixedResult:
    return FixedResult(t, float(test["correct"][:, t - 1].mean()), known(float(test["loss"][:, t - 1].mean())))


def _method(result: Result, best: Result, seeds: np.ndarray, heads: Mapping[str | None, Head]) -> MethodResult:
    change = transitions(best.correct, result.correct)
    interval = paired_bootstrap(result.correct * 1.0 - best.correct, seeds)
    return MethodResult(
        name=result.method.name,
        title=result.method.title,
        ours=result.method.ours,
        accuracy=result.accuracy,
        correct=int(result.correct.sum()),
        mean_depth=result.mean_depth,
        nll=known(float(result.nll.mean())),
        net=change.net,
        p_value=change.p_value,
        gain_low=interval.low,
        gain_high=interval.high,
        threshold=result.threshold,
        floor=result.floor,
        seed_accuracy=by_seed(result.correct, seeds),
        regularization=heads[result.method.head].regularization if result.method.signal == "head" else None,
    )


def _transition(best: Result, own: Result) -> Transition:
    change = transitions(best.correct, own.correct)
    return Transition(**asdict(change), net=change.net, points=change.points, p_value=change.p_value)


def _deepened(own: Result, test: Sweep, labels: np.ndarray) -> DeepenedItems:
    found = deepened(own.depths, test["correct"], labels, own.floor)
    return DeepenedItems(
        **asdict(found),
        precision=found.precision,
        recall=found.recall,
        positive_base_rate=found.positive_base_rate,
        flip_rate=found.flip_rate,
        flip_base_rate=found.flip_base_rate,
    )


def _leave_one_out(probs: np.ndarray, test: Sweep, floor: int, max_depth: int | None) -> LeaveOneOut:
    """Each evaluation seed at the threshold that the others would choose: does the gain hang on its own threshold?

    This looks at test items, and chooses nothing: the reported threshold is that of the held-out ones.
    """
    check = replace(test, manifest=replace(test.manifest, split="check"))
    folds = [Fold(**fold) for fold in calibrate(check, probs, "head", min_depth=floor, max_depth=max_depth).folds]
    gains = [fold.accuracy_gain for fold in folds]
    return LeaveOneOut(float(np.mean(gains)), min(gains), max(gains), folds)


def _operating_points(
    heldout: Sweep, heldout_probs: np.ndarray, test: Sweep, probs: np.ndarray, own: Result, budget: int | None
) -> list[OperatingPointResult]:
    """The calibrated point, the other selector's, and two without a floor, where depth is easier to see."""

    def by_accuracy(floor: int, max_depth: int | None = None) -> float:
        return calibrate(
            heldout, heldout_probs, "head", select="accuracy", min_depth=floor, max_depth=max_depth, folds=0
        ).point.threshold

    return [
        _operating_point("main", test, probs, own.threshold or 0.0, own.floor, budget),
        _operating_point("accuracy", test, probs, by_accuracy(own.floor, budget), own.floor, budget),
        _operating_point("illustration", test, probs, ILLUSTRATION, 1),
        _operating_point("difficulty", test, probs, by_accuracy(1), 1),
    ]


def _rations(
    heldout: Sweep, heldout_probs: np.ndarray, test: Sweep, probs: np.ndarray, floor: int, max_depth: int | None
) -> list[MatchedResult]:
    """The head where loops are rationed: thresholds that spend so many on held-out items, on the test items."""
    most = min(max_depth or len(test.depths), len(test.depths))
    tried = between(heldout_probs[:, floor - 1 : most - 1], "head")
    points = operating_points(heldout_probs, heldout["loss"], heldout["correct"], "head", floor, most, tried)
    rows = []
    for ration in range(floor + 1, most):
        if points[0].mean_depth > ration:  # a head that is sure beyond doubt
            continue
        threshold = rationed(points, ration).threshold
        depths = stop_depths(probs, "head", threshold, floor, max_depth)
        rows.append(replace(_matched(depths, threshold, test), ration=ration))
    return rows


def _matched(depths: np.ndarray, threshold: float, test: Sweep) -> MatchedResult:
    """Accuracy of the fixed depths is expected over all lots, which leave the same share of items at each depth."""
    right, own, lots = test["correct"] * 1.0, at_depths(test["correct"], depths), as_many(depths)
    fixed = sum((lots[0] == t).mean() * right[:, t - 1] for t in np.unique(lots[0]))
    interval = paired_bootstrap(own - fixed, test.folds())
    tests = [transitions(at_depths(test["correct"], drawn), own).p_value for drawn in lots]
    return MatchedResult(
        threshold=threshold,
        mean_depth=float(depths.mean()),
        accuracy=float(own.mean()),
        fixed_accuracy=float(fixed.mean()),
        way=gap_closed(float(fixed.mean()), float(own.mean()), float(right.max(axis=1).mean())),
        p_value=float(np.median(tests)),
        gain_low=interval.low,
        gain_high=interval.high,
    )


def _operating_point(
    name: Literal["main", "accuracy", "illustration", "difficulty"],
    test: Sweep,
    probs: np.ndarray,
    threshold: float,
    floor: int,
    budget: int | None = None,
) -> OperatingPointResult:
    depths = stop_depths(probs, "head", threshold, floor, budget)
    right, seeds = test["correct"][:, 0].astype(bool), test.folds()
    gap = mean_gap(depths, right, seeds)
    return OperatingPointResult(
        name=name,
        threshold=threshold,
        floor=floor,
        mean_depth=float(depths.mean()),
        accuracy=float(at_depths(test["correct"], depths).mean()),
        easy=gap.easy,
        hard=gap.hard,
        gap=gap.gap,
        seeds=[hard_easy_gap(depths[seeds == seed], right[seeds == seed]) for seed in np.unique(seeds)],
        easy_histogram=depth_histogram(depths[right]),
        hard_histogram=depth_histogram(depths[~right]),
    )


def difficulty(bucket: str) -> tuple[str, float]:
    """How buckets are ordered: `facts=10` comes after `facts=2`."""
    name, _, number = bucket.partition("=")
    return name, float(number) if number.replace(".", "", 1).isdigit() else 0.0


def _buckets(own: Result, test: Sweep, oracle: Oracle) -> list[BucketResult]:
    """Every difficulty by itself, over all tasks that have it."""
    of = np.array([item.bucket for item in test.items])
    wanted = oracle.depths(test["loss"])
    return [
        BucketResult(
            bucket=bucket,
            items=int((of == bucket).sum()),
            mean_depth=float(own.depths[of == bucket].mean()),
            accuracy=float(own.correct[of == bucket].mean()),
            fixed=[float(share) for share in test["correct"][of == bucket].mean(axis=0)],
            oracle_depth=float(wanted[of == bucket].mean()),
        )
        for bucket in sorted({bucket for bucket in of if bucket}, key=difficulty)
    ]


def _worked(own: Result, test: Sweep, probs: np.ndarray) -> list[WorkedItem]:
    """One item of each kind: the easiest of those where most stop, the hardest of the others; the first of equals."""
    right, correct = own.correct.astype(bool), test["correct"].astype(bool)
    kinds: dict[Literal["easy", "deepened", "overthought"], np.ndarray] = {
        "easy": right & (own.depths == own.floor) & correct[:, -1],
        "deepened": right & (own.depths > own.floor) & ~correct[:, own.floor - 1],
        "overthought": right & ~correct[:, -1],
    }
    found = []
    for kind, those in kinds.items():
        order = sorted(np.flatnonzero(those), key=lambda i: difficulty(test.items[i].bucket), reverse=kind != "easy")
        for i in order[:1]:
            item = test.items[i]
            found.append(
                WorkedItem(
                    kind=kind,
                    id=item.id,
                    task=item.task,
                    bucket=item.bucket,
                    prompt=item.prompt,
                    reference=item.reference,
                    answers=item.answers,
                    correct=correct[i].tolist(),
                    depth=int(own.depths[i]),
                    continue_probs=[float(f"{p:.4g}") for p in probs[i]],
                )
            )
    return found


def _tasks(heldout: Sweep, test: Sweep, heads: Mapping[str | None, Head]) -> list[TaskResult]:
    """Each task by itself: the head of its name or else the model's, at the threshold of its own held-out items."""
    rows = []
    for task in sorted({item.task for item in test.items}):
        part = test.of_tasks([task])
        head = heads.get(task, heads[None])
        fixed = {t: float(part["correct"][:, t - 1].mean()) for t in TASK_DEPTHS if t <= len(part.depths)}
        row = TaskResult(
            task=task,
            items=len(part),
            own_head=task in heads,
            fixed=fixed[max(fixed)],
            best=max(fixed.values()),
            best_depth=max(fixed, key=lambda t: fixed[t]),
        )
        if any(item.task == task for item in heldout.items):
            own = heldout.of_tasks([task])
            point = calibrate(own, signal_values(own, "head", head), "head", min_depth=1, folds=0).point
            depths = stop_depths(signal_values(part, "head", head), "head", point.threshold, 1)
            adaptive = float(at_depths(part["correct"], depths).mean())
            row = replace(row, adaptive=adaptive, mean_depth=float(depths.mean()))
        rows.append(row)
    return rows
