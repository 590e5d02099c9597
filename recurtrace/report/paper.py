"""The paper's published values beside ours: only at its own scales, and only where the same thing was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import yaml
from pydantic import TypeAdapter

from recurtrace.report.table import Table


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

    def cells(self) -> dict[tuple[str, str], str]:
        """By row and column, without the empty ones."""
        return {
            (row, column): value
            for row, values in self.rows.items()
            for column, value in zip(self.columns, values, strict=True)
            if value
        }


@cache
def published() -> list[Published]:
    text = files("recurtrace.report").joinpath("paper.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Published]).validate_python(yaml.load(text, Loader=yaml.BaseLoader))


def beside(table: Table, scales: Sequence[str], tasks: Sequence[str] = ()) -> Table:
    """The table with the paper's values at their places, if some of its `scales` were run, on the same tasks."""
    if not scales:
        return table
    blocks = [
        one
        for one in published()
        if one.table == table.name and one.scale in ("", *scales) and one.tasks in ([], list(tasks))
    ]
    values = {place: value for one in blocks for place, value in one.cells().items()}
    found = {
        (i, j): values[table.row_name(row), column]
        for i, row in enumerate(table.rows)
        for j, column in enumerate(table.columns)
        if (table.row_name(row), column) in values
    }
    return replace(table, beside=found)
