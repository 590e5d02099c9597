"""Accuracy and loss of every run at every fixed depth it was evaluated at, over training seeds."""

from collections.abc import Sequence

from recurtrace.records import Evaluation
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

TITLES = {
    "base": "Base",
    "full": "Full fine-tune",
    "adapter": "Matched adapter",
    "loop": "Memory",
    "plain-loop": "Plain looping",
}
COLUMNS = ["Run", "Loops", "Accuracy, %", "Loss of the answer", "Seeds"]


def depth_table(space: Workspace) -> Table:
    """One row for each run and depth; items count alike, whatever their task."""
    rows = []
    for run in (*TITLES, *sorted(space.evaluations.keys() - TITLES.keys())):
        found = space.evaluations.get(run, [])
        depths = [asked for asked in found[0].manifest.loops if asked != "k"] if found else []
        for asked in depths:
            those = [one for one in found if asked in one.manifest.loops]
            loops = asked if asked != "adaptive" else f"adaptive, {spread(mean_depth(one) for one in those)}"
            right, loss = zip(*(_measures(one, asked) for one in those), strict=True)
            rows.append([TITLES.get(run, run), loops, spread(right, ".1f", 100), spread(loss), str(len(those))])
    items = {len(one.records) for found in space.evaluations.values() for one in found}
    note = f"{', '.join(map(str, sorted(items)))} test items."
    return Table("depths", "Every run at every depth", COLUMNS, rows, note)


def accuracy(runs: Sequence[Evaluation], asked: str) -> list[float]:
    """By training seed."""
    return [_measures(run, asked)[0] for run in runs if asked in run.manifest.loops]


def _measures(run: Evaluation, asked: str) -> tuple[float, float]:
    results = [record.at(asked) for record in run.records]
    return sum(one.correct for one in results) / len(results), sum(one.nll for one in results) / len(results)


def mean_depth(run: Evaluation) -> float:
    return sum(record.at("adaptive").depth for record in run.records) / len(run.records)


def bucket_table(space: Workspace) -> Table:
    """Accuracy by difficulty: the looped model at every depth, and the models without loops beside it."""
    memory = space.evaluations["loop"]
    asked = [loops for loops in memory[0].manifest.loops if loops not in ("1", "k")]
    others = [run for run in ("full", "adapter") if run in space.evaluations]
    rows = []
    for bucket in sorted({record.bucket for record in memory[0].records}, key=lambda name: int(name.split("=")[1])):
        cells = [spread((_right(one, loops, bucket) for one in memory), ".1f", 100) for loops in asked]
        cells += [spread((_right(one, "1", bucket) for one in space.evaluations[run]), ".1f", 100) for run in others]
        count = sum(record.bucket == bucket for record in memory[0].records)
        rows.append([bucket.split("=")[1], str(count), *cells])
    columns = ["Facts", "Items", *(f"T={loops}" if loops.isdecimal() else loops for loops in asked)]
    columns += [TITLES[run] for run in others]
    return Table("facts", "Accuracy in percent by the number of facts", columns, rows)


def _right(run: Evaluation, asked: str, bucket: str) -> float:
    found = [record.at(asked).correct for record in run.records if record.bucket == bucket]
    return sum(found) / len(found)
