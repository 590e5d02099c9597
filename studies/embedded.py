"""The study on the embedded world: every run, baseline, ablation and halting method over three training seeds.

    python -m studies.embedded [--recipe embedded/study] [--set seeds=[0]] [--page docs/results.md]

Hours on two cores; the same command resumes. It ends with the paper's claims held against the records, written with the
tables into the page.
"""

import argparse
from pathlib import Path

from benchmarks.common import write_between
from recurtrace.pipeline import Pipeline, PipelineRecipe
from recurtrace.report.contents import all_tables
from recurtrace.report.render import markdown_table
from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace, read_workspace
from studies.claims import COLUMNS, claims

STATEFUL = ("where_thing", "where_left", "who_has")  # what is held is passed on from loop to loop
LOOKUPS = ("where_person",)  # one fact
HARD = 4  # facts
TABLES = ("main", "memory", "ablation", "calibration", "budget")


def claims_table(space: Workspace) -> Table:
    rows = [claim.row() for claim in claims(space, STATEFUL, LOOKUPS, HARD)]
    return Table("claims", "The paper's claims, here", COLUMNS, rows)


def page(space: Workspace, command: str) -> str:
    """What goes between the markers of the results page."""
    tables = {table.name: table for table in all_tables(space)}
    chosen = [claims_table(space), *(tables[name] for name in TABLES if not tables[name].missing)]
    parts = [f"Written by `{command}`."]
    for table in chosen:
        parts += [f"### {table.title}", markdown_table(table), *([table.note] if table.note else [])]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="embedded/study")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="change a field of the recipe")
    parser.add_argument("--page", type=Path, help="page to write the tables into")
    parser.add_argument("--mark", default="embedded study", help="markers on that page")
    arguments = parser.parse_args()
    recipe = PipelineRecipe.read_with(arguments.recipe, arguments.changes)
    Pipeline(recipe, lambda name, skipped: print(f"{name}: done before" if skipped else name, flush=True)).run()
    changed = "".join(f" --set {change}" for change in arguments.changes)
    text = page(read_workspace(recipe.out), f"python -m studies.embedded --recipe {arguments.recipe}{changed}")
    print(text)
    if arguments.page is not None:
        write_between(arguments.page, arguments.mark, text)


if __name__ == "__main__":
    main()
