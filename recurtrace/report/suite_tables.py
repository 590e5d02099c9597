"""The paper's tables of gains: two loops against the same-budget baseline, by scale, suite and task.

A suite's number is the unweighted mean over its tasks, as in the paper, whatever their numbers of items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from recurtrace.records import Measures
from recurtrace.report.measures import (
    BASELINE,
    COMPARED,
    LOOPED,
    absent,
    accuracy,
    baseline,
    differences,
    gain_interval,
    lacking,
    left_out,
    main_tasks,
    mean_over,
    nll,
    seeds,
    shared_tasks,
    sources,
    suite_of,
    suites,
)
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

NO_SCALES = "evaluations/loop with --loops 2 and evaluations/full with --loops 1 (recurtrace evaluate)"
GAINS = ["Baseline, %", "Two loops, %", "Δ points", "95 %", "Δ NLL"]


@dataclass(frozen=True)
class ScaleGain:
    """Two loops of a model against its fine-tuned base, seed by seed, over the main tasks."""

    scale: str
    tasks: list[str]
    baseline: list[Measures]
    looped: list[Measures]

    @property
    def gains(self) -> list[float]:
        """In points."""
        return differences(self.looped, self.baseline, accuracy)

    @property
    def nll_changes(self) -> list[float]:
        """In nats; negative is better."""
        return differences(self.looped, self.baseline, nll)


def scale_gains(studies: Sequence[Workspace]) -> list[ScaleGain]:
    found = []
    for space in _compared(studies):
        tasks = main_tasks(shared_tasks(*_pair(space)))
        fine_tuned, looped = (mean_over(space.evaluations[run], asked, tasks) for run, asked in (BASELINE, LOOPED))
        found.append(ScaleGain(space.scale, tasks, fine_tuned, looped))
    return found


def scaling(studies: Sequence[Workspace]) -> Table:
    """All main tasks at every scale."""
    name, title = "scaling", "Gains by scale, at two loops"
    if not (found := scale_gains(studies)):
        return Table(name, title, missing=NO_SCALES)
    rows = [
        [
            one.scale,
            str(len(one.tasks)),
            spread((m.accuracy for m in one.baseline), ".1f"),
            spread((m.accuracy for m in one.looped), ".1f"),
            spread(one.gains, "+.2f"),
            spread(one.nll_changes, "+.3f"),
        ]
        for one in found
    ]
    means = "Unweighted means over the tasks of the train-covered and classic suites; loss per answer token."
    note = _sentences(means, left_out(_compared(studies)), absent(studies, LOOPED, BASELINE))
    columns = ["Scale", "Tasks", "Baseline, %", "Two loops, %", "Δ points", "Δ NLL"]
    over = {one.scale: len(one.tasks) for one in found}
    return Table(name, title, columns, rows, note, _sources(studies), over=over)


def suite_gains(studies: Sequence[Workspace]) -> Table:
    """Suite by suite at every scale, with all main tasks together and the diagnostic ones after them."""
    name, title = "suites", f"Two loops against the {baseline(*_compared(studies))}, by suite"
    rows: list[list[str]] = []
    strong: list[int] = []
    over: dict[str, int] = {}
    for space in _compared(studies):
        for suite, tasks in suites(shared_tasks(*_pair(space))).items():
            strong += [len(rows)] if suite == "overall" else []
            over[f"{space.scale} / {suite}"] = len(tasks)
            rows.append([space.scale, suite, str(len(tasks)), *_gains(space, tasks)])
    if not rows:
        return Table(name, title, missing=NO_SCALES)
    note = _sentences(
        "Unweighted means over tasks, so that overall is the mean of the suites weighted by their numbers of tasks. "
        "95 %: of the gain in points over items, each paired with itself. Diagnostic suites are in no other number.",
        _seed_by_seed(studies),
        left_out(_compared(studies)),
        absent(studies, LOOPED, BASELINE),
    )
    columns = ["Scale", "Suite", "Tasks", *GAINS]
    return Table(name, title, columns, rows, note, _sources(studies), strong=strong, key=2, over=over)


def _seed_by_seed(studies: Sequence[Workspace]) -> str:
    """The overall gains of each training seed, where there are several."""
    found = {one.scale: one.gains for one in scale_gains(studies) if len(one.gains) > 1}
    said = [f"{scale} {', '.join(f'{gain:+.2f}' for gain in gains)}" for scale, gains in found.items()]
    return f"Overall gains seed by seed: {'; '.join(said)}." if said else ""


def task_gains(space: Workspace) -> Table:
    """Task by task."""
    name, title = "task-gains", f"Two loops against the {baseline(space)}, by task"
    if missing := lacking(space, LOOPED, BASELINE):
        return Table(name, title, missing=missing)
    space = space.paired(*COMPARED)
    tasks = sorted(shared_tasks(*_pair(space)), key=lambda task: (suite_of(task) != "train-covered", suite_of(task)))
    rows = [
        [task, suite_of(task), f"{len(space.evaluations['loop'][0].tasks[task]):,}", *_gains(space, [task])]
        for task in tasks
    ]
    note = f"{seeds(space, 'loop', 'full')} 95 %: of the gain in points over items, each paired with itself."
    return Table(name, title, ["Task", "Suite", "Items", *GAINS], rows, note, sources(space, "loop", "full"))


def _compared(studies: Sequence[Workspace]) -> list[Workspace]:
    return [space.paired(*COMPARED) for space in studies if not lacking(space, LOOPED, BASELINE)]


def _pair(space: Workspace) -> tuple:
    return space.evaluations["loop"], space.evaluations["full"]


def _gains(space: Workspace, tasks: Sequence[str]) -> list[str]:
    (ours, asked), (theirs, other) = ((space.evaluations[run], at) for run, at in (LOOPED, BASELINE))
    looped, fine_tuned = mean_over(ours, asked, tasks), mean_over(theirs, other, tasks)
    return [
        spread((one.accuracy for one in fine_tuned), ".1f"),
        spread((one.accuracy for one in looped), ".1f"),
        spread(differences(looped, fine_tuned, accuracy), "+.1f"),
        gain_interval(ours, asked, theirs, other, tasks),
        spread(differences(looped, fine_tuned, nll), "+.3f"),
    ]


def _sentences(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _sources(studies: Sequence[Workspace]) -> str:
    return "; ".join(sources(space, "loop", "full") for space in _compared(studies))
