"""The paper's published values beside ours: only at its own scales, and only where the same thing was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import yaml
from pydantic import TypeAdapter

from recurtrace.report.table import Table
from recurtrace.report.workspace import PAPER_SCALES


@dataclass(frozen=True)
class Published:
    """Values of one table of the paper, by the rows and columns of a table of the report."""

    paper: str
    """Where they stand in the paper."""
    table: str
    """Name of the report's table."""
    columns: list[str]
    rows: dict[str, list[str]]
    """As printed; an empty cell is not published."""
    scale: str = ""
    """The scale they are of; empty where the rows say it, or where they hold for all."""
    tasks: list[str] = field(default_factory=list)
    """Tasks that must have been measured; empty for any."""
    over: dict[str, int] = field(default_factory=dict)
    """How many tasks its numbers are means of, by a cell that identifies a row, or by the name of a column."""
    note: str = ""
    """Values without a cell of their own, in a sentence; said where some of the others are shown."""

    def cells(self) -> dict[tuple[str, str], str]:
        """By row and column, without the empty ones."""
        return {
            (row, column): value
            for row, values in self.rows.items()
            for column, value in zip(self.columns, values, strict=True)
            if value
        }

    def compares(self, table: Table, row: Sequence[str], column: str, scales: Sequence[str]) -> bool:
        """Whether a cell is of a scale that was run, and a mean over as many tasks as the paper's."""
        named = row[: table.key]
        measured = {table.over.get(table.row_name(row)), table.over.get(column)}
        return all(part in scales for part in named if part in PAPER_SCALES) and all(
            self.over[name] in measured for name in (*named, column) if name in self.over
        )


@cache
def published() -> list[Published]:
    text = files("recurtrace.report").joinpath("paper.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Published]).validate_python(yaml.load(text, Loader=yaml.BaseLoader))


def beside(table: Table, scales: Sequence[str], tasks: Sequence[str] = ()) -> Table:
    """The table with the paper's values at their places, if some of its `scales` were run, on the same tasks."""
    if not scales:
        return table
    found: dict[tuple[int, int], str] = {}
    notes = [table.note]
    for one in published():
        if one.table != table.name or one.scale not in ("", *scales) or one.tasks not in ([], list(tasks)):
            continue
        values = one.cells()
        shown = {
            (i, j): values[table.row_name(row), column]
            for i, row in enumerate(table.rows)
            for j, column in enumerate(table.columns)
            if (table.row_name(row), column) in values and one.compares(table, row, column, scales)
        }
        found |= shown
        notes += [one.note] if shown else []
    return replace(table, beside=found, note=" ".join(filter(None, notes)))


def has_table(name: str, scale: str) -> bool:
    """Whether the paper publishes this table at just this scale."""
    return any(one.table == name and one.scale == scale for one in published())
