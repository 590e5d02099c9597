"""Depths as people write them: `4`, `adaptive`, `1,2,4,8`, `1-16,adaptive`. The one parser for commands and recipes."""

from collections.abc import Iterable, Sequence
from typing import Any

from recurtrace.errors import RecurTraceError

Depth = int | str
LONGEST_RANGE = 4096
LEAST_LIMIT = 64


def depth_limit(train_max: int, limit: int | None = None) -> int:
    """The deepest loop that may be asked for, by the largest depth of training: beyond it a number is rather a typing
    error."""
    return limit or max(8 * train_max, LEAST_LIMIT)


def format_depths(depths: Sequence[Depth]) -> str:
    """The shortest text that `parse_depths` reads back."""
    first = depths[0] if depths else None
    if isinstance(first, int) and len(depths) > 2 and list(depths) == list(range(first, first + len(depths))):
        return f"{depths[0]}-{depths[-1]}"
    return ",".join(map(str, depths))


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 100


def parse_depth(value: Any) -> Depth | None:
    """One depth: a whole number, "adaptive", or None for the model's own."""
    if value is None or value == "adaptive":
        return value
    found = parse_depths(str(value), words=("adaptive",))
    if len(found) != 1:
        raise RecurTraceError(f"one depth is needed, a whole number or adaptive, got {value!r}.")
    return found[0]


def parse_depths(value: Any, words: Sequence[str] = ()) -> list[Depth]:
    """Several depths, each once, in their order; `words` are the names that may stand among the numbers."""
    if isinstance(value, str):
        parts: list[Any] = [part.strip() for part in value.split(",")]
    else:
        parts = list(value) if isinstance(value, Iterable) else [value]
    found: list[Depth] = []
    for part in parts:
        if isinstance(part, int) and not isinstance(part, bool) and part > 0:
            found.append(part)
            continue
        first, dash, last = str(part).partition("-")
        if part in words:
            found.append(part)
        elif _is_number(first) and (_is_number(last) if dash else True) and 0 < int(first) <= int(last or first):
            if int(last or first) - int(first) >= LONGEST_RANGE:
                raise RecurTraceError(f"the range {part} has more than {LONGEST_RANGE:,} depths; name fewer.")
            found += range(int(first), int(last or first) + 1)
        else:
            named = f", {' and '.join(words)}" if words else ""
            raise RecurTraceError(
                f"depths are whole numbers from 1, ranges{named}, such as 1,2,4 or 1-16; got {part!r}."
            )
    return list(dict.fromkeys(found))
