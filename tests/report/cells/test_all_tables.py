"""No table is left out, and the paper's values stand where they belong."""

from recurtrace.report.paper import published
from tests.report.cells.expected import cells


def test_every_table_is_looked_at(study):
    """A table that is added needs its cells checked in this folder."""
    tables = {name.removesuffix("-0.6B").removesuffix("-1.7B") for name, one in study[0].items() if not one.missing}
    looked_at = {
        "scaling", "suites", "task-gains", "memory", "depths", "ablation", "blocks", "capacity", "same-start", "main",
        "histogram", "transition", "deepened", "thresholds", "difficulty", "reconciliation", "calibration", "checks",
        "strengths", "tasks", "model", "worked", "budget", "cost", "full-test", "matched",
    }  # fmt: skip
    assert tables == looked_at


def test_the_papers_values_stand_beside_every_cell_that_it_publishes(study):
    tables = study[0]
    shown = {}
    for name, table in tables.items():
        for (i, j), value in table.beside.items():
            shown[name.removesuffix("-1.7B"), table.row_name(table.rows[i]), table.columns[j]] = value
    run = ("0.6B", "1.7B")
    wanted = {}
    for block in (one for one in published() if one.scale in ("", "1.7B")):
        for (row, column), value in block.cells().items():
            if not any(other in row.split(" / ") for other in ("4B", "8B")):
                wanted[block.table, row, column] = value
    there = {
        place for name, table in tables.items() for place in ((name.removesuffix("-1.7B"), *c) for c in cells(table))
    }
    fewer = {place for place in wanted if place[0] == "ablation" and place[2] == "Δ NLL"}  # three tasks, not 14
    assert shown == {place: value for place, value in wanted.items() if place in there - fewer}
    unmatched = {place for place in wanted if place not in there}
    not_measured = {("tasks", task) for task in ("math", "arc_challenge", "hotpotqa")}
    not_measured |= {("ablation", run) for run in ("Loop-distance bias frozen", "Gates open at initialisation")}
    not_measured |= {("ablation", f"Memory window W = {w}") for w in (2, 5)}
    not_measured |= {("histogram", depth) for depth in map(str, range(2, 9))}
    not_measured |= {("strengths", f"{m} / {s}") for m in ("ACT", "PonderNet") for s in ("0.001", "0.1")}
    assert {place[:2] for place in unmatched} <= not_measured
    assert all(not table.beside for name, table in tables.items() if name.endswith("-0.6B") and "task" in name), run
