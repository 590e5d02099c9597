"""`recurtrace probe`: which layers of a base to loop."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recurtrace.cli.data import DataDir
from recurtrace.cli.options import Dtype


def probe(
    base: Annotated[str, typer.Argument(help="Hub id or folder of the base model.")],
    data: Annotated[str, typer.Option(help="Tasks, separated by commas, or the folder of a mixture.")] = "c4",
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="JSON file to write; the figure goes beside it.")] = Path("probe.json"),
    inputs: Annotated[int, typer.Option(min=1, help="Inputs to average over, at most.")] = 10_000,
    compare: Annotated[int, typer.Option(min=0, help="Examples to compare windows on; 0 ranks by distance.")] = 256,
    loop_num_layers: Annotated[int, typer.Option(min=1, help="Layers in the block.")] = 3,
    max_length: Annotated[int, typer.Option(help="Longest input, in tokens.")] = 512,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs in one forward pass.")] = 16,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights: auto is the base's own.")] = "auto",
    device_map: Annotated[str | None, typer.Option(help="Where to load the base: auto, cuda, cpu …")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    recipe: Annotated[
        Path | None, typer.Option(help="Train the best windows by this recipe too, and rank them by held-out loss.")
    ] = None,
    train_windows: Annotated[int, typer.Option(min=2, help="How many windows to train.")] = 3,
) -> None:
    """Find the block to loop: the still span between encoder and decoder, and the best window inside it."""
    from recurtrace.data.mixture import gather
    from recurtrace.model.base import load_base, portable_name, read_base_config
    from recurtrace.model.tokenizer import load_tokenizer
    from recurtrace.probe.examples import probe_block
    from recurtrace.probe.window_trial import try_windows
    from recurtrace.report.figures import draw_probe
    from recurtrace.training.recipe import TrainRecipe

    short_run = TrainRecipe.read_with(recipe, [f"model={base}"]) if recipe is not None else None
    read_base_config(base)  # refused before gigabytes are read
    tokenizer = load_tokenizer(base)
    examples = gather(data, data_dir, inputs + compare, seed)
    model, fingerprint = load_base(base, dtype=dtype, device_map=device_map)
    found = probe_block(model, tokenizer, examples, inputs, compare, loop_num_layers, max_length, batch_size, seed)
    found.model, found.base_fingerprint, found.data = portable_name(base), fingerprint, data
    if short_run is not None:
        try_windows(found, short_run, train_windows)
    found.write(out)
    draw_probe(out, out.with_suffix(".png"))

    end, start = found.encoder_end, found.decoder_start
    typer.echo(f"The encoder ends at layer {end}." if end is not None else "The curve has no bend after an encoder.")
    typer.echo(
        f"The decoder begins at layer {start}." if start is not None else "The curve has no bend before a decoder."
    )
    table = Table(
        "block", "mean distance", *(["NLL of two loops", "over the base"] if found.base_nll is not None else [])
    )
    for window in found.windows:
        losses = [f"{window.nll:.4f}", f"{window.nll - (found.base_nll or 0):+.4f}"] if window.nll is not None else []
        table.add_row(f"{window.start}–{window.start + loop_num_layers - 1}", f"{window.mean_distance:.4f}", *losses)
    Console().print(table)
    typer.echo(f"Wrote {out} and {out.with_suffix('.png')}.")
    typer.echo(f"Use it:  recurtrace convert {base} --probe {out} --out DIR")
