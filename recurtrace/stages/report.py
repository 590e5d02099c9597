"""Tables and figures of a folder of results."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from recurtrace.errors import RecurTraceError
from recurtrace.stages.settings import StageSettings, stage


class ReportSettings(StageSettings):
    arguments: ClassVar[tuple[str, ...]] = ("folder",)

    folder: Path
    """Folder with analysis/, evaluations/, runs/, probe.json, cost.json."""
    out: Path | None = None
    """Folder to write. Default: FOLDER/report."""
    title: str = "RecurTrace report"
    """Heading of the page."""
    overwrite: bool = Field(default=False, exclude=True)
    """Write into a folder that holds something other than a report."""


@stage(ReportSettings)
def report(settings: ReportSettings) -> list[Path]:
    """Write Markdown, LaTeX, one self-contained page and the figures; returns what was written."""
    from recurtrace.report.render import report as run

    if not settings.folder.is_dir():  # before a folder for the report is made in it
        raise RecurTraceError(f"there is no folder {str(settings.folder)!r} to report on.")
    return run(settings.folder, settings.out or settings.folder / "report", settings.title, settings.overwrite)
