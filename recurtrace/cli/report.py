"""`recurtrace report`: tables and figures of a folder of results."""

import typer

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import next_step


@stage_command(stages.ReportSettings)
def report(settings: stages.ReportSettings) -> None:
    """Write the paper's tables and figures as Markdown, LaTeX and one self-contained HTML page."""
    written = stages.report(settings)
    for file in written:
        typer.echo(str(file))
    page = next(file for file in written if file.suffix == ".html")
    next_step(f"open {page} in a browser")
