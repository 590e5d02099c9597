"""The paper's tables of halting: from what `recurtrace compare` wrote, one analysis for each training seed."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from recurtrace.records import Analysis, DeepenedItems, Gap, HeadAnalysis, MethodResult
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

SHOWN = (1, 2, 4, 8, 16)  # fixed depths in the comparison, beside the best
MISSING = "analysis/*.json of a model with a halting head (recurtrace compare --out)"


def _of_head(name: str, title: str) -> Callable[[Callable[[list[HeadAnalysis]], Table]], Callable[[Workspace], Table]]:
    """A table of the analyses of models with a head of their own, missing where there are none."""

    def decorate(make: Callable[[list[HeadAnalysis]], Table]) -> Callable[[Workspace], Table]:
        def table(space: Workspace) -> Table:
            found = space.head_analyses
            return _named(name, title, found, make(found)) if found else Table(name, title, missing=MISSING)

        return table

    return decorate


def _named(name: str, title: str, analyses: Sequence[Analysis], made: Table) -> Table:
    source = "; ".join(dict.fromkeys(analysis.command for analysis in analyses))
    return replace(made, name=name, title=title, source=source)


def _seeds(analyses: list[Analysis]) -> str:
    first = analyses[0]
    trained = f"{len(analyses)} training seeds" if len(analyses) > 1 else "One training seed"
    return f"{trained}, {first.items:,} items of {first.data}, {first.seeds} evaluation seeds."


def main_comparison(space: Workspace) -> Table:
    """Every way to choose a depth; a model without a head has rows here too."""
    name, title = "main", "Adaptive depth: all methods"
    found = space.analyses
    return _named(name, title, found, _main(found)) if found else Table(name, title, missing=MISSING)


def _main(analyses: list[Analysis]) -> Table:
    by_title: dict[str, list[MethodResult]] = {}
    for analysis in analyses:
        shown = {f"fixed-{depth}" for depth in SHOWN} | {analysis.best_fixed}
        for row in [row for row in analysis.methods if not row.name.startswith("fixed") or row.name in shown]:
            by_title.setdefault(row.title + ("*" if row.ours else ""), []).append(row)
    rows = []
    for title, found in by_title.items():
        low = statistics.mean(100 * row.gain_low for row in found)
        high = statistics.mean(100 * row.gain_high for row in found)
        rows.append(
            [
                title,
                spread((row.accuracy for row in found), scale=100),
                spread((row.correct for row in found), ".0f"),
                spread(row.mean_depth for row in found),
                spread((row.net for row in found), "+.0f"),
                f"[{low:+.1f}, {high:+.1f}]",
                ", ".join(f"{row.p_value:.2g}" for row in found),
                spread((row.nll for row in found), ".3f"),
            ]
        )
    best = ", ".join(sorted({analysis.best_fixed.replace("fixed-", "T=") for analysis in analyses}))
    note = (
        f"{_seeds(analyses)} Δ: additional right answers over the best fixed depth ({best}), with the 95 % "
        "bootstrap interval in points, clustered on evaluation seeds, and the exact McNemar p of each training seed. "
        "* extension (not in the paper). The oracles look at the answer, so they are ceilings and not methods."
    )
    columns = ["Method", "Accuracy, %", "Right", "Loops", "Δ", "95 %", "p", "NLL"]
    return Table("", "", columns, rows, note, strong=[i for i, row in enumerate(rows) if row[0] == "RecurTrace"])


@_of_head("worked", "Three items, and what would have been said at each depth")
def worked(analyses: list[HeadAnalysis]) -> Table:
    rows = [
        [one.kind, one.prompt or one.id, one.reference, said(one.answers, one.correct), str(one.depth)]
        for one in analyses[0].worked
    ]
    note = (
        "First training seed. easy: right where most items stop; deepened: wrong at the floor and right where the head "
        "stops; overthought: right where the head stops and wrong at the deepest loop. ✓ marks a right answer."
    )
    return Table("", "", ["Item", "Question", "Answer", "Said at depths", "Head stops at"], rows, note)


def said(answers: Sequence[str], correct: Sequence[bool]) -> str:
    """Answers along the depths, those that repeat together: `1: Barn · 2–4: Attic · 5–16: Garden ✓`."""
    runs: list[tuple[int, int, str, bool]] = []
    for depth, (answer, right) in enumerate(zip(answers, correct, strict=True), start=1):
        if runs and runs[-1][2] == answer:
            runs[-1] = (runs[-1][0], depth, answer, right)
        else:
            runs.append((depth, depth, answer, right))
    return " · ".join(
        f"{first if first == last else f'{first}–{last}'}: {answer or '(nothing)'}{' ✓' if right else ''}"
        for first, last, answer, right in runs
    )


@_of_head("tasks", "Adaptive depth task by task, without a floor")
def per_task(analyses: list[HeadAnalysis]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0].tasks):
        found = [analysis.tasks[i] for analysis in analyses]
        measures = [spread((row.fixed for row in found), ".1f", 100), spread((row.best for row in found), ".1f", 100)]
        tail = ["no held-out items", ""]
        if any(row.adaptive is not None for row in found):
            tail = [spread((row.adaptive for row in found), ".1f", 100), spread(row.mean_depth for row in found)]
        rows.append([first.task, str(first.items), *measures, *tail])
    note = (
        "Fixed: the deepest of 1, 2, 4, 6, 8 loops. Best: the best of them on these items. Thresholds: each task's own."
    )
    return Table("", "", ["Task", "n", "Fixed", "Best", "Adaptive", "Loops"], rows, note)


@_of_head("calibration", "The head against the oracle, depth by depth")
def calibration(analyses: list[HeadAnalysis]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0].head_calibration):
        found = [analysis.head_calibration[i] for analysis in analyses]
        rows.append(
            [
                str(first.depth),
                "yes" if first.supervised else "no",
                spread((row.positive_share for row in found), ".1f", 100),
                spread((row.balanced_accuracy for row in found), ".1f", 100, unknown="one class only"),
                spread((row.auroc for row in found), unknown="one class only"),
            ]
        )
    columns = ["Depth", "Supervised", "Should continue, %", "Balanced accuracy, %", "AUROC"]
    return Table("", "", columns, rows, "At the calibrated threshold, on the test items.")


@_of_head("histogram", "Where items stop")
def histogram(analyses: list[HeadAnalysis]) -> Table:
    depths = sorted({depth for analysis in analyses for depth in analysis.histogram})
    rows = []
    for depth in depths:
        counts = [analysis.histogram.get(depth, 0) for analysis in analyses]
        shares = [count / analysis.items for count, analysis in zip(counts, analyses, strict=True)]
        rows.append([str(depth), spread(counts, ".0f"), spread(shares, ".1f", 100)])
    return Table("", "", ["Depth", "Items", "%"], rows, _operating(analyses))


@_of_head("transition", "Right and wrong, adaptive against the best fixed depth")
def transition(analyses: list[HeadAnalysis]) -> Table:
    found = [analysis.transition for analysis in analyses]
    rows = [
        ["right", spread((one.both for one in found), ".0f"), spread((one.gained for one in found), ".0f")],
        ["wrong", spread((one.lost for one in found), ".0f"), spread((one.neither for one in found), ".0f")],
    ]
    points = spread((one.points for one in found), "+.1f")
    ps = ", ".join(f"{one.p_value:.2g}" for one in found)
    who = [analysis.deepened for analysis in analyses]
    note = f"{points} points; exact McNemar p = {ps}. {_deepened(who)}"
    return Table("", "", ["Adaptive", "fixed right", "fixed wrong"], rows, note)


def _deepened(found: list[DeepenedItems]) -> str:
    parts = [f"{spread((one.items for one in found), '.0f')} items go beyond the floor"]
    for pairs, says in (
        ([(one.precision, one.positive_base_rate) for one in found], "of them are oracle-positive"),
        ([(one.flip_rate, one.flip_base_rate) for one in found], "turn from wrong to right"),
    ):
        whole = [pair for pair in pairs if None not in pair]
        if whole:
            rate, chance = (spread(values, ".0f", 100) for values in zip(*whole, strict=True))
            parts.append(f"{rate} % {says} (by chance {chance} %)")
    return "; ".join(parts) + "."


@_of_head("reconciliation", "Two operating points")
def reconciliation(analyses: list[HeadAnalysis]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0].operating_points):
        found = [analysis.operating_points[i] for analysis in analyses]
        rows.append(
            [
                first.name,
                spread(one.threshold for one in found),
                ", ".join(sorted({str(one.floor) for one in found})),
                spread(one.mean_depth for one in found),
                spread((one.accuracy for one in found), ".1f", 100),
                spread((one.gap for one in found), "+.2f"),
            ]
        )
    note = "Main: calibrated on held-out likelihood. The other point has no floor and the best held-out accuracy."
    return Table("", "", ["Setting", "τ", "Floor", "Loops", "Accuracy, %", "Hard - easy"], rows, note)


@_of_head("difficulty", "Loops on easy and hard items, seed by seed")
def difficulty(analyses: list[HeadAnalysis]) -> Table:
    point = analyses[0].operating_points[-1]
    mean = Gap(point.easy, point.hard, point.gap)
    rows = [
        [name, spread([one.easy]), spread([one.hard]), spread([one.gap], "+.2f")]
        for name, one in [*((str(i + 1), seed) for i, seed in enumerate(point.seeds)), ("mean", mean)]
    ]
    note = "First training seed, at the point without a floor. Hard: wrong after one loop."
    return Table("", "", ["Seed", "Easy", "Hard", "Gap"], rows, note, strong=[len(rows) - 1])


@_of_head("thresholds", "The threshold without a floor")
def thresholds(analyses: list[HeadAnalysis]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0].threshold_sweep):
        found = [analysis.threshold_sweep[i] for analysis in analyses]
        rows.append(
            [
                f"{first.threshold:.2f}",
                spread(row.mean_depth for row in found),
                spread((row.loop_cut for row in found), ".1f", 100),
                spread((row.gap for row in found), "+.2f"),
                spread((row.gain for row in found), "+.0f"),
            ]
        )
    note = "Loop cut is 1 - mean/budget; Δ is the number of additional right answers over the full budget."
    return Table("", "", ["τ", "Loops", "Loop cut, %", "Hard - easy", "Δ"], rows, note)


def _operating(analyses: list[HeadAnalysis]) -> str:
    taus = ", ".join(f"{analysis.threshold:.2f}" for analysis in analyses)
    floors = ", ".join(str(analysis.floor) for analysis in analyses)
    return f"τ = {taus}; floor {floors}."
