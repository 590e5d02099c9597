"""A table, whatever it is made of."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_NUMBER = re.compile(r"$|[-+\[<]?\d|[-+\[<] ?\d|–$|\[[-+]|≤|none$|one class only$")


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    source: str = ""
    """The files and commands that made it."""
    missing: str = ""
    """What is not there yet; such a table has no rows."""
    strong: Sequence[int] = field(default_factory=list)
    """Rows to set apart."""
    key: int = 1
    """How many of the first columns say what a row is about."""
    over: Mapping[str, int] = field(default_factory=dict)
    """How many tasks numbers are means of, by the name of their row or column."""
    beside: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """The paper's own values, by row and column."""

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers; they are aligned to the right."""
        return [i >= self.key and all(_NUMBER.match(row[i]) for row in self.rows) for i, _ in enumerate(self.columns)]

    def row_name(self, row: Sequence[str]) -> str:
        return " / ".join(row[: self.key])


def spread(values: Iterable[float | None], form: str = ".2f", scale: float = 1, unknown: str = "–") -> str:
    """Mean over training seeds, and the standard deviation where there are several; values may be unknown."""
    listed = [scale * value for value in values if value is not None]
    if not listed:
        return unknown
    sign, digits = ("+", form[1:]) if form.startswith("+") else ("", form)
    deviation = f" ± {statistics.stdev(listed):{digits}}" if len(listed) > 1 else ""
    return f"{statistics.mean(listed):{sign}z{digits}}{deviation}"  # z: no -0.0
