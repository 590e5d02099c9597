"""What a pipeline found, in a few lines for the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from recurtrace.report.contents import loopless
from recurtrace.report.table import spread
from recurtrace.report.workspace import read_workspace

ROWS = ("fixed-1", "fixed-2", "fixed-4", "fixed-8", "fixed-16")


def print_summary(folder: Path) -> None:
    """Fixed depths, every method of the paper, and the models without loops; means over training seeds."""
    space = read_workspace(folder)
    if not space.analyses:
        return
    first = space.analyses[0]
    seeds = f", {len(space.analyses)} training seeds" if len(space.analyses) > 1 else ""
    table = Table("method", "accuracy, %", "mean loops", "right more than best fixed", "p")
    table.title = f"{first.items:,} test items{seeds}"
    for title, accuracies in loopless(space).items():
        table.add_row(f"{title} (no loops)", spread(accuracies, ".1f", 100), "1", "", "")
    table.add_section()
    for row in first.methods:
        if (row.name.startswith("fixed") and row.name not in (*ROWS, first.best_fixed)) or row.ours:
            continue
        found = [analysis.method(row.name) for analysis in space.analyses]
        best = " (best fixed)" if row.name == first.best_fixed else ""
        cells = [spread((one.accuracy for one in found), ".1f", 100), spread(one.mean_depth for one in found)]
        cells += [spread((one.net for one in found), "+.0f"), ", ".join(f"{one.p_value:.2g}" for one in found)]
        table.add_row(row.title + best, *cells, style="bold" if row.name == "recurtrace" else None)
    Console().print(table)
