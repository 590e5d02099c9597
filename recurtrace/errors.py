"""The one exception that speaks to the user."""


class RecurTraceError(ValueError):
    """Something the user can mend: the message names the value and the remedy.

    The command line prints it as one sentence and exits with 1; anything else is a bug and keeps its traceback.
    """
