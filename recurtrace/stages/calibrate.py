"""Threshold and floor of a head or a signal, chosen on held-out items."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from recurtrace.files import write_json
from recurtrace.halting.methods import SIGNALS
from recurtrace.recipe import Name
from recurtrace.stages.settings import Names, StageSettings, stage

if TYPE_CHECKING:
    from recurtrace.halting.calibrate import Calibration


class CalibrateSettings(StageSettings):
    model: Path
    """Folder of a looped model."""
    sweep: Path
    """Folder of a sweep of held-out items."""
    signal: str = Field(default="head", json_schema_extra={"choices": list(SIGNALS)})
    """The signal that stops the loop."""
    head: Name | None = None
    """Name of the head. Default: the model's own head."""
    tasks: Names = []
    """Use only these tasks of the sweep, separated by commas."""
    select: Literal["nll", "accuracy"] = "nll"
    """What must not get worse: choose the smallest mean depth that keeps the best held-out nll or accuracy."""
    min_depth: PositiveInt | None = None
    """Smallest depth (floor). Default: the fixed depth with the lowest held-out loss, or 1 with --mean-loops."""
    max_depth: PositiveInt = 16
    """Largest depth (budget)."""
    tolerance: NonNegativeFloat = 0.0
    """How much of it may be lost, in nats or as a share of items."""
    mean_loops: float | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    """A ration instead of --select: the threshold with which held-out items take at most so many loops in the mean."""

    @model_validator(mode="after")
    def _check(self) -> "CalibrateSettings":
        if self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, got {self.signal!r}")
        if self.head is not None and self.signal != "head":
            raise ValueError(f"--head belongs to --signal head, not to {self.signal}")
        if self.mean_loops is not None and (self.select != "nll" or self.tolerance):
            raise ValueError("--mean-loops is instead of --select and --tolerance; leave them out")
        return self

    @property
    def file(self) -> Path:
        return self.model / "calibration" / f"{self.head or self.signal}.json"


@dataclass(frozen=True)
class Calibrated:
    found: "Calibration"
    file: Path


@stage(CalibrateSettings)
def calibrate(settings: CalibrateSettings) -> Calibrated:
    """Choose them, and write them into the model's folder."""
    from recurtrace.assets import refuse_embedded
    from recurtrace.files import finish_writing, locked
    from recurtrace.model.base import read_looped_config

    refuse_embedded(settings.model)
    finish_writing(settings.model)
    read_looped_config(settings.model)  # there is one
    with locked(settings.model):
        return _calibrate(settings)


def _calibrate(settings: CalibrateSettings) -> Calibrated:
    from recurtrace.halting.calibrate import calibrate as run
    from recurtrace.halting.policies import needed_arrays, signal_values
    from recurtrace.halting.rule import StoppingRule
    from recurtrace.model.heads import change_head, read_head
    from recurtrace.stages.model_sweep import read_sweep_of

    own = read_head(settings.model, settings.head) if settings.signal == "head" else None
    arrays = ["loss", "correct", *needed_arrays(settings.signal, own)]
    measured = read_sweep_of(settings.model, settings.sweep, arrays, settings.tasks)
    found = run(
        measured,
        signal_values(measured, settings.signal, own),
        settings.signal,
        select=settings.select,
        min_depth=settings.min_depth,
        max_depth=settings.max_depth,
        tolerance=settings.tolerance,
        mean_loops=settings.mean_loops,
    )
    if own is not None:
        point = found.point
        rule = StoppingRule(point.threshold, point.min_depth, point.max_depth)
        change_head(settings.model, settings.head, own.settings.with_rule(rule))
    origin = {
        "data": measured.manifest.data,
        "tasks": settings.tasks,
        "examples_sha256": measured.manifest.examples_sha256,
        "command": settings.command(),
    }
    write_json(settings.file, {**asdict(found), **origin})
    return Calibrated(found, settings.file)
