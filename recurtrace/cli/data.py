"""`recurtrace data`: the table of tasks, what their examples look like, and the training mixture."""

from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import DataDir, next_step

app = typer.Typer(no_args_is_help=True, help="The tasks, their examples, and the training mixture.")


@app.command("list")
def list_tasks() -> None:
    """List the tasks, where they come from, how their answers are scored, and how many test items they have.

    "sampled" are those that `evaluate --sampled` takes: the paper's numbers, as far as it gives them.
    """
    from recurtrace.data.benchmarks import SUITES, suite
    from recurtrace.data.counts import COUNTS, SAMPLES, evaluated, sampled

    console = Console()
    for name in SUITES:
        tasks = suite(name)
        table = Table(title=f"{name.replace('_', '-')} ({len(tasks)})", title_justify="left")
        for column in ("task", "source", "config", "splits", "scored by"):
            table.add_column(column)
        for column in ("test items", "sampled"):
            table.add_column(column, justify="right")
        for task in tasks:
            configs = task.configs[0] if len(task.configs) == 1 else f"{len(task.configs)} configs"
            splits = ", ".join(split if split == name else f"{split}={name}" for split, name in task.splits.items())
            source = (task.hub, configs, splits) if task.hub else ("generated", "", "train, test")
            items = COUNTS[task.name].test if task.name in COUNTS else 0
            counts = (items, min(items, sampled(task) or items)) if items else ()
            table.add_row(task.name, *source, task.scorer, *(f"{count:,}" for count in counts))
        console.print(table)
        if name in SAMPLES:
            ours, paper = evaluated(tasks), SAMPLES[name].paper
            typer.echo(f"{ours:,} sampled test items, {paper:,} in the paper. {SAMPLES[name].why}\n")


@app.command()
def show(
    task: Annotated[str, typer.Argument(help="Name of a task (`recurtrace data list`).")],
    split: Annotated[Literal["train", "test"], typer.Option(help="Which split.")] = "test",
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=2**31 - 1, help="How many examples.")] = 3,
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
@stage_command(stages.DataSettings)
def build(settings: stages.DataSettings) -> None:
    """Build the training mixture: load, audit against every test question, sample, write Parquet and a manifest.

    The same command resumes an interrupted build; a finished one is left as it is.
    """
    manifest = stages.data(settings)
    table = Table(title=f"{settings.out} · seed {manifest['recipe']['seed']}", title_justify="left")
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
    next_step(f"recurtrace train RECIPE --set data={settings.out}")
