"""What a report contains, in its order: a row for each table and figure. Where runs are missing, a part says which.

Rows that are `over_scales` are made once of all studies, the others once for each study. `paper` names what a part is
in the paper; a part without it is an extension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from recurtrace.records import HeadAnalysis
from recurtrace.report import figures
from recurtrace.report.ablation_tables import ablation, blocks, capacity, depths, memory, same_start
from recurtrace.report.analysis_tables import MISSING, full_test, main_comparison, per_task, strengths, worked
from recurtrace.report.budget_table import budget
from recurtrace.report.head_tables import (
    calibration,
    checks,
    deepened,
    difficulty,
    histogram,
    matched,
    reconciliation,
    thresholds,
    transition,
)
from recurtrace.report.paper import beside, has_table
from recurtrace.report.run_tables import cost, model
from recurtrace.report.suite_tables import ScaleGain, scale_gains, scaling, suite_gains, task_gains
from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace

SEVERAL = "studies of several scales, each in a folder of its own inside the one that is reported on"


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    draw: Callable[[], Figure]
    missing: str = ""
    """What is not there yet; such a picture is empty and not drawn."""


@dataclass(frozen=True)
class Row:
    """One table or figure."""

    make: Callable[[Any], Table | Picture]
    """Of a study, or of all of them."""
    paper: str = ""
    """The tables and figures of the paper that it is."""
    over_scales: bool = False


@dataclass(frozen=True)
class Part:
    """A table or figure as it was made."""

    content: Table | Picture
    paper: str

    @property
    def is_table(self) -> bool:
        return isinstance(self.content, Table)


def picture(name: str, title: str, draw: Callable[[Any], Figure], of: Callable[[Any], Any], needs: str) -> Callable:
    """A figure of what `of` finds in a study, or in all of them; missing where that is nothing."""

    def make(space: Any) -> Picture:
        found = of(space)
        return Picture(name, title, partial(draw, found)) if found else Picture(name, title, Figure, missing=needs)

    return make


def heads(space: Workspace) -> list[HeadAnalysis]:
    return space.head_analyses


def with_lines(space: Workspace) -> figures.LoopPoints | None:
    return figures.LoopPoints(space.head_analyses, loopless(space)) if space.head_analyses else None


def several_scales(studies: Sequence[Workspace]) -> list[ScaleGain]:
    found = scale_gains(studies)
    return found if len(found) > 1 else []


def with_buckets(space: Workspace) -> list[HeadAnalysis]:
    return [analysis for analysis in space.head_analyses if analysis.buckets]


def loopless(space: Workspace) -> dict[str, list[float]]:
    """Accuracy of the models without loops that are compared with, by training seed; the base is one loop.

    A run that was evaluated on other items than the analyses are of is left out.
    """
    titles = {"full": "full fine-tune", "adapter": "matched adapter"}
    return {
        title: [mean(record.at("1").correct for record in one.records) for one in space.evaluations[run]]
        for run, title in titles.items()
        if run in space.evaluations and space.of_analysed_items(space.evaluations[run])
    }


CONTENTS: dict[str, Sequence[Row]] = {
    "Adaptive depth": (
        Row(picture("loops", "Accuracy against mean loops", figures.accuracy_by_loops, with_lines, MISSING),
            "Figure 1"),
        Row(picture("buckets", "Loops and accuracy by difficulty", figures.depth_by_difficulty, with_buckets,
                    f"{MISSING}, of items with a difficulty")),
        Row(worked),
        Row(main_comparison, "Table 2"),
        Row(per_task, "Table 3"),
    ),
    "Scales and suites": (
        Row(scaling, "Table S12", over_scales=True),
        Row(picture("scales", "Gains by scale", figures.gains_by_scale, several_scales, SEVERAL), "Figure 4",
            over_scales=True),
        Row(suite_gains, "Tables 4, S8 and S13", over_scales=True),
        Row(task_gains, "Table S14"),
    ),
    "What drives the gain": (
        Row(memory, "Table 5", over_scales=True),
        Row(depths),
        Row(ablation, "Table 6"),
        Row(capacity, "Appendix, parameter-matched control"),
        Row(same_start, "Appendix, same-start control"),
        Row(blocks, "Appendix, block selection"),
        Row(picture("probe", "Which layers to loop", figures.probe_curve, lambda space: space.probe,
                    "probe.json (recurtrace probe)"), "Appendix, block selection"),
    ),
    "The halting head": (
        Row(transition, "Table S6"),
        Row(histogram, "Table S5"),
        Row(deepened, "Appendix, deepened items"),
        Row(calibration, "Table S4"),
        Row(matched),
        Row(checks, "Appendix, leave one seed out"),
        Row(full_test, "Appendix, full test set"),
        Row(strengths, "Appendix, ACT and PonderNet"),
        Row(reconciliation, "Table S9"),
        Row(difficulty, "Table S10"),
        Row(picture("difficulty", "Loops on easy and hard items", figures.depth_and_difficulty, heads, MISSING),
            "Figure 3"),
        Row(thresholds, "Table S11"),
        Row(picture("threshold", "What the threshold trades", figures.threshold_curve, heads, MISSING), "Figure S1"),
    ),
    "Model, training and cost": (
        Row(model, "Tables 1 and S2"),
        Row(budget, "Table S1"),
        Row(cost, "Appendix, runtime"),
        Row(picture("cost", "Time and FLOPs at each depth", figures.loop_cost, lambda space: space.cost,
                    "cost.json (recurtrace cost)")),
    ),
}  # fmt: skip
ELSEWHERE = {
    "Figure 2": "the architecture, drawn in docs/architecture.md",
    "Table S3": "examples of the synthetic tasks, in docs/data.md",
    "Table S7": "benchmarks and their numbers of items, printed by `recurtrace data list`",
}
"""What the paper has and a report does not."""


PICTURES = ("loops", "buckets", "difficulty", "threshold", "scales", "probe", "cost")


def contents(studies: Sequence[Workspace]) -> dict[str, list[Part]]:
    """All sections with their parts, made; what no study has is there once, as missing.

    Where another study has it, it is missing only at a scale at which the paper has that very table.
    """
    return {title: [part for row in rows for part in _made(row, studies)] for title, rows in CONTENTS.items()}


def _made(row: Row, studies: Sequence[Workspace]) -> list[Part]:
    if row.over_scales:
        scales = [space.scale for space in studies if space.in_the_paper]
        return [Part(_beside(row.make(studies), scales, ()), row.paper)]
    made = [(space, row.make(space)) for space in studies]
    there = [(space, content) for space, content in made if not content.missing]
    parts = []
    for space, content in there:
        tasks = space.head_analyses[0].task_names if space.head_analyses else []
        shown = _beside(content, [space.scale] if space.in_the_paper else [], tasks)
        if len(studies) > 1:
            shown = replace(shown, name=f"{shown.name}-{space.scale}", title=f"{shown.title} ({space.scale})")
        parts.append(Part(shown, row.paper))
    parts += [
        Part(replace(content, title=f"{content.title} ({space.scale})"), row.paper)
        for space, content in made
        if there and content.missing and space.in_the_paper and has_table(content.name, space.scale)
    ]
    return parts or [Part(made[0][1], row.paper)]


def _beside(content: Table | Picture, scales: Sequence[str], tasks: Sequence[str]) -> Table | Picture:
    return beside(content, scales, tasks) if isinstance(content, Table) else content


def all_tables(*studies: Workspace) -> list[Table]:
    parts = [part.content for section in contents(studies).values() for part in section]
    return [content for content in parts if isinstance(content, Table)]
