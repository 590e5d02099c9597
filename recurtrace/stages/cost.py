"""What each depth costs on this machine."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt, model_validator

from recurtrace.stages.settings import OnDevice, Place, stage

if TYPE_CHECKING:
    from recurtrace.records import CostReport

logger = logging.getLogger(__name__)

MOST_TOKENS = 2**22
"""In one forward pass; more is a typing error that no machine has the memory for."""


class CostSettings(OnDevice):
    model: Place
    """Folder or hub id of a looped model."""
    out: Path | None = None
    """JSON file to write; `report` reads cost.json."""
    tokens: PositiveInt | None = None
    """Length of the input. Default: 128, or the positions of the base if it has fewer."""
    batch_size: PositiveInt = 1
    """Rows of the input."""
    turns: PositiveInt = 20
    """How many times each depth is run."""

    @model_validator(mode="after")
    def _check(self) -> "CostSettings":
        if (size := self.batch_size * (self.tokens or 1)) > MOST_TOKENS:
            raise ValueError(f"the input has {size:,} tokens, more than {MOST_TOKENS:,}; lower tokens or batch_size")
        return self


@stage(CostSettings)
def cost(settings: CostSettings) -> "CostReport":
    """Time every depth against the unlooped base, in one run, beside its FLOPs."""
    from recurtrace.assets import place
    from recurtrace.evaluation.runtime import measure_cost
    from recurtrace.model.loading import load_looped
    from recurtrace.model.positions import longest_input, positions_of
    from recurtrace.records import CostReport, refuse_other_file, write_record

    if settings.out is not None:
        refuse_other_file(settings.out, CostReport)
    model, _ = load_looped(place(settings.model), **settings.loading)
    tokens, positions = longest_input(model.config, settings.tokens, 128, extrapolate=True), positions_of(model.config)
    if positions is not None and tokens > positions:
        logger.warning("%d tokens are measured, which is beyond the %d positions of the base.", tokens, positions)
    found = measure_cost(model, tokens, settings.batch_size, settings.turns)
    found = replace(found, command=settings.command())
    if settings.out is not None:
        write_record(settings.out, found)
    return found
