"""`recurtrace sweep`, `distill`, `calibrate` and `compare`: from measured depths to a head that picks them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recurtrace.cli.data import DataDir
from recurtrace.cli.options import Dtype
from recurtrace.errors import RecurTraceError

if TYPE_CHECKING:
    from recurtrace.halting.sweep_files import Sweep

Model = Annotated[Path, typer.Argument(help="Folder of a looped model.")]
HeadName = Annotated[str | None, typer.Option(help="Name of the head; default the model's own.")]
Tasks = Annotated[str | None, typer.Option(help="Use these tasks of the sweep only, separated by commas.")]


def sweep(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model.")],
    data: Annotated[str, typer.Option(help="Folder of a mixture, or tasks separated by commas.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    split: Annotated[
        Literal["heldout", "train", "test"], typer.Option(help="heldout and train may be fitted to, test never.")
    ] = "heldout",
    data_dir: DataDir = None,
    tasks: Annotated[str | None, typer.Option(help="Of a mixture, only these tasks, separated by commas.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Examples to take, stratified; all if left out.")] = None,
    depths: Annotated[str, typer.Option(help="Depths to decode at: 1-16, or 1,2,4,8.")] = "1-16",
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in one unroll.")] = 16,
    max_length: Annotated[int, typer.Option(help="Longest example, in tokens.")] = 1024,
    states: Annotated[bool, typer.Option(help="Keep pooled states, which heads are trained on.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights: auto is the checkpoint's own.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …; auto is the best there is.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Measure every depth of every example, once; heads, thresholds and comparisons are then made from the files.

    The same command goes on after a kill.
    """
    from recurtrace.data.mixture import gather
    from recurtrace.data.sampling import stratified
    from recurtrace.halting.sweep import sweep as run
    from recurtrace.halting.sweep_files import read_manifest
    from recurtrace.model.loading import load_looped

    chosen = parse_depths(depths)
    only = [task.strip() for task in tasks.split(",")] if tasks else None
    examples = gather(data, data_dir, count, seed, split, only)
    examples = stratified(examples, count if count is not None else len(examples), seed)
    looped, tokenizer = load_looped(model, dtype=dtype, device=device)
    run(looped, tokenizer, examples, out, split, data, chosen, None, batch_size, max_length, states=states)
    made = read_manifest(out)
    passes, base = made["layer_passes"], made["layer_passes_of_the_base"]
    typer.echo(f"{made['examples']:,} examples at depths {depths} are in {out}.")
    typer.echo(f"{passes} layer passes for a prompt token, {passes / base:.1f} times the base's {base}.")
    if made["cut"] or made["dropped"]:
        typer.echo(f"{made['cut']} prompts were cut from the left, {len(made['dropped'])} examples did not fit.")


def distill(
    model: Model,
    swept: Annotated[Path, typer.Option("--sweep", help="Folder of a sweep of this model, not of test items.")],
    objective: Annotated[
        Literal["oracle", "act", "pondernet", "loopus", "tah"], typer.Option(help="What the head is trained on.")
    ] = "oracle",
    head: HeadName = None,
    tasks: Tasks = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set steps=400; may be repeated.")
    ] = None,
) -> None:
    """Train a halting head from a sweep, in seconds, and put it into the model folder."""
    from recurtrace.halting.distill import DistillRecipe
    from recurtrace.halting.distill import distill as run
    from recurtrace.halting.methods import HEADS, METHODS
    from recurtrace.halting.sweep_files import STATES
    from recurtrace.model.configuration_recurtrace import HeadSettings
    from recurtrace.model.heads import read_looped_config, write_head
    from recurtrace.recipe import with_changes

    config = read_looped_config(model)
    if head is None and objective != "oracle":
        head = objective  # the model's own is the oracle's
    if head in {method.name for method in METHODS} - set(HEADS):
        raise RecurTraceError(f"{head!r} is the name of a method in the comparison; give the head another.")
    fields = {
        "objective": objective,
        "pooling": config.loop_halting_pooling,
        "probe_depths": config.loop_halting_aux_depths,
        "margin": config.loop_halting_aux_margin,
        "horizon": config.loop_halting_oracle_max,
        "depth_cost": config.loop_halting_depth_cost,
    }
    recipe = DistillRecipe.check(with_changes(fields, changes or []), "the settings of distill")
    arrays = ["loss", "correct", "token_accuracy", STATES[recipe.pooling]]
    measured = read_sweep_of(model, swept, arrays, tasks)
    weight, bias, history = run(measured, recipe)
    budget = min(config.loop_halting_max_depth, len(measured.depths))
    settings = HeadSettings(
        recipe.objective, recipe.pooling, config.loop_halting_threshold, min(2, budget), max_depth=budget
    )
    write_head(model, head, weight, bias, settings)
    name = f"head {head!r}" if head else "the model's own head"
    losses = f"loss {history[0]:.4f} → {history[-1]:.4f}"
    typer.echo(f"{name}: {recipe.steps} steps on {len(measured):,} examples, {losses}.")
    typer.echo(f"Next:  recurtrace calibrate {model} --sweep HELDOUT{f' --head {head}' if head else ''}")


