"""`recurtrace cost`: what each depth costs on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from recurtrace.cli.options import Dtype


def cost(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model.")],
    out: Annotated[Path | None, typer.Option(help="JSON file to write; `report` reads cost.json.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Length of the input.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of the input.")] = 1,
    turns: Annotated[int, typer.Option(min=1, help="Times each depth is run.")] = 20,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights: auto is the checkpoint's own.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …; auto is the best there is.")] = "auto",
) -> None:
    """Time 1, 2, 4, 8 and 16 loops against the unlooped base, in one run, beside their FLOPs."""
    from rich.console import Console
    from rich.table import Table

    from recurtrace.evaluation.runtime import measure_cost
    from recurtrace.files import write_json
    from recurtrace.model.loading import load_looped

    looped, _ = load_looped(model, device=device, dtype=dtype)
    found = measure_cost(looped, tokens, batch_size, turns)
    found["command"] = f"recurtrace cost {model}"
    table = Table("loops", "layer passes", "FLOPs", "time", "K/V bytes per token")
    for row in found["depths"]:
        ratios = [f"{row[key]:.2f}×" for key in ("flops_ratio", "time_ratio")]
        table.add_row(str(row["loops"]), str(row["layer_passes"]), *ratios, f"{row['kv_bytes_per_token']:,}")
    Console().print(table)
    typer.echo(found["note"])
    if out is not None:
        write_json(out, found)
