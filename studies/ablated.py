"""Runs against the memory on the same items, with interval and test: each changed one, and rivals without loops."""

from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace
from studies.claims import Difference, difference, of_both, right
from studies.depths import in_order, title

DEPTHS = ("4", "8", "16")
NOT_COMPARED = ("loop", "base", "full", "adapter", "same-start-memory", "same-start-plain")
"""The memory itself, what has no loops, and what was trained for longer."""


def ablated_table(space: Workspace) -> Table:
    rows = []
    for run, found in in_order(space):
        if run in NOT_COMPARED:
            continue
        theirs, ours = of_both(found, space.evaluations["loop"])
        row = [title(run)]
        for asked in DEPTHS:
            row += _cells(difference(right(theirs, asked), right(ours, asked)))
        rows.append([*row, str(len(theirs))])
    columns = ["Run", *(column for asked in DEPTHS for column in (f"T={asked}, points", "95 %", "p")), "Seeds"]
    note = (
        "Accuracy less that of the full memory with the same training seed, paired by item. Intervals are bootstraps "
        "over items of the mean over seeds; exact McNemar p, seed by seed."
    )
    missing = "" if rows else "evaluations of changed runs"
    return Table("ablated", "Each change against the full memory", columns, rows, note, missing=missing)


def rivals_table(space: Workspace) -> Table:
    rows = []
    for run in (run for run in ("full", "adapter") if run in space.evaluations):
        ours, theirs = of_both(space.evaluations["loop"], space.evaluations[run])
        rows.append([title(run), *_cells(difference(right(ours, "adaptive"), right(theirs, "1"))), str(len(ours))])
    note = "Accuracy of the memory less that of the rival, paired by item; exact McNemar p, seed by seed."
    columns = ["Rival", "Points", "95 %", "p", "Seeds"]
    missing = "" if rows else "evaluations of the rivals"
    return Table("rivals", "Adaptive depth against the rivals", columns, rows, note, missing=missing)


def _cells(lead: Difference) -> list[str]:
    interval = f"[{lead.low:+.1f}, {lead.high:+.1f}]"
    return [spread(lead.points, "+.1f"), interval, ", ".join(f"{p:.2g}" for p in lead.p)]
