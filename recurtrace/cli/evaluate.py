"""`recurtrace evaluate`: a model's accuracy and likelihood, item by item."""

from statistics import mean

import typer
from rich.console import Console
from rich.table import Table

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import is_main_process, next_step


@stage_command(stages.EvaluateSettings)
def evaluate(settings: stages.EvaluateSettings) -> None:
    """Evaluate a model on every item at each of the depths, and write a record of each item.

    The same command resumes after an interruption. For several processes: `accelerate launch -m recurtrace evaluate …`.
    """
    found = stages.evaluate(settings)
    if not is_main_process():
        return
    table = Table("task", "loops", "accuracy", "NLL", "mean depth", "items")
    tasks = sorted({record.task for record in found.records})
    for task in [*tasks, *(["all"] if len(tasks) > 1 else [])]:
        records = [record for record in found.records if task in ("all", record.task)]
        for name in map(str, settings.loops):
            results = [record.at(name) for record in records]
            accuracy, nll, depth = (
                mean(values) for values in zip(*((r.correct, r.nll, r.depth) for r in results), strict=True)
            )
            table.add_row(task, name, f"{accuracy:.1%}", f"{nll:.4f}", f"{depth:.2f}", str(len(results)))
    Console().print(table)
    typer.echo(f"{len(found.records):,} records are in {settings.out}.")
    next_step(f"recurtrace report {settings.out.parent.parent}")
