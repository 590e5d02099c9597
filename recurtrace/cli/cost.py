"""`recurtrace cost`: what each depth costs on this machine."""

import typer
from rich.console import Console
from rich.table import Table

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import next_step


@stage_command(stages.CostSettings)
def cost(settings: stages.CostSettings) -> None:
    """Measure the time of 1, 2, 4, 8 and 16 loops against the base without loops, and compare it with the FLOPs.

    In two settings: a prompt with logits at its last position only, and a teacher-forced pass with logits at every
    position, which is what the paper measures.
    """
    found = stages.cost(settings)
    titles = ("last logits: FLOPs", "last logits: time", "all logits: FLOPs", "all logits: time")
    table = Table("loops", "layer passes", *titles, "K/V bytes per token")
    for row in found.depths:
        last, every = (row.flops_ratio, row.time_ratio), (row.all_logits_flops_ratio, row.all_logits_time_ratio)
        ratios = [f"{ratio:.2f}×" for ratio in (*last, *every)]
        table.add_row(str(row.loops), str(row.layer_passes), *ratios, f"{row.kv_bytes_per_token:,}")
    Console().print(table)
    typer.echo(found.note)
    if settings.out is not None:
        next_step(f"recurtrace report {settings.out.parent}")
