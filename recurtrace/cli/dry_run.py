"""Dry runs: what a recipe would take, before anything is loaded or rented."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from recurtrace.pipeline.plan import Planned
    from recurtrace.training.recipe import TrainRecipe

COLUMNS = ("stage", "seeds", "items", "forward passes", "FLOPs", "GPU-hours", "disk", "state")
WIDE = 140


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
        ("run", f"{length} of {recipe.batch_size} sequences of {found.max_length} tokens{tokens}"),
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


def print_plan(lines: "list[Planned]", tflops: float, gpus: int) -> None:
    from recurtrace.pipeline.plan import left

    table = Table()
    table.add_column(COLUMNS[0], no_wrap=True)
    for column in COLUMNS[1:-1]:
        table.add_column(column, justify="right")
    table.add_column(COLUMNS[-1])
    *rows, last = plan_rows(lines, tflops)
    for row in rows:
        table.add_row(*row)
    table.add_section()
    table.add_row(*last)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDE)  # nothing of it is cut in a file
    console.print(table)
    console.print(plan_note(lines, tflops, gpus))
    if (rest := left(lines)).flops:
        hours = rest.gpu_hours(tflops)
        console.print(f"To do: {_hours(hours)} GPU-hours, {_hours(hours / gpus)} hours on {gpus} GPUs.")


def plan_rows(lines: "list[Planned]", tflops: float) -> list[list[str]]:
    """A row for each line, and their sum."""
    from recurtrace.pipeline.plan import total

    whole = [(line.name, str(len(line.states)), line.demand, line.state) for line in lines]
    return [
        [
            name,
            seeds,
            f"{one.items:,}" if one.items else "",
            f"{one.passes:,}" if one.passes else "",
            f"{one.flops:.1e}" if one.flops else "",
            _hours(one.gpu_hours(tflops)) if one.flops else "",
            f"{one.disk / 1e9:,.2f} GB" if one.disk else "",
            state,
        ]
        for name, seeds, one, state in [*whole, ("all", "", total(lines), "")]
    ]


def plan_note(lines: "list[Planned]", tflops: float, gpus: int) -> str:
    from recurtrace.pipeline.plan import ANSWER, TOKENS, total

    hours = total(lines).gpu_hours(tflops)
    return (
        f"At {tflops:g} TFLOP/s on each GPU: {_hours(hours)} GPU-hours, {_hours(hours / gpus)} hours on {gpus} GPUs. "
        f"Assumed: {TOKENS} tokens for an example, {ANSWER} for an answer, and in training a label at every position."
    )


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def _gib(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB"
