"""The command line: thin commands, heavy imports inside them, one sentence for what the user can mend."""

import typer

from recurtrace.cli.convert import convert
from recurtrace.cli.cost import cost
from recurtrace.cli.data import app as data
from recurtrace.cli.demo import demo
from recurtrace.cli.evaluate import evaluate
from recurtrace.cli.explore import explore
from recurtrace.cli.generate import generate
from recurtrace.cli.halting import calibrate, compare, distill, sweep
from recurtrace.cli.info import info
from recurtrace.cli.lm_eval import lm_eval
from recurtrace.cli.probe import probe
from recurtrace.cli.recipes import app as recipes
from recurtrace.cli.report import report
from recurtrace.cli.run import run
from recurtrace.cli.serve import serve
from recurtrace.cli.trace import trace
from recurtrace.cli.train import pretrain, train
from recurtrace.errors import told

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Turn a pretrained language model into a looped reasoner that picks its depth for each input.",
)
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}
PASSED_ON = {**EXTRA, "help_option_names": []}
ALL, MAKE, HALT, MEASURE, LOOK, USE, EMBEDDED = (
    "The whole study",
    "Make a looped model",
    "Choose when to stop",
    "Measure",
    "Look inside",
    "Use",
    "The embedded model",
)
app.command(rich_help_panel=ALL)(run)
app.add_typer(recipes, name="recipes", rich_help_panel=ALL)
app.add_typer(data, name="data", rich_help_panel=MAKE)
app.command(rich_help_panel=MAKE)(probe)
app.command(rich_help_panel=MAKE)(convert)
app.command(rich_help_panel=MAKE)(train)
app.command(rich_help_panel=HALT)(sweep)
app.command(rich_help_panel=HALT)(distill)
app.command(rich_help_panel=HALT)(calibrate)
app.command(rich_help_panel=HALT)(compare)
app.command(rich_help_panel=MEASURE)(evaluate)
app.command("lm-eval", context_settings=PASSED_ON, rich_help_panel=MEASURE)(lm_eval)
app.command(rich_help_panel=MEASURE)(cost)
app.command(rich_help_panel=MEASURE)(report)
app.command(rich_help_panel=USE)(generate)
app.command("serve", context_settings=EXTRA, rich_help_panel=USE)(serve)
app.command(rich_help_panel=LOOK)(explore)
app.command(rich_help_panel=LOOK)(trace)
app.command(rich_help_panel=USE)(info)
app.command(rich_help_panel=EMBEDDED)(demo)
app.command(rich_help_panel=EMBEDDED)(pretrain)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from recurtrace import __version__

        typer.echo(__version__)
        raise typer.Exit


@told()
def main() -> None:
    app()
