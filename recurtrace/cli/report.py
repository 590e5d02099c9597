"""`recurtrace report`: tables and figures of a folder of results."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder with analysis/, evaluations/, runs/, probe.json, cost.json.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default FOLDER/report.")] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "RecurTrace report",
) -> None:
    """Write the paper's tables and figures as Markdown, LaTeX and one self-contained HTML page."""
    from recurtrace.report.render import report as run

    for file in run(folder, out or folder / "report", title):
        typer.echo(str(file))
