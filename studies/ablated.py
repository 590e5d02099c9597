"""Every changed run against the full memory on the same items: points, interval and test, at two depths."""

from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace
from studies.claims import difference, of_both, right
from studies.depths import TITLES

DEPTHS = ("4", "8")
NOT_CHANGED = ("loop", "base", "full", "adapter", "same-start-memory", "same-start-plain")
"""The memory itself, what has no loops, and what was trained for longer."""


def ablated_table(space: Workspace) -> Table:
    name, title = "ablated", "Each change against the full memory"
    changed = [run for run in (*TITLES, *sorted(space.evaluations.keys() - TITLES.keys())) if run not in NOT_CHANGED]
    rows = []
    for run in (run for run in changed if run in space.evaluations):
        theirs, ours = of_both(space.evaluations[run], space.evaluations["loop"])
        row = [TITLES.get(run, run)]
        for asked in DEPTHS:
            found = difference(right(theirs, asked), right(ours, asked))
            row += [spread(found.points, "+.1f"), f"[{found.low:+.1f}, {found.high:+.1f}]"]
            row.append(", ".join(f"{p:.2g}" for p in found.p))
        rows.append([*row, str(len(theirs))])
    columns = ["Run", *(column for asked in DEPTHS for column in (f"T={asked}, points", "95 %", "p")), "Seeds"]
    note = (
        "Accuracy less that of the full memory with the same training seed, paired by item. Intervals are bootstraps "
        "over items of the mean over seeds; exact McNemar p, seed by seed."
    )
    return Table(name, title, columns, rows, note, missing="" if rows else "evaluations of changed runs")
