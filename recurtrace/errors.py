"""The one exception that speaks to the user, and what keeps its sentences short."""


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

    The command line prints it as one sentence and exits with 1; anything else is a bug and keeps its traceback.
    """
