"""Every way to choose a depth, side by side on the same items, and all that is said of it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from recurtrace.stages.settings import Names, StageSettings, stage

if TYPE_CHECKING:
    from recurtrace.records import Analysis


class CompareSettings(StageSettings):
    model: Path
    """Folder of a looped model, with the heads to compare."""
    heldout: Path
    """Folder of a sweep of held-out items, for thresholds and floors."""
    test: Path
    """Folder of a sweep of test items, with the same depths."""
    tasks: Names = []
    """Use only these tasks of the sweeps, separated by commas."""
    every_threshold: bool = False
    """Choose the thresholds of ACT and PonderNet on held-out items too, as the paper says of every method. Otherwise
    they stop where stopping is likelier than going on."""
    floor: PositiveInt | None = None
    """Smallest depth of every method that has none of its own. Default: the fixed depth with the lowest held-out
    loss."""
    max_depth: PositiveInt | None = None
    """Largest depth (budget) of every method. Default: the deepest loop of the sweeps."""
    out: Path | None = None
    """JSON file to write the analysis to; `report` reads it."""


@stage(CompareSettings)
def compare(settings: CompareSettings) -> "Analysis":
    """Compare what the model's folder has; the oracle is the one that its own head was trained on."""
    from recurtrace.evaluation.analysis import analyse
    from recurtrace.halting.distill import default_settings, training_of
    from recurtrace.halting.objectives import DistillRecipe
    from recurtrace.halting.oracle import Oracle
    from recurtrace.model.base import read_looped_config
    from recurtrace.model.heads import read_heads
    from recurtrace.records import Analysis, refuse_other_file, write_record
    from recurtrace.stages.model_sweep import read_sweep_of

    if settings.out is not None:
        refuse_other_file(settings.out, Analysis)
    config, heads = read_looped_config(settings.model), read_heads(settings.model)
    own = heads.get(None)
    training = training_of(own, config) if own is not None else DistillRecipe.check(default_settings(config), "config")
    heldout, test = (
        read_sweep_of(settings.model, folder, None, settings.tasks) for folder in (settings.heldout, settings.test)
    )
    found = analyse(
        heldout,
        test,
        heads,
        oracle=Oracle.of(training),
        supervised=training.probe_depths,
        every_threshold=settings.every_threshold,
        floor=settings.floor,
        max_depth=settings.max_depth,
    )
    found = replace(found, command=settings.command(), base=config.base_model_name_or_path or "")
    if settings.out is not None:
        write_record(settings.out, found)
    return found
