"""The dry run: what a recipe would take, before anything is loaded or rented."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from recurtrace.training.recipe import TrainRecipe


def print_estimate(recipe: "TrainRecipe") -> None:
    from recurtrace.training.estimate import estimate

    found = estimate(recipe)
    table = Table(title=f"{recipe.method} on {recipe.model}", title_justify="left", show_header=False)
    length = f"{found.steps:,} steps" if found.steps else f"{recipe.epochs:g} epochs"
    tokens = f", {found.tokens / 1e6:,.0f} M tokens" if found.tokens else ""
    share = f"{found.trained / found.parameters:.1%}"
    in_all = f", {found.flops_per_step * found.steps:.2e} in all" if found.steps else ""
    for name, value in (
        ("parameters", f"{found.parameters / 1e6:,.1f} M, {found.trained / 1e6:,.1f} M of them trained ({share})"),
        ("run", f"{length} of {recipe.batch_size} sequences of {recipe.max_length} tokens{tokens}"),
        ("mean depth", f"{found.mean_depth:.2f}"),
        ("FLOPs", f"{found.flops_per_step:.2e} a step{in_all}"),
        ("weights", _gib(found.weight_bytes)),
        ("gradients, optimizer", _gib(found.gradient_bytes + found.optimizer_bytes)),
        (
            "activations (estimated)",
            f"{_gib(found.activation_bytes)} for {recipe.micro_batch_size} at the largest depth",
        ),
        ("on one device", _gib(found.memory())),
        ("on each of 8, ZeRO-2", _gib(found.memory(8, shard_optimizer=True))),
        ("on each of 8, FSDP2", _gib(found.memory(8, shard_weights=True))),
    ):
        table.add_row(name, value)
    Console().print(table)


def _gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB"
