"""What each depth costs on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from recurtrace.stages.settings import OnDevice, Place, stage

if TYPE_CHECKING:
    from recurtrace.records import CostReport


class CostSettings(OnDevice):
    model: Place
    """Folder or hub id of a looped model."""
    out: Path | None = None
    """JSON file to write; `report` reads cost.json."""
    tokens: PositiveInt = 128
    """Length of the input."""
    batch_size: PositiveInt = 1
    """Rows of the input."""
    turns: PositiveInt = 20
    """How many times each depth is run."""


@stage(CostSettings)
def cost(settings: CostSettings) -> "CostReport":
    """Time every depth against the unlooped base, in one run, beside its FLOPs."""
    from recurtrace.assets import place
    from recurtrace.evaluation.runtime import measure_cost
    from recurtrace.model.loading import load_looped
    from recurtrace.records import write_record

    model, _ = load_looped(place(settings.model), device=settings.device, dtype=settings.dtype)
    found = measure_cost(model, settings.tokens, settings.batch_size, settings.turns)
    found = replace(found, command=settings.command())
    if settings.out is not None:
        write_record(settings.out, found)
    return found
