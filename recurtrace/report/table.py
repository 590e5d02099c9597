"""A table, whatever it is made of."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


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


def spread(values: Iterable[float | None], form: str = ".2f", scale: float = 1, unknown: str = "–") -> str:
    """Mean over training seeds, and the standard deviation where there are several; values may be unknown."""
    listed = [scale * value for value in values if value is not None]
    if not listed:
        return unknown
    deviation = f" ± {statistics.stdev(listed):{form.removeprefix('+')}}" if len(listed) > 1 else ""
    return f"{statistics.mean(listed):{form}}{deviation}"
