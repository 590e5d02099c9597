"""Cells of a table as they are shown, and as another route says they should be."""

import numpy as np


def cells(table):
    """{(row, column): text} of what is not a row's name."""
    return {
        (table.row_name(row), column): cell
        for row in table.rows
        for column, cell in list(zip(table.columns, row, strict=True))[table.key :]
    }


def text(values, form=".2f", times=1.0):
    values = np.array([value for value in values if value is not None], dtype=float) * times
    shown = f"{values.mean():{form}}"
    zero = shown.replace("-", "+" if form[0] == "+" else "") if not shown.strip("+-.0") else shown
    return f"{zero} ± {values.std(ddof=1):{form.removeprefix('+')}}" if len(values) > 1 else zero


def check(table, expected):
    """The table has these cells, and no others."""
    wanted = {(row, column): cell for row, columns in expected.items() for column, cell in columns.items()}
    found = cells(table)
    assert {place: (found.get(place), cell) for place, cell in wanted.items() if found.get(place) != cell} == {}
    assert found.keys() == wanted.keys()
