"""The one exception that speaks to the user, how it is told, and what keeps its sentences short."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def brief(text: object, longest: int = 200) -> str:
    """What somebody else's error or a user's value says, on one line and not at length."""
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: one with half a surrogate pair cannot, and no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class RecurTraceError(ValueError):
    """Something the user can mend: the message names the value and the remedy.

    Commands print it, and what the system refuses, as one sentence and exit with 1 (`told`); anything else is a bug
    and keeps its traceback.
    """


@contextmanager
def told() -> Iterator[None]:
    """Tell the user's errors in one sentence and exit with 1: around a command, or as a decorator of its function."""
    try:
        yield
    except (RecurTraceError, OSError) as error:
        # An OSError of the system (no space, no permission) names its file; the others are transformers' own texts.
        from rich.console import Console

        Console(stderr=True).print("[red]error:[/red]", end=" ")
        print(error, file=sys.stderr)
        sys.exit(1)
