"""`recurtrace run`: from a base to a report, by one recipe."""

import typer
from rich.console import Console

from recurtrace.cli.options import Changes
from recurtrace.cli.train import RecipeFile


def run(recipe: RecipeFile, changes: Changes = None) -> None:
    """Run the whole study of a recipe: data, probe, train, sweep, distill, calibrate, compare, evaluate, cost, report.

    The same command resumes after an interruption. After a change of the recipe it repeats only the stages affected.
    """
    from recurtrace.cli.summary import print_summary
    from recurtrace.pipeline import Pipeline, PipelineRecipe

    made = PipelineRecipe.read_with(recipe, changes or [])
    console = Console(highlight=False)
    page = Pipeline(
        made,
        lambda name, skipped: console.print(f"[dim]{name}: already done[/dim]" if skipped else f"[bold]{name}[/bold]"),
    ).run()
    print_summary(made.out)
    typer.echo(f"The model: {made.model(made.seeds[0])}")
    typer.echo(f"The report: {page}")
