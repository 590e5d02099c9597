"""`recurtrace data`: the table of tasks, what their examples look like, and the training mixture."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="The tasks, their examples, and the training mixture.")

DataDir = Annotated[Path | None, typer.Option(help="Folder with the data, instead of the hub.")]


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
    data_dir: DataDir = None,
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


@app.command()
def build(
    recipe: Annotated[Path, typer.Option(help="What the mixture is made of, a YAML file as in recipes/.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    data_dir: DataDir = None,
    skip_missing: Annotated[
        bool,
        typer.Option("--skip-missing", help="Go on without sources and tests that cannot be found, and list them."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Build anew what the folder holds already.")] = False,
) -> None:
    """Build the training mixture: load, audit against every test question, sample, write Parquet and a manifest.

    A killed build goes on where it was; a finished one is left as it is.
    """
    from recurtrace.data.mixture import MixtureRecipe
    from recurtrace.data.mixture import build as build_mixture

    manifest = build_mixture(MixtureRecipe.read(recipe), out, data_dir, skip_missing, overwrite)
    table = Table(title=f"{out} · seed {manifest['recipe']['seed']}", title_justify="left")
    columns = ("records", "without_answer", "removed_exact", "removed_near", "train", "heldout")
    table.add_column("source", no_wrap=True)
    for title in ("records", "no answer", "exact", "near", "train", "held out"):
        table.add_column(title, justify="right")
    sources = manifest["sources"]
    for name, facts in sources.items():
        table.add_row(name, *(f"{facts[column]:,}" for column in columns))
    table.add_section()
    table.add_row("all", *(f"{sum(facts[column] for facts in sources.values()):,}" for column in columns))
    Console().print(table)
    audit = manifest["audit"]
    typer.echo(f"Audited against {audit['questions']:,} test questions of {len(audit['tasks'])} tasks.")
    for what, names in (("Sources", manifest["missing"]), ("Tests", audit["missing"])):
        if names:
            typer.secho(f"{what} not found and left out: {', '.join(names)}.", fg="yellow")
