"""The study on the embedded world: every run, baseline, ablation and halting method over three training seeds.

    python -m studies.embedded [--recipe embedded/study] [--set seeds=[0]] [--page docs/results.md]

Hours on two cores; the same command resumes. It ends with the paper's claims held against the records, written with the
tables into the page.
"""

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from textwrap import fill

from benchmarks.common import write_between
from recurtrace.pipeline import Pipeline, PipelineRecipe
from recurtrace.report.contents import all_tables
from recurtrace.report.render import markdown_table
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace, read_workspace
from studies.claims import COLUMNS, check_loops, claims
from studies.depths import accuracy, bucket_table, depth_table, fate_table, mean_depth, stops_table

STATEFUL = ("where_thing", "where_left", "who_has")  # what is held is passed on from loop to loop
LOOKUPS = ("where_person",)  # one fact
HARD = 3  # facts
DEEPEST = 9  # that stage 1 trains


def claims_table(space: Workspace) -> Table:
    rows = [claim.row() for claim in claims(space, STATEFUL, LOOKUPS, HARD)]
    return Table("claims", "The paper's claims, here", COLUMNS, rows)


OWN_TABLES: dict[str, Callable[[Workspace], Table]] = {
    "claims": claims_table,
    "depths": depth_table,
    "facts": bucket_table,
    "fates": lambda space: fate_table(space, DEEPEST),
    "stops": stops_table,
}
TABLES = (
    *OWN_TABLES,
    *("main", "strengths", "matched", "checks", "memory", "ablation", "same-start", "blocks", "calibration", "budget"),
)


def page(space: Workspace, command: str, names: Sequence[str] = TABLES) -> str:
    """What goes between the markers of the results page."""
    tables = {table.name: table for table in all_tables(space)}
    tables |= {name: make(space) for name, make in OWN_TABLES.items() if name in names}
    parts = [f"Written by `{command}`."]
    for table in (tables[name] for name in names if not tables[name].missing):
        parts += [f"### {table.title}", markdown_table(table), *([table.note] if table.note else [])]
    return "\n\n".join(parts)


def headline(space: Workspace) -> str:
    """The README's sentences about the study."""
    memory, verdicts = space.evaluations["loop"], [claim.verdict for claim in claims(space, STATEFUL, LOOKUPS, HARD)]
    depths = [asked for asked in memory[0].manifest.loops if asked.isdecimal()]
    right = {asked: accuracy(memory, asked) for asked in [*depths, "adaptive"]}
    best = max(depths, key=lambda asked: mean(right[asked]))
    seeds = f"{len(memory)} training seeds" if len(memory) > 1 else "one training seed"
    shown = [f"{spread(right[asked], '.1f', 100)} % at {asked} loops" for asked in ("2", best, depths[-1])]
    others = [
        f"{name} {spread(accuracy(space.evaluations[run], '1'), '.1f', 100)} %"
        for run, name in (("full", "a full fine-tune of the same budget"), ("adapter", "a matched adapter"))
        if run in space.evaluations
    ]
    count, adaptive = len(memory[0].records), spread(right["adaptive"], ".1f", 100)
    return (
        f"On the embedded base, {seeds}, {count:,} test items: {', '.join(shown)}, adaptive depth {adaptive} % at "
        f"{spread(map(mean_depth, memory))}; {', '.join(others)}. One loop is the base, which was never asked such a "
        f"question ({spread(right['1'], '.1f', 100)} %). Ten claims of the paper: {verdicts.count('holds')} of them "
        f"found to hold there, {verdicts.count('does not hold')} found not to, {verdicts.count('cannot be told here')} "
        "open ([results](docs/results.md))."
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


HEADLINES = {"study": headline, "halting": halting_headline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="embedded/study")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="change a field of the recipe")
    parser.add_argument("--share", action="store_true", help="leave stages that another process is running to it")
    parser.add_argument("--records", type=Path, help="write of a study's folder what is there, and run nothing")
    parser.add_argument("--page", type=Path, help="page to write the tables into")
    parser.add_argument("--readme", type=Path, help="page to write the outcome into, in a few sentences")
    parser.add_argument("--headline", choices=HEADLINES, default="study", help="which sentences, and their markers")
    parser.add_argument("--tables", default=",".join(TABLES), help="those to write, by name")
    parser.add_argument("--mark", default="embedded study", help="markers on that page")
    arguments = parser.parse_args()
    command = f"python -m studies.embedded --recipe {arguments.recipe}"
    names = arguments.tables.split(",")
    if unknown := set(names) - set(TABLES):
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if names != list(TABLES):
        command += f" --tables {arguments.tables}"
    if arguments.records is None:
        recipe = PipelineRecipe.read_with(arguments.recipe, arguments.changes)
        check_loops(recipe.loops)
        Pipeline(recipe, lambda *said: print(": ".join(filter(None, said)), flush=True)).run(share=arguments.share)
        space = read_workspace(recipe.out)
    else:
        space, command = read_workspace(arguments.records), f"{command} --records FOLDER"
    command = " ".join([command, *(f"--set {shlex.quote(change)}" for change in arguments.changes)])
    text = page(space, command, names)
    print(text)
    if arguments.readme is not None:
        sentences = HEADLINES[arguments.headline](space)
        write_between(arguments.readme, arguments.headline, fill(sentences, 125, break_long_words=False))
    if arguments.page is not None:
        write_between(arguments.page, arguments.mark, text)


if __name__ == "__main__":
    main()
