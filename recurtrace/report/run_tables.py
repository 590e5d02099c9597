"""The paper's tables of runs: from evaluations, budgets and costs, averaged over training seeds.

A suite's number is the unweighted mean over its tasks, as in the paper, whatever their numbers of items.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recurtrace.data.benchmarks import TASKS
from recurtrace.records import Evaluation, ItemRecord
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace


@dataclass(frozen=True)
class Measures:
    """A run at one depth: means over tasks."""

    accuracy: float
    """In percent."""
    nll: float


def breadth(space: Workspace) -> Table:
    """RecurTrace at two loops against the fine-tuned baseline, suite by suite."""
    name, title = "breadth", "Two loops against the same-budget baseline"
    if missing := _missing(space, {"loop": "2", "full": "1"}):
        return Table(name, title, missing=missing)
    rows = []
    shared = _suites(space.evaluations["loop"]) & _suites(space.evaluations["full"])
    for suite in sorted(shared):
        ours, theirs = (
            _measures(space.evaluations[run], asked, _in_suite(suite)) for run, asked in (("loop", "2"), ("full", "1"))
        )
        tasks = {r.task for r in space.evaluations["loop"][0].records if suite in _suites_of(r)}
        rows.append([suite.replace("_", " "), str(len(tasks)), *_against(ours, theirs)])
    columns = ["Suite", "Tasks", "Baseline, %", "Two loops, %", "Δ points", "Δ NLL"]
    return Table(name, title, columns, rows, _seeds(space, "loop", "full"), _sources(space, "loop", "full"))


def memory(space: Workspace) -> Table:
    """Loop memory against plain looping, depth by depth."""
    name, title = "memory", "Loop memory against plain looping"
    if missing := _missing(space, {"loop": "1", "plain-loop": "1"}):
        return Table(name, title, missing=missing)
    rows = []
    runs = [space.evaluations[run] for run in ("loop", "plain-loop")]
    shared = [asked for asked in runs[0][0].manifest.loops if asked in runs[1][0].manifest.loops]
    for task in sorted({record.task for record in runs[0][0].records}):
        for asked in shared:
            ours, plain = (_measures(run, asked, _of_task(task)) for run in runs)
            rows.append([task, asked if asked != "k" else "T = k", *_against(ours, plain)])
    columns = ["Task", "Loops", "Plain, %", "Memory, %", "Δ points", "Δ NLL"]
    return Table(name, title, columns, rows, _seeds(space, "loop", "plain-loop"), _sources(space, "loop", "plain-loop"))


def ablation(space: Workspace) -> Table:
    """Every looped run at two loops."""
    name, title = "ablation", "Design ablation, at two loops"
    runs = {
        run: seeds
        for run, seeds in space.evaluations.items()
        if all(e.manifest.kind == "looped" and "2" in e.manifest.loops for e in seeds)
    }
    others = [run for run in runs if run not in ("loop", "plain-loop")]
    if "loop" not in runs or not others:
        return Table(
            name, title, missing="evaluations/loop and evaluations of its ablations, with --loops 2 among others"
        )
    whole = _measures(runs["loop"], "2")
    rows = [["loop", *_cells(whole), ""]]
    for run in others:
        own = _measures(runs[run], "2")
        rows.append([run, *_cells(own), spread(_differences(own, whole, "nll"), "+.4f")])
    columns = ["Run", "Accuracy, %", "NLL", "Δ NLL"]
    return Table(name, title, columns, rows, _seeds(space, *runs), _sources(space, *runs))


@dataclass(frozen=True)
class ScaleGain:
    """Two loops of a model against its fine-tuned base, seed by seed."""

    scale: str
    baseline: list[Measures]
    looped: list[Measures]

    @property
    def gains(self) -> list[float]:
        """In points."""
        return _differences(self.looped, self.baseline, "accuracy")


def scale_gains(space: Workspace) -> list[ScaleGain]:
    """Of every pair of runs <scale>-loop and <scale>-full."""
    scales = [run.removesuffix("-loop") for run in space.evaluations if run.endswith("-loop") and run != "plain-loop"]
    return [
        ScaleGain(
            scale,
            _measures(space.evaluations[f"{scale}-full"], "1"),
            _measures(space.evaluations[f"{scale}-loop"], "2"),
        )
        for scale in scales
        if not _missing(space, {f"{scale}-loop": "2", f"{scale}-full": "1"})
    ]


NO_SCALES = "evaluations/<scale>-loop and evaluations/<scale>-full for some scales"


def scaling(space: Workspace) -> Table:
    """Pairs of runs <scale>-loop and <scale>-full."""
    name, title = "scaling", "Gains by scale, at two loops"
    found = scale_gains(space)
    if not found:
        return Table(name, title, missing=NO_SCALES)
    rows = [[one.scale, *_against(one.looped, one.baseline)] for one in found]
    return Table(name, title, ["Scale", "Baseline, %", "Two loops, %", "Δ points", "Δ NLL"], rows)


def budget(space: Workspace) -> Table:
    name, title = "budget", "What training took"
    if not space.budgets:
        return Table(name, title, missing="runs/*/budget.json (recurtrace train)")
    rows = [
        [
            run,
            f"{found[0].trained_parameters:,}",
            f"{found[0].steps:,}",
            f"{found[0].tokens:,}",
            f"{statistics.mean(one.total_flops for one in found):.2e}",
            spread((one.seconds / 60 for one in found), ".1f"),
            f"{max(one.peak_bytes for one in found) / 2**30:.2f}",
        ]
        for run, found in space.budgets.items()
    ]
    columns = ["Run", "Parameters trained", "Steps", "Tokens", "FLOPs", "Minutes", "Peak GiB"]
    return Table(name, title, columns, rows, "FLOPs are analytical.", "recurtrace train, one recipe for each run")


def cost(space: Workspace) -> Table:
    name, title = "cost", "What depth costs"
    if space.cost is None:
        return Table(name, title, missing="cost.json (recurtrace cost --out)")
    rows = [
        [
            str(row.loops),
            str(row.layer_passes),
            f"{row.flops_ratio:.2f}×",
            f"{row.time_ratio:.2f}×",
            f"{row.kv_bytes_per_token:,}",
        ]
        for row in space.cost.depths
    ]
    columns = ["Loops", "Layer passes", "FLOPs", "Time", "K/V bytes per token"]
    return Table(name, title, columns, rows, space.cost.note, space.cost.command)


def _missing(space: Workspace, runs: dict[str, str]) -> str:
    """Runs that are not there, or were not evaluated at the depth that is needed."""
    absent = [
        f"evaluations/{run} with --loops {loops}"
        for run, loops in runs.items()
        if run not in space.evaluations or any(loops not in e.manifest.loops for e in space.evaluations[run])
    ]
    return f"{' and '.join(absent)} (recurtrace evaluate)" if absent else ""


def _sources(space: Workspace, *runs: str) -> str:
    """The command of each run's first seed; those of the others differ in their folders."""
    return "; ".join(space.evaluations[run][0].manifest.command or f"evaluations/{run}" for run in runs)


