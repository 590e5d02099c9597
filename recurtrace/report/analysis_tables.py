"""The paper's tables of halting: from what `recurtrace compare` wrote, one analysis for each training seed."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from recurtrace.records import Analysis, HeadAnalysis, MethodResult
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

TASK_DEPTHS = (1, 2, 4, 6, 8)  # fixed depths that a task's own head is compared with
SHOWN = (1, 2, 4, 8, 16)  # fixed depths in the comparison, beside the best
MISSING = "analysis/*.json of a model with a halting head (recurtrace compare --out)"


def of_head(name: str, title: str) -> Callable[[Callable[[list[HeadAnalysis]], Table]], Callable[[Workspace], Table]]:
    """A table of the analyses of models with a head of their own, missing where there are none."""

    def decorate(make: Callable[[list[HeadAnalysis]], Table]) -> Callable[[Workspace], Table]:
        def table(space: Workspace) -> Table:
            found = space.head_analyses
            return named(name, title, found, make(found)) if found else Table(name, title, missing=MISSING)

        return table

    return decorate


def named(name: str, title: str, analyses: Sequence[Analysis], made: Table) -> Table:
    source = "; ".join(dict.fromkeys(analysis.command for analysis in analyses))
    return replace(made, name=name, title=title, source=source)


def median_seed(analyses: Sequence[HeadAnalysis]) -> HeadAnalysis:
    """The training seed of median adaptive accuracy, which the paper shows where a table is of one seed."""
    ordered = sorted(analyses, key=lambda analysis: analysis.method("recurtrace").accuracy)
    return ordered[(len(ordered) - 1) // 2]


def one_seed(analyses: Sequence[HeadAnalysis]) -> str:
    return "The training seed of median accuracy. " if len(analyses) > 1 else ""


def _seeds(analyses: list[Analysis]) -> str:
    first = analyses[0]
    trained = f"{len(analyses)} training seeds" if len(analyses) > 1 else "One training seed"
    return f"{trained}, {first.items:,} items of {first.data}, {first.seeds} evaluation seeds."


def main_comparison(space: Workspace) -> Table:
    """Every way to choose a depth; a model without a head has rows here too."""
    name, title = "main", "Adaptive depth: all methods"
    found = space.analyses
    return named(name, title, found, _main(found)) if found else Table(name, title, missing=MISSING)


def _main(analyses: list[Analysis]) -> Table:
    by_title: dict[str, list[MethodResult]] = {}
    shown = {f"fixed-{depth}" for depth in SHOWN} | {analysis.best_fixed for analysis in analyses}
    for analysis in analyses:
        for row in analysis.methods:
            further_strength = row.ours and row.regularization is not None  # they have a table of their own
            if not further_strength and (not row.name.startswith("fixed") or row.name in shown):
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
                f"{'≤ ' if len(found) > 1 else ''}{max(row.p_value for row in found):.2g}",
                spread((row.nll for row in found), ".3f"),
            ]
        )
    best = ", ".join(sorted({analysis.best_fixed.replace("fixed-", "T=") for analysis in analyses}))
    note = (
        f"{_seeds(analyses)} Δ: additional right answers over the best fixed depth ({best}), with the 95 % "
        "bootstrap interval in points, clustered on evaluation seeds, and the largest exact McNemar p of the seeds. "
        "* extension (not in the paper). The oracles look at the answer, so they are ceilings and not methods."
    )
    columns = ["Method", "Accuracy, %", "Right", "Loops", "Δ", "95 %", "p", "NLL"]
    return Table("", "", columns, rows, note, strong=[i for i, row in enumerate(rows) if row[0] == "RecurTrace"])


@of_head("worked", "Three items, and what would have been said at each depth")
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


def per_task(space: Workspace) -> Table:
    """Each task with its own head where the model has one of the task's name."""
    name, title = "tasks", "Adaptive depth task by task, without a floor"
    if not (found := space.task_analyses):
        needs = "task-analysis/*.json of a model with heads for single tasks (recurtrace compare --out)"
        return Table(name, title, missing=needs)
    return named(name, title, found, _per_task(found))


def _per_task(analyses: Sequence[HeadAnalysis]) -> Table:
    budget = max(depth for depth in TASK_DEPTHS if depth <= analyses[0].depths)
    rows = []
    for task in analyses[0].task_names:
        found = [row for analysis in analyses for row in analysis.tasks if row.task == task]
        cuts = [1 - row.mean_depth / budget for row in found if row.mean_depth is not None]
        rows.append(
            [
                task,
                f"{found[0].items}",
                "its own" if all(row.own_head for row in found) else "the model's",
                spread((row.fixed for row in found), ".1f", 100),
                spread((row.best for row in found), ".1f", 100),
                spread((row.adaptive for row in found), ".1f", 100, unknown="no held-out items"),
                spread((row.mean_depth for row in found), unknown=""),
                spread(cuts, ".0f", 100, unknown=""),
            ]
        )
    note = (
        "Fixed: the deepest of 1, 2, 4, 6, 8 loops. Best: the best of them on these items. Adaptive: the threshold of "
        "the task's own held-out items. Loop cut: against Fixed."
    )
    return Table("", "", ["Task", "n", "Head", "Fixed", "Best", "Adaptive", "Loops", "Loop cut, %"], rows, note)


def strengths(space: Workspace) -> Table:
    """ACT and PonderNet at several strengths of their penalty."""
    name, title = "strengths", "ACT and PonderNet at other strengths"
    by_strength: dict[tuple[str, float], list[MethodResult]] = {}
    for row in [row for analysis in space.analyses for row in analysis.methods if row.regularization is not None]:
        if not row.name.endswith("-floor"):
            by_strength.setdefault((row.title.partition(":")[0], row.regularization or 0.0), []).append(row)
    if len(by_strength) == len({method for method, _ in by_strength}):  # one strength of each
        needs = "ACT and PonderNet heads of other strengths (recurtrace distill --head NAME --set regularization=0.1)"
        return Table(name, title, missing=needs)
    rows = [
        [
            method,
            f"{strength:g}",
            spread(row.mean_depth for row in found),
            spread((row.accuracy for row in found), ".1f", 100),
        ]
        for (method, strength), found in sorted(by_strength.items())
    ]
    note = "Price of a loop (ACT), weight of the divergence from the prior (PonderNet). No floor."
    made = Table("", "", ["Method", "Strength", "Loops", "Accuracy, %"], rows, note, key=2)
    return named(name, title, space.analyses, made)


def full_test(space: Workspace) -> Table:
    """Whether the sampled items stand for all: the first seed on the whole test set."""
    name, title = "full-test", "Adaptive depth on the whole test set"
    found = space.full_test
    if found is None or not found.records or not {"2", "adaptive"} <= set(found.manifest.loops):
        return Table(name, title, missing="full-test/ (recurtrace evaluate --loops 2,adaptive --out)")
    records = found.records
    rows = []
    for asked, method in (("2", "Fixed depth, T=2"), ("adaptive", "RecurTrace")):
        right = statistics.fmean(record.at(asked).correct for record in records)
        loops = statistics.fmean(record.at(asked).depth for record in records)
        rows.append([method, f"{len(records):,}", f"{100 * right:.1f}", f"{loops:.2f}"])
    note = "One training seed, every test item of the tasks that methods are compared on."
    return Table(name, title, ["Method", "Items", "Accuracy, %", "Loops"], rows, note)