def calibrate(
    model: Model,
    swept: Annotated[Path, typer.Option("--sweep", help="Folder of a sweep of held-out items.")],
    signal: Annotated[
        Literal["head", "top_prob", "margin", "entropy", "kl", "state_l2", "state_angle"],
        typer.Option(help="What stops the loop."),
    ] = "head",
    head: HeadName = None,
    tasks: Tasks = None,
    select: Annotated[
        Literal["nll", "accuracy"], typer.Option(help="Smallest mean depth that loses none of this.")
    ] = "nll",
    min_depth: Annotated[int | None, typer.Option(help="Floor; default the fixed depth of lowest loss.")] = None,
    max_depth: Annotated[int, typer.Option(help="Budget.")] = 16,
    tolerance: Annotated[float, typer.Option(min=0, help="What may be lost after all, in nats or as a share.")] = 0.0,
) -> None:
    """Choose threshold and floor on held-out items, and write them into the model folder."""
    from dataclasses import asdict, replace

    from rich.console import Console
    from rich.table import Table

    from recurtrace.files import write_json
    from recurtrace.halting.calibrate import calibrate as run
    from recurtrace.halting.policies import signal_values
    from recurtrace.halting.sweep_files import STATES
    from recurtrace.model.heads import change_head, read_head

    if head is not None and signal != "head":
        raise RecurTraceError(f"--head belongs to --signal head, not to {signal}.")
    own = read_head(model, head) if signal == "head" else None
    needed = {"head": STATES[own[2].pooling] if own else "", "state_l2": "state_mean", "state_angle": "state_mean"}
    measured = read_sweep_of(model, swept, ["loss", "correct", needed.get(signal, signal)], tasks)
    values = signal_values(measured, signal, own)
    found = run(measured, values, signal, select, min_depth, max_depth, tolerance)
    point = found.point
    if own is not None:
        bounds = (point.min_depth, point.max_depth)
        settings = replace(own[2], threshold=point.threshold, min_depth=bounds[0], max_depth=bounds[1])
        change_head(model, head, settings)
    file = model / "calibration" / f"{head or signal}.json"
    record = {**asdict(found), "sweep": str(swept), "data": measured.manifest["data"], "tasks": tasks}
    write_json(file, record)

    table = Table("depth", "NLL", "accuracy", title="Held-out", title_justify="left")
    for depth, measures in found.fixed.items():
        table.add_row(f"fixed {depth}", f"{measures['nll']:.4f}", f"{measures['accuracy']:.1%}")
    table.add_row(f"[bold]{signal}, mean {point.mean_depth:.2f}", f"{point.nll:.4f}", f"{point.accuracy:.1%}")
    Console().print(table)
    typer.echo(f"threshold {point.threshold:g}, floor {point.min_depth}, budget {point.max_depth}; written to {file}.")
    gains = [fold["accuracy_gain"] for fold in found.folds]
    typer.echo(
        f"Each of {len(gains)} parts at the threshold of the others: {sum(gains) / len(gains):+.1%} accuracy over the "
        f"floor ({min(gains):+.1%} to {max(gains):+.1%})."
    )


def compare(
    model: Model,
    heldout: Annotated[Path, typer.Option(help="Sweep of held-out items: thresholds and floors come from it.")],
    test: Annotated[Path, typer.Option(help="Sweep of test items, with the same depths.")],
    tasks: Tasks = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write everything to; `report` reads it.")] = None,
) -> None:
    """Put every way to choose a depth side by side, those heads included that the model folder has."""
    from rich.console import Console
    from rich.table import Table

    from recurtrace.evaluation.analysis import analyse
    from recurtrace.files import write_json
    from recurtrace.model.heads import read_head, read_looped_config

    config = read_looped_config(model)
    names = [*([None] if config.loop_halting_trained else []), *(config.loop_halting_heads or {})]
    heads = {name: read_head(model, name) for name in names}
    held, tested = (read_sweep_of(model, folder, None, tasks) for folder in (heldout, test))
    probes = list(config.loop_halting_aux_depths)
    found = analyse(held, tested, heads, probes, config.loop_halting_aux_margin)
    found["command"] = f"recurtrace compare {model} --heldout {heldout} --test {test}"
    title = {row["name"]: row["title"] for row in found["methods"]}[found["best_fixed"]]
    table = Table("method", "accuracy", "right", "loops", f"Δ {title}", "p", "NLL", "floor", "threshold")
    for row in found["methods"]:
        table.add_row(
            row["title"] + (" *" if row["ours"] else ""),
            f"{row['accuracy']:.2%}",
            str(row["correct"]),
            f"{row['mean_depth']:.2f}",
            f"{row['net']:+d}",
            f"{row['p_value']:.2g}",
            f"{row['nll']:.4f}",
            str(row["floor"]),
            f"{row['threshold']:.3g}" if row["threshold"] is not None else "",
        )
    Console().print(table)
    typer.echo("* not in the paper's comparison. The oracles look at the answer: they are ceilings, not methods.")
    if out is not None:
        write_json(out, found)
        typer.echo(f"Everything about it is in {out}.")


def parse_depths(text: str) -> list[int]:
    """`1-16` or `1,2,4,8`."""
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            chosen = list(range(first, last + 1))
        else:
            chosen = [int(part) for part in text.split(",")]
    except ValueError:
        chosen = []
    if not chosen or min(chosen) < 1:
        raise RecurTraceError(f"depths are given as 1-16 or 1,2,4,8, got {text!r}.")
    return chosen


def read_sweep_of(model: Path, folder: Path, arrays: list[str] | None, tasks: str | None) -> "Sweep":
    """A sweep, refused if another model made it."""
    from recurtrace.halting.sweep_files import read_manifest, read_sweep
    from recurtrace.model.heads import folder_fingerprint

    manifest = read_manifest(folder)
    if manifest["loop_fingerprint"] != folder_fingerprint(model):
        raise RecurTraceError(f"the sweep {str(folder)!r} was made with other loop modules than {str(model)!r} has.")
    if not manifest["states"] and any(name.startswith("state_") for name in arrays or ["state_mean"]):
        raise RecurTraceError(f"the sweep {str(folder)!r} kept no pooled states; sweep again with --states.")
    found = read_sweep(folder, arrays)
    return found.of_tasks([task.strip() for task in tasks.split(",")]) if tasks else found
