"""`recurtrace run`: from a base to a report, by one recipe."""

import shlex
from typing import Annotated

import typer
from rich.console import Console

from recurtrace.cli.options import Changes, Overwrite, TrustRemoteCode, allowed
from recurtrace.cli.train import RecipeFile
from recurtrace.errors import RecurTraceError, brief


def run(
    recipe: RecipeFile,
    changes: Changes = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Run nothing; print the plan: stages, items, GPU-hours, disk, what is done."),
    ] = False,
    tflops: Annotated[
        float, typer.Option(min=0.001, help="For the plan: TFLOP/s that one GPU reaches in this work.")
    ] = 200,
    gpus: Annotated[int, typer.Option(min=1, help="For the plan: GPUs that work at a time.")] = 8,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only stages of these first words, e.g. --only 'train loop', --only 'train * 1'; may be repeated."
        ),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Leave stages that another process is running to it, and wait for them.")
    ] = False,
    launch: Annotated[
        str, typer.Option(help="Command that starts several processes, e.g. 'accelerate launch --config_file FILE'.")
    ] = "",
    overwrite: Overwrite = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Run the whole study of a recipe: data, probe, train, sweep, distill, calibrate, compare, evaluate, cost, report.

    The same command resumes after an interruption. After a change of the recipe it repeats only the stages affected;
    what was trained is trained again with --overwrite only.
    """
    from recurtrace.cli.summary import print_summary
    from recurtrace.pipeline import Pipeline, PipelineRecipe

    try:
        launcher = shlex.split(launch)
    except ValueError as error:
        raise RecurTraceError(f"--launch {brief(launch, 80)!r} is not a command: {error}.") from error
    made = PipelineRecipe.read_with(recipe, [*(changes or []), *allowed(overwrite, trust_remote_code)])
    if dry_run:
        from recurtrace.cli.dry_run import print_plan
        from recurtrace.pipeline.plan import plan

        print_plan(plan(made), tflops, gpus)
        return
    console = Console(highlight=False)
    page = Pipeline(
        made,
        lambda name, why_not: console.print(f"[dim]{name}: {why_not}[/dim]" if why_not else f"[bold]{name}[/bold]"),
    ).run(only or [], launcher, share)
    if not page.is_file():
        return  # of a part of the stages
    print_summary(made.out)
    typer.echo(f"The model: {made.model(made.seeds[0])}")
    typer.echo(f"The report: {page}")
