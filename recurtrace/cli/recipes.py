"""`recurtrace recipes`: the recipes that come with the package."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from recurtrace.cli.options import next_step

app = typer.Typer(no_args_is_help=True, help="The recipes that come with the package.")


@app.command("list")
def list_recipes() -> None:
    """List the shipped recipes. `train`, `run` and `data build` accept these names."""
    from recurtrace.recipes import about, shipped

    table = Table("recipe", "what it is")
    kind = None
    for name, file in shipped().items():
        if kind not in (None, file.parent.name):
            table.add_section()
        kind = file.parent.name
        table.add_row(name, about(file))
    Console().print(table)
    next_step("recurtrace recipes copy NAME", "recurtrace train NAME --dry-run")


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="Name of a shipped recipe, or of a kind such as paper.")],
    out: Annotated[Path, typer.Option(help="Folder to copy to; files go into a folder named after their kind.")] = Path(
        "recipes"
    ),
) -> None:
    """Copy a shipped recipe, or all of a kind, to change it."""
    from recurtrace.recipes import copy as run

    for file in run(name, out):
        typer.echo(str(file))
