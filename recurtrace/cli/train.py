"""`recurtrace train` and `recurtrace pretrain`: runs from recipes."""

from pathlib import Path
from typing import Annotated

import typer

Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field of the recipe, e.g. --set steps=100; may be repeated.")
]


def train(
    recipe: Annotated[Path, typer.Argument(help="What to train, a YAML file as in recipes/.")],
    changes: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Load and train nothing; say what it would take.")] = False,
) -> None:
    """Train the loop modules of a model, or a baseline under the same budget.

    The same command goes on after a kill. For several processes: `accelerate launch --config_file … -m recurtrace train
    RECIPE`.
    """
    from recurtrace.training.recipe import TrainRecipe

    made = TrainRecipe.read_with(recipe, changes or [])
    if dry_run:
        from recurtrace.cli.dry_run import print_estimate

        print_estimate(made)
        return
    from recurtrace.training.run import train as run

    _finish(run(made))


def pretrain(
    recipe: Annotated[Path, typer.Argument(help="What to make, a YAML file as in recipes/.")],
    changes: Changes = None,
) -> None:
    """Make a small base from random weights, on text generated in its own little world."""
    from recurtrace.training.recipe import PretrainRecipe
    from recurtrace.training.run import pretrain as run

    _finish(run(PretrainRecipe.read_with(recipe, changes or [])))


def _finish(folder: Path) -> None:
    import json
    import os

    if int(os.environ.get("RANK", "0")) != 0:
        return
    budget = json.loads((folder.parent / "budget.json").read_text(encoding="utf-8"))
    typer.echo(
        f"{budget['steps']:,} steps, {budget['tokens']:,} tokens, {budget['trained_parameters']:,} of "
        f"{budget['parameters']:,} parameters trained, {budget['total_flops']:.2e} FLOPs, "
        f"{budget['seconds'] / 60:.1f} minutes, peak {budget['peak_bytes'] / 2**30:.2f} GiB."
    )
    typer.echo(f"The model is in {folder}, the budget and the history beside it.")
