"""`recurtrace probe`: which layers of a base to loop."""

import typer
from rich.console import Console
from rich.table import Table

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import next_step


@stage_command(stages.ProbeSettings)
def probe(settings: stages.ProbeSettings) -> None:
    """Find the block to loop: the flat span between encoder and decoder, and the best window inside it."""
    found = stages.probe(settings)
    end, start = found.encoder_end, found.decoder_start
    typer.echo(f"The encoder ends at layer {end}." if end is not None else "The curve has no bend after an encoder.")
    typer.echo(
        f"The decoder begins at layer {start}." if start is not None else "The curve has no bend before a decoder."
    )
    compared = found.base_nll is not None
    table = Table("block", "mean distance", *(["NLL of two loops", "over the base"] if compared else []))
    for window in found.windows:
        losses = [f"{window.nll:.4f}", f"{window.nll - (found.base_nll or 0):+.4f}"] if window.nll is not None else []
        table.add_row(
            f"{window.start}–{window.start + found.loop_num_layers - 1}", f"{window.mean_distance:.4f}", *losses
        )
    Console().print(table)
    typer.echo(f"Wrote {settings.out} and {settings.out.with_suffix('.png')}.")
    next_step(f"recurtrace convert {settings.base} --probe {settings.out} --out DIR")
