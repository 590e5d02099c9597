"""What a looped model is and costs, as tables for the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from recurtrace.shape import Shape

DEPTHS = (1, 2, 4, 6, 8, 16)
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def facts(shape: Shape, context: int = 512) -> dict[str, Any]:
    """Everything `recurtrace info` says, as plain data."""
    cost = shape.cost
    return {
        "base": shape.base,
        "family": shape.family,
        "layers": cost.layers,
        "hidden_size": shape.hidden_size,
        "block": [shape.first_looped, shape.first_looped + cost.looped_layers - 1],
        "memory_window": shape.memory_window,
        "halting_head": shape.halting_head,
        "named_heads": shape.named_heads,
        "default_loops": shape.default_loops,
        "base_parameters": cost.parameters.base,
        "added_parameters": cost.parameters.added,
        "added_share": cost.parameters.share,
        "dtype": shape.dtype,
        "context": context,
        "depths": [
            {
                "loops": loops,
                "layer_passes": cost.layer_passes(loops),
                "kv_bytes_per_token": cost.kv_bytes(loops, BYTES.get(shape.dtype, 1)),
                "decode_flops_ratio": cost.decode_ratio(loops, context),
                "prefill_flops_ratio": cost.prefill_ratio(loops, context),
                "forward_flops_ratio": cost.forward_ratio(loops, context),
            }
            for loops in DEPTHS
        ],
    }


def describe(shape: Shape, context: int = 512) -> None:
    known = facts(shape, context)
    console = Console(highlight=False)
    summary = Table.grid(padding=(0, 2))
    first, last = known["block"]
    rows = {
        "base": f"{known['base'] or 'not named'} ({known['family']}, {known['base_parameters'] / 1e6:,.1f} M)",
        "looped block": f"layers {first}–{last} of {known['layers']}",
        "loop memory": f"window of {known['memory_window']} loops" if known["memory_window"] else "off (plain looping)",
        "added": f"{known['added_parameters'] / 1e6:,.2f} M parameters, {known['added_share']:.2%} of the base",
        "halting head": known["halting_head"] or "not trained yet",
        **({"heads by name": ", ".join(known["named_heads"])} if known["named_heads"] else {}),
        "default depth": str(known["default_loops"]),
    }
    for name, value in rows.items():
        summary.add_row(f"[bold]{name}[/bold]", value)
    console.print(summary)

    table = Table(title=f"Cost by depth (context of {known['context']} tokens, {known['dtype']})", title_justify="left")
    for column in ("loops", "layer passes", "K/V bytes per token", "× base", "FLOPs: decode", "prefill", "all logits"):
        table.add_column(column, justify="right")
    for depth in known["depths"]:
        kv = depth["kv_bytes_per_token"]
        ratios = [f"{depth[f'{kind}_flops_ratio']:.2f}×" for kind in ("decode", "prefill", "forward")]
        table.add_row(
            str(depth["loops"]),
            str(depth["layer_passes"]),
            f"{kv:,}",
            f"{kv / known['depths'][0]['kv_bytes_per_token']:.2f}×",
            *ratios,
        )
    console.print(table)
