"""`recurtrace trace`: all that the loop does with one prompt."""

import typer
from rich.console import Console
from rich.table import Table

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import next_step


@stage_command(stages.TraceSettings)
def trace(settings: stages.TraceSettings) -> None:
    """Trace a prompt through every loop, in one pass: answers, halting, gates, memory, states. `explore` draws it."""
    found = stages.trace(settings)
    table = Table("loop", "continue", "answer", "probability", *(["", "loss"] if found.reference is not None else []))
    for loop in found.loops:
        judged = ["✓" if loop.right else "✗", f"{loop.loss:.3f}"] if found.reference is not None else []
        going = "–" if loop.continue_prob is None else f"{loop.continue_prob:.3f}"
        table.add_row(str(loop.loop), going, loop.answer, f"{loop.answer_prob:.3f}", *judged)
    Console(highlight=False).print(table)
    if settings.out is not None:
        typer.echo(f"Wrote {settings.out} ({settings.out.stat().st_size / 1e6:.1f} MB).")
        next_step(f"recurtrace explore --trace {settings.out} --static {settings.out.with_suffix('.html')}")
