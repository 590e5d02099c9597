"""A study: run its recipe, hold the paper's claims against its records, write its tables into the results page.

    python -m studies.study embedded --page docs/results.md --readme README.md

Hours; the same command resumes, and --share lets several processes take part. With --records the tables are written
from the records of an earlier run, a folder or an archive of `studies/archives`, and nothing is run.
"""

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import get_args

from benchmarks.common import between, write_between
from recurtrace.errors import RecurTraceError, told
from recurtrace.pipeline import Pipeline, PipelineRecipe
from recurtrace.report.contents import all_tables
from recurtrace.report.render import markdown_table
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace, read_workspace
from studies.ablated import ablated_table, rivals_table
from studies.claims import COLUMNS, Verdict, check_loops, claims
from studies.depths import accuracy, bucket_table, curve_table, depth_table, fate_table, mean_depth, stops_table
from studies.records import opened
from studies.worlds import World, world_of


def world(space: Workspace) -> World:
    found = world_of(record for run in space.evaluations.get("loop", []) for record in run.records)
    if found is None:
        raise RecurTraceError("studies/worlds.py does not describe the questions of this study; add them there.")
    return found


def claims_table(space: Workspace) -> Table:
    rows = [claim.row() for claim in claims(space, world(space))]
    return Table("claims", "The paper's claims, here", COLUMNS, rows)


OWN_TABLES: dict[str, Callable[[Workspace], Table]] = {
    "claims": claims_table,
    "depths": depth_table,
    "curves": curve_table,
    "buckets": bucket_table,
    "fates": lambda space: fate_table(space, world(space).deepest),
    "stops": stops_table,
    "ablated": ablated_table,
    "rivals": rivals_table,
}


def page(space: Workspace, name: str, names: Sequence[str]) -> str:
    """What goes between the markers of the results page."""
    tables = {table.name: table for table in all_tables(space)}
    tables |= {own: make(space) for own, make in OWN_TABLES.items() if own in names}
    parts = [f"Written by `python -m studies.study {name}`."]
    for table in (tables[one] for one in names if not tables[one].missing):
        parts += [f"### {table.title}", markdown_table(table), *([table.note] if table.note else [])]
    return "\n\n".join(parts)


def headline(space: Workspace, base: str, frozen: bool = True) -> str:
    """The README's sentences about a study of memory against its rivals."""
    memory, verdicts = space.evaluations["loop"], [claim.verdict for claim in claims(space, world(space))]
    held, failed, unknown = (verdicts.count(verdict) for verdict in get_args(Verdict))
    depths = [asked for asked in memory[0].manifest.loops if asked.isdecimal()]
    right = {asked: accuracy(memory, asked) for asked in [*depths, "adaptive"]}
    best = max(depths, key=lambda asked: mean(right[asked]))
    seeds = f"{len(memory)} training seeds" if len(memory) > 1 else "one training seed"
    shown = [
        f"{spread(right[asked], '.1f', 100)} % at {asked} loops" for asked in dict.fromkeys(("2", best, depths[-1]))
    ]
    others = [
        f"{name} {spread(accuracy(space.evaluations[run], '1'), '.1f', 100)} %"
        for run, name in (("full", "a full fine-tune of the same budget"), ("adapter", "a matched adapter"))
        if run in space.evaluations
    ]
    if plain := space.evaluations.get("plain"):
        most = max((accuracy(plain, asked) for asked in depths), key=mean)
        others.insert(0, f"plain looping, trained alike, {spread(most, '.1f', 100)} % at most")
    count, adaptive = len(memory[0].records), spread(right["adaptive"], ".1f", 100)
    one = spread(right["1"], ".1f", 100)
    alone = f"One loop is the base, which was never asked such a question ({one} %)"
    if not frozen:
        unasked = spread(accuracy(space.evaluations["base"], "1"), ".1f", 100)
        alone = f"One loop has {one} %, the base, which was never asked such a question, {unasked} %"
    return (
        f"On {base}, {seeds}, {count:,} test items: {', '.join(shown)}, adaptive depth {adaptive} % at "
        f"{spread(map(mean_depth, memory))}; {', '.join(others)}. {alone}. Ten "
        f"claims of the paper: {held} of them found to hold there, {failed} found not to, {unknown} open "
        "([results](docs/results.md))."
    )


def halting_headline(space: Workspace) -> str:
    """The README's sentences about the head where loops are few."""
    analyses = space.head_analyses
    found = [analysis.matched for analysis in analyses if analysis.matched is not None]
    best = [analysis.method(analysis.best_fixed) for analysis in analyses]
    depths = ", ".join(dict.fromkeys(f"{row.mean_depth:.0f}" for row in best))
    own, fixed, most = (
        spread((getattr(row, name) for row in rows), ".1f", 100)
        for rows, name in ((found, "accuracy"), (found, "fixed_accuracy"), (best, "accuracy"))
    )
    return (
        f"{len(found)} training seeds, {analyses[0].items:,} test items: {own} % at "
        f"{spread(row.mean_depth for row in found)} loops in the mean, fixed depths of as many loops {fixed} % (exact "
        f"McNemar p = {', '.join(f'{row.p_value:.2g}' for row in found)}, seed by seed); the best fixed depth, "
        f"{depths} loops, {most} %."
    )


