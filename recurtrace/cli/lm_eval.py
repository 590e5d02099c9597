"""`recurtrace lm-eval`: lm-evaluation-harness's own command, with RecurTrace models in it."""

import sys

import typer

from recurtrace.errors import RecurTraceError


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness on RecurTrace models.

    Everything after `lm-eval` is the harness's own command line: `recurtrace lm-eval run --model recurtrace
    --model_args pretrained=DIR,loops=4 --tasks …`.
    """
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise RecurTraceError("lm-evaluation-harness is not installed; pip install 'recurtrace[eval]'.") from error
    import recurtrace.evaluation.lm_eval  # noqa: F401 (registers the model)

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()
