"""Accuracy and loss of every run at every fixed depth it was evaluated at, over training seeds."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from recurtrace.records import Evaluation
from recurtrace.report.ablation_tables import TITLES as ABLATIONS
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

TITLES = {
    "base": "Base",
    "full": "Full fine-tune",
    "adapter": "Matched adapter",
    "loop": "Memory",
    "plain-loop": "Plain looping",
    "plain": "Plain looping",
    "memory-block": "Memory, block trained",
    "plain-block": "Plain looping, block trained",
    **{run: title for run, title in ABLATIONS.items() if run != "loop"},
    "same-start-memory": "Same start, memory",
    "same-start-plain": "Same start, plain looping",
}
COLUMNS = ["Run", "Loops", "Accuracy, %", "Loss of the answer", "Seeds"]


def depth_table(space: Workspace) -> Table:
    """One row for each run and depth; items count alike, whatever their task."""
    rows = []
    for run, found in in_order(space):
        for asked in (asked for asked in found[0].manifest.loops if asked != "k"):
            those = [one for one in found if asked in one.manifest.loops]
            loops = asked if asked != "adaptive" else f"adaptive, {spread(mean_depth(one) for one in those)}"
            right, loss = zip(*(_measures(one, asked) for one in those), strict=True)
            rows.append([title(run), loops, spread(right, ".1f", 100), spread(loss), str(len(those))])
    return Table("depths", "Every run at every depth", COLUMNS, rows, _items(space))


def curve_table(space: Workspace) -> Table:
    """One row for each run, for studies of many runs."""
    asked = {loops for _, found in in_order(space) for loops in found[0].manifest.loops if loops.isdecimal()}
    depths = sorted(asked, key=int)
    rows = [
        [title(run), *(spread(accuracy(found, loops), ".1f", 100) for loops in depths), str(len(found))]
        for run, found in in_order(space)
    ]
    columns = ["Run", *(f"T={loops}" for loops in depths), "Seeds"]
    note = f"{_items(space)} They count alike, whatever their task."
    return Table("curves", "Accuracy in percent by depth", columns, rows, note)


def title(run: str) -> str:
    layers = run.removeprefix("block-")
    return TITLES.get(run, run if layers == run else f"Layers {layers.replace('-', '–')}")


def in_order(space: Workspace) -> list[tuple[str, list[Evaluation]]]:
    """Every run and its evaluations, the known ones first."""
    names = (*TITLES, *sorted(space.evaluations.keys() - TITLES.keys()))
    return [(run, space.evaluations[run]) for run in names if space.evaluations.get(run)]


def _items(space: Workspace) -> str:
    items = {len(one.records) for found in space.evaluations.values() for one in found}
    return f"{', '.join(map(str, sorted(items)))} test items."


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
    counted = _counted(record.bucket for record in memory[0].records)
    columns = [
        counted.removeprefix("number of ").capitalize(),
        "Items",
        *(f"T={loops}" if loops.isdecimal() else loops for loops in asked),
    ]
    columns += [TITLES[run] for run in others]
    return Table("buckets", f"Accuracy in percent by the {counted}", columns, rows)


def _counted(buckets: Iterable[str]) -> str:
    """What the items' buckets count: `facts=3`, `task=12`."""
    names = ", ".join(sorted({bucket.rpartition("=")[0] for bucket in buckets})) or "bucket"
    return "number of facts" if names == "facts" else names


def stops_table(space: Workspace) -> Table:
    """Where the head stops by difficulty, and what fixed depths would have given."""
    analyses = [analysis for analysis in space.head_analyses if analysis.buckets]
    if not analyses:
        return Table("stops", "", missing="analysis/*.json (recurtrace compare --out)")
    depths = range(2, min(7, analyses[0].depths) + 1)
    rows = []
    for buckets in zip(*(analysis.buckets for analysis in analyses), strict=True):
        cells = [spread((one.fixed[t - 1] for one in buckets), ".1f", 100) for t in depths]
        own = [spread(one.mean_depth for one in buckets), spread((one.accuracy for one in buckets), ".1f", 100)]
        rows.append([buckets[0].bucket.rpartition("=")[2], str(buckets[0].items), *own, *cells])
    counted = _counted(one.bucket for one in analyses[0].buckets)
    columns = [
        counted.removeprefix("number of ").capitalize(),
        "Items",
        "Loops",
        "Accuracy, %",
        *(f"T={t}" for t in depths),
    ]
    return Table("stops", f"Where the head stops, by the {counted}", columns, rows)


FATES = ("right at every depth", "wrong first, then right to the end", "right, then wrong", "never right", "other")


def fate_table(space: Workspace, deepest: int) -> Table:
    """What becomes of an answer as depth grows: what a depth for each item could gain over one for all."""
    memory = space.evaluations["loop"]
    depths = [loops for loops in memory[0].manifest.loops if loops.isdecimal() and 1 < int(loops) <= deepest]
    shares: dict[str, list[float]] = {fate: [] for fate in FATES}
    for run in memory:
        fates = [_fate([record.at(loops).correct for loops in depths]) for record in run.records]
        for fate, found in shares.items():
            found.append(fates.count(fate) / len(fates))
    rows = [[fate, spread(found, ".1f", 100)] for fate, found in shares.items()]
    note = (
        f"Memory at {', '.join(depths)} loops. Where answers become right and stay so, loops beyond what an item needs "
        "cost time and no accuracy: a depth for each item can then save loops, and hardly gain answers."
    )
    return Table("fates", "What becomes of an answer as depth grows", ["", "Test items, %"], rows, note)


def _fate(right: Sequence[bool]) -> str:
    turns = sum(one != other for one, other in pairwise(right))
    if turns == 0:
        return FATES[0] if right[0] else FATES[3]
    return FATES[4] if turns > 1 else FATES[1] if right[-1] else FATES[2]


def _right(run: Evaluation, asked: str, bucket: str) -> float:
    found = [record.at(asked).correct for record in run.records if record.bucket == bucket]
    return sum(found) / len(found)