@dataclass(frozen=True)
class Study:
    recipe: str
    tables: Sequence[str]
    """Of the results page, between markers that are named after the study."""
    headline: Callable[[Workspace], str] | None = None
    """Sentences of the README, between the same markers."""
    changes: tuple[str, ...] = ()
    """Of the recipe's fields."""
    begins_as: str | None = None
    """The study whose finished folder it begins with a copy of, so that only what differs is made anew."""

    def pipeline(self, changes: Sequence[str] = ()) -> PipelineRecipe:
        return PipelineRecipe.read_with(self.recipe, [*self.changes, *changes])


WIDE_MARGIN = "distill={pooling: prompt_last, steps: 1000, margin: 1.0, probe_depths: [2, 3, 4, 5, 6, 7, 8]}"
"""Chosen on held-out items of two seeds of `halting`; an extension."""

STUDIES = {
    "embedded": Study(
        "embedded/study",
        (
            *("claims", "depths", "buckets", "fates", "stops", "main", "tasks", "full-test", "strengths", "matched"),
            *("checks", "memory", "calibration", "budget"),
        ),
        partial(headline, base="the embedded base"),
    ),
    "ablations": Study("embedded/ablations", ("ablated", "curves", "ablation", "same-start", "blocks")),
    "halting": Study("embedded/halting", ("depths", "stops", "main", "matched", "calibration")),
    "halting-wide": Study(
        "embedded/halting",
        ("stops", "matched"),
        halting_headline,
        ("out=runs/halting-wide", WIDE_MARGIN),
        begins_as="halting",
    ),
    "stories15m": Study(
        "stories15m/pipeline",
        ("claims", "depths", "buckets", "main", "matched", "calibration", "budget"),
    ),
    "nested": Study(
        "stories15m/nested",
        ("claims", "depths", "buckets", "stops", "main", "matched", "calibration"),
        partial(headline, base="stories15M with questions about things in things, looped layers trained", frozen=False),
    ),
    "nested-wide": Study(
        "stories15m/nested",
        ("matched",),
        changes=("out=runs/stories15m-nested-wide", WIDE_MARGIN, "ablations={}"),
        begins_as="nested",
    ),
    "smollm2": Study("smollm2/pipeline", ("depths", "rivals", "main")),
}


def run(study: Study, changes: Sequence[str], share: bool) -> Path:
    """Its folder, with everything in it."""
    recipe = study.pipeline(changes)
    if "claims" in study.tables:
        check_loops(recipe.loops)
    if study.begins_as is not None and not recipe.out.exists():
        _copy(STUDIES[study.begins_as].pipeline().out, recipe.out)
    Pipeline(recipe, lambda *said: print(": ".join(filter(None, said)), flush=True)).run(share=share)
    return recipe.out


def _copy(before: Path, out: Path) -> None:
    """What was made there counts as made here: stages are known by what they depend on, not by their place."""
    if not before.is_dir():
        raise RecurTraceError(f"{str(before)!r} is missing, which this study begins with; run that study first.")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.copytree(before, temporary, ignore=shutil.ignore_patterns("*.lock"))
    try:
        temporary.rename(out)
    except OSError:  # another process was faster
        shutil.rmtree(temporary)


def check_pages(name: str, results: Path | None, readme: Path | None) -> None:
    """Refuse pages without the study's markers before hours are spent."""
    for page in (results, readme if STUDIES[name].headline else None):
        if page is not None:
            between(page, f"{name} study")


def write(name: str, space: Workspace, results: Path | None, readme: Path | None) -> str:
    """The study's section; written into the pages that are given."""
    study = STUDIES[name]
    text = page(space, name, study.tables)
    if results is not None:
        write_between(results, f"{name} study", text)
    if readme is not None and study.headline is not None:
        write_between(readme, f"{name} study", fill(study.headline(space), 125, break_long_words=False))
    return text


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--set", dest="changes", action="append", default=[], help="change a field of the recipe")
    parser.add_argument("--share", action="store_true", help="leave stages that another process is running to it")
    parser.add_argument("--records", type=Path, help="folder or archive of a study that was run; nothing is run")
    parser.add_argument("--page", type=Path, help="page to write the tables into")
    parser.add_argument("--readme", type=Path, help="page to write the outcome into, in a few sentences")
    arguments = parser.parse_args()
    check_pages(arguments.study, arguments.page, arguments.readme)
    folder = arguments.records or run(STUDIES[arguments.study], arguments.changes, arguments.share)
    with opened(folder) as records:
        print(write(arguments.study, read_workspace(records), arguments.page, arguments.readme))


if __name__ == "__main__":
    main()
