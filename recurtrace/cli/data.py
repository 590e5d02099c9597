"""`recurtrace data`: the table of tasks, and what their examples look like."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="The tasks, and what their examples look like.")


@app.command("list")
def list_tasks() -> None:
    """List the tasks, where they come from and how their answers are scored."""
    from recurtrace.data.benchmarks import SUITES, suite

    console = Console()
    for name in SUITES:
        tasks = suite(name)
        table = Table(title=f"{name.replace('_', '-')} ({len(tasks)})", title_justify="left")
        for column in ("task", "source", "config", "splits", "scored by"):
            table.add_column(column)
        for task in tasks:
            configs = task.configs[0] if len(task.configs) == 1 else f"{len(task.configs)} configs"
            splits = ", ".join(split if split == name else f"{split}={name}" for split, name in task.splits.items())
            source = (task.hub, configs, splits) if task.hub else ("generated", "", "train, test")
            table.add_row(task.name, *source, task.scorer)
        console.print(table)


@app.command()
def show(
    task: Annotated[str, typer.Argument(help="A task of `recurtrace data list`.")],
    split: Annotated[Literal["train", "test"], typer.Option(help="Which split.")] = "test",
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many examples.")] = 3,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, instead of the hub.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a generated task.")] = 0,
) -> None:
    """Print examples: the prompt as the model reads it, and the answer."""
    from recurtrace.data.loading import load

    loaded = load(task, split, data_dir, limit=count, seed=seed)
    for example in loaded.examples:
        bucket = f" · {example.bucket}" if example.bucket else ""
        typer.secho(f"{example.id}{bucket}", dim=True)
        typer.echo(example.prompt, nl=False)
        typer.secho(f" {example.answer}\n", bold=True)