def _seeds(space: Workspace, *runs: str) -> str:
    counts = {len(space.evaluations[run]) for run in runs}
    return f"{min(counts)} training seeds." if min(counts) > 1 else ""


def _suites_of(record: ItemRecord) -> list[str]:
    suites = TASKS[record.task].suites if record.task in TASKS else ()
    return [name for name in suites if name != "training"] or ["other"]


def _in_suite(suite: str) -> Callable[[ItemRecord], bool]:
    return lambda record: suite in _suites_of(record)


def _of_task(task: str) -> Callable[[ItemRecord], bool]:
    return lambda record: record.task == task


def _suites(evaluations: Sequence[Evaluation]) -> set[str]:
    return {suite for record in evaluations[0].records for suite in _suites_of(record)}


def _measures(
    evaluations: Sequence[Evaluation], asked: str, of: Callable[[ItemRecord], bool] = lambda record: True
) -> list[Measures]:
    """One for each training seed, of the records that are wanted: the unweighted mean over their tasks."""
    found = []
    for evaluation in evaluations:
        by_task: dict[str, list[tuple[bool, float]]] = {}
        for record in filter(of, evaluation.records):
            by_task.setdefault(record.task, []).append((record.at(asked).correct, record.at(asked).nll))
        accuracy, nll = (
            statistics.mean(statistics.mean(result[part] for result in results) for results in by_task.values())
            for part in (0, 1)
        )
        found.append(Measures(100 * accuracy, nll))
    return found


def _cells(measures: Sequence[Measures]) -> list[str]:
    return [spread((one.accuracy for one in measures), ".1f"), spread((one.nll for one in measures), ".4f")]


def _differences(ours: Sequence[Measures], theirs: Sequence[Measures], field: str) -> list[float]:
    """Seed by seed where both have as many, else of the means."""
    one, other = ([getattr(measures, field) for measures in run] for run in (ours, theirs))
    if len(one) != len(other):
        return [statistics.mean(one) - statistics.mean(other)]
    return [a - b for a, b in zip(one, other, strict=True)]


def _against(ours: Sequence[Measures], theirs: Sequence[Measures]) -> list[str]:
    """Cells: both accuracies, and what is gained in accuracy and loss."""
    accuracies = [spread((one.accuracy for one in run), ".1f") for run in (theirs, ours)]
    gains = [spread(_differences(ours, theirs, "accuracy"), "+.1f"), spread(_differences(ours, theirs, "nll"), "+.3f")]
    return [*accuracies, *gains]
