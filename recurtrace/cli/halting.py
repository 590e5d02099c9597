"""`recurtrace sweep`, `distill`, `calibrate` and `compare`: from measured depths to a head that picks them."""

import typer
from rich.console import Console
from rich.table import Table

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import is_main_process, next_step


@stage_command(stages.SweepSettings)
def sweep(settings: stages.SweepSettings) -> None:
    """Measure every depth of every example once. Heads, thresholds and comparisons are made from the files.

    The same command resumes after an interruption. For several processes: `accelerate launch -m recurtrace sweep …`.
    """
    made = stages.sweep(settings)
    if not is_main_process():
        return
    passes, base = made.layer_passes, made.layer_passes_of_the_base
    depths = f"{made.depths[0]} to {made.depths[-1]}" if len(made.depths) > 1 else str(made.depths[0])
    typer.echo(f"{made.examples:,} examples at {len(made.depths)} depths, {depths}, are in {settings.out}.")
    typer.echo(f"{passes} layer passes for a prompt token, {passes / base:.1f} times the base's {base}.")
    if made.cut or made.dropped:
        typer.echo(f"{made.cut} prompts were cut from the left, {len(made.dropped)} examples did not fit.")
    next_step(
        {
            "train": f"recurtrace distill {settings.model} --sweep {settings.out}",
            "heldout": f"recurtrace calibrate {settings.model} --sweep {settings.out}",
            "test": f"recurtrace compare {settings.model} --heldout HELDOUT --test {settings.out}",
        }[settings.split]
    )


@stage_command(stages.DistillSettings)
def distill(settings: stages.DistillSettings) -> None:
    """Train a halting head from a sweep and store it in the model folder. Takes seconds."""
    made = stages.distill(settings)
    name = f"head {made.name!r}" if made.name else "the model's own head"
    losses = f"loss {made.history[0]:.4f} → {made.history[-1]:.4f}"
    typer.echo(f"{name}: {made.recipe.steps} steps on {made.examples:,} examples, {losses}.")
    next_step(f"recurtrace calibrate {made.folder} --sweep HELDOUT{f' --head {made.name}' if made.name else ''}")


@stage_command(stages.CalibrateSettings)
def calibrate(settings: stages.CalibrateSettings) -> None:
    """Choose threshold and floor on held-out items and store them in the model folder."""
    made = stages.calibrate(settings)
    found, point = made.found, made.found.point
    table = Table("depth", "NLL", "accuracy", title="Held-out", title_justify="left")
    for depth, measures in found.fixed.items():
        table.add_row(f"fixed {depth}", f"{measures['nll']:.4f}", f"{measures['accuracy']:.1%}")
    table.add_row(f"[bold]{settings.signal}, mean {point.mean_depth:.2f}", f"{point.nll:.4f}", f"{point.accuracy:.1%}")
    Console().print(table)
    typer.echo(
        f"threshold {point.threshold:g}, floor {point.min_depth}, budget {point.max_depth}; written to {made.file}."
    )
    if gains := [fold["accuracy_gain"] for fold in found.folds]:
        typer.echo(
            f"Cross-validated over {len(gains)} parts: {sum(gains) / len(gains):+.1%} accuracy over the floor "
            f"({min(gains):+.1%} to {max(gains):+.1%})."
        )
    named = f" --head {settings.head}" if settings.head else ""
    generate = [f'recurtrace generate {settings.model} "…"{named}'] if settings.signal == "head" else []
    next_step(f"recurtrace compare {settings.model} --heldout {settings.sweep} --test TEST", *generate)


@stage_command(stages.CompareSettings)
def compare(settings: stages.CompareSettings) -> None:
    """Compare every halting method on the same test items, including all heads in the model folder."""
    found = stages.compare(settings)
    title = next(row.title for row in found.methods if row.name == found.best_fixed)
    table = Table("method", "accuracy", "right", "loops", f"Δ {title}", "p", "NLL", "floor", "threshold")
    for row in found.methods:
        table.add_row(
            row.title + (" *" if row.ours else ""),
            f"{row.accuracy:.2%}",
            str(row.correct),
            f"{row.mean_depth:.2f}",
            f"{row.net:+d}",
            f"{row.p_value:.2g}",
            f"{row.nll:.4f}",
            str(row.floor),
            f"{row.threshold:.3g}" if row.threshold is not None else "",
        )
    Console().print(table)
    typer.echo("* extension (not in the paper). The oracles look at the answer, so they are ceilings and not methods.")
    if settings.out is not None:
        typer.echo(f"The whole analysis is in {settings.out}.")
        next_step(f"recurtrace report {settings.out.parent.parent}")
