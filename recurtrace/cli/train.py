"""`recurtrace train` and `recurtrace pretrain`: runs from recipes."""

from pathlib import Path
from typing import Annotated

import typer

from recurtrace import stages
from recurtrace.cli.options import Changes, Overwrite, TrustRemoteCode, allowed, is_main_process, next_step
from recurtrace.records import Budget
from recurtrace.training.recipe import PretrainRecipe, TrainRecipe

RecipeFile = Annotated[
    Path, typer.Argument(help="A YAML file, or the name of a shipped recipe (`recurtrace recipes list`).")
]


def train(
    recipe: RecipeFile,
    changes: Changes = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load and train nothing; print the memory and FLOPs the run would take.")
    ] = False,
    overwrite: Overwrite = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Train the loop modules of a model, or a baseline under the same budget.

    The same command resumes after an interruption. For several processes: `accelerate launch --config_file … -m
    recurtrace train RECIPE`.
    """
    made = TrainRecipe.read_with(recipe, [*(changes or []), *allowed(overwrite, trust_remote_code)])
    if dry_run:
        from recurtrace.cli.dry_run import print_estimate

        print_estimate(made)
        return
    budget = stages.train(made)
    if not is_main_process():
        return
    folder = _finish(made, budget)
    if made.method in ("loop", "plain_loop"):
        next_step(f"recurtrace sweep {folder} --data {made.data} --split train --count 5000 --out sweeps/train")
    else:
        next_step(f"recurtrace evaluate {folder} --data {made.data} --loops 1 --out evaluations/{made.method}")


def pretrain(recipe: RecipeFile, changes: Changes = None, overwrite: Overwrite = False) -> None:
    """Train a small base from random weights, on generated text."""
    made = PretrainRecipe.read_with(recipe, [*(changes or []), *allowed(overwrite)])
    budget = stages.pretrain(made)
    if is_main_process():
        folder = _finish(made, budget)
        next_step(f"recurtrace convert {folder} --loop-start LAYER --out looped")


def _finish(recipe: TrainRecipe | PretrainRecipe, budget: Budget) -> Path:
    typer.echo(
        f"{budget.steps:,} steps, {budget.tokens:,} tokens, {budget.trained_parameters:,} of {budget.parameters:,} "
        f"parameters trained, {budget.total_flops:.2e} FLOPs, {budget.seconds / 60:.1f} minutes, peak "
        f"{budget.peak_bytes / 2**30:.2f} GiB."
    )
    folder = recipe.out / "model"
    typer.echo(f"The model is in {folder}; budget.json and history.json are beside it.")
    return folder
