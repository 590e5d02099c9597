"""`recurtrace run`: from a base to a report, by one recipe."""

from pathlib import Path
from typing import Annotated

import typer

from recurtrace.cli.train import Changes


def run(
    recipe: Annotated[Path, typer.Argument(help="What to run, a YAML file as in recipes/.")],
    changes: Changes = None,
) -> None:
    """Probe, train, sweep, distil, calibrate, compare, evaluate and report.

    The same command goes on after a kill, and does again only what a change of the recipe asks for.
    """
    from recurtrace.cli.summary import print_summary
    from recurtrace.pipeline import Pipeline, PipelineRecipe

    made = PipelineRecipe.read_with(recipe, changes or [])
    page = Pipeline(made).run()
    print_summary(made.out)
    typer.echo(f"The report: {page}")
