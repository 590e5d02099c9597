"""A halting head from a sweep, put into the model's folder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from recurtrace.errors import RecurTraceError
from recurtrace.halting.methods import METHODS, OBJECTIVES, OWN_OBJECTIVE
from recurtrace.recipe import Name
from recurtrace.stages.calibrate import CalibrateSettings
from recurtrace.stages.settings import Changes, Names, StageSettings, stage

if TYPE_CHECKING:
    from recurtrace.halting.objectives import DistillRecipe
    from recurtrace.halting.sweep_files import Sweep
    from recurtrace.model import RecurTraceConfig
    from recurtrace.records import HeadBudget


class DistillSettings(StageSettings):
    model: Path
    """Folder of a looped model."""
    sweep: Path
    """Folder of a sweep of this model; sweeps of test items are refused."""
    objective: str = Field(default=OWN_OBJECTIVE, json_schema_extra={"choices": list(OBJECTIVES)})
    """What the head is trained on."""
    head: Name | None = None
    """Name of the head. Default: the model's own head for the oracle, otherwise the objective's name."""
    tasks: Names = []
    """Use only these tasks of the sweep, separated by commas."""
    out: Path | None = None
    """Put the head into a copy of the model in this folder. Default: into the model itself."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace what --out already holds, instead of adding a head to it."""
    set: Changes = {}
    """Change a setting of the training, e.g. --set steps=400; may be repeated."""

    @field_validator("head")
    @classmethod
    def _free(cls, name: str | None) -> str | None:
        if name in {method.name for method in METHODS} - set(OBJECTIVES):
            raise ValueError("is the name of a method in the comparison; choose another name for the head")
        return name

    @property
    def head_name(self) -> str | None:
        return self.head if self.head or self.objective == OWN_OBJECTIVE else self.objective

    @property
    def folder(self) -> Path:
        return self.out or self.model


@dataclass(frozen=True)
class DistilledHead:
    name: str | None
    """None is the model's own."""
    folder: Path
    recipe: "DistillRecipe"
    examples: int
    history: list[float]
    """The loss of every step."""


@stage(DistillSettings)
def distill(settings: DistillSettings) -> DistilledHead:
    """Train a head; what it was trained on is kept with it."""
    from recurtrace.assets import refuse_embedded
    from recurtrace.files import finish_writing, locked
    from recurtrace.model.base import read_looped_config

    if clash := [field for field in ("objective",) if field in settings.set]:
        raise RecurTraceError(f"{clash[0]} has an option of its own; leave it out of --set.")
    refuse_embedded(settings.folder)
    finish_writing(settings.folder)
    config = read_looped_config(settings.model)
    with locked(settings.folder):
        return _distill(settings, config)


def _distill(settings: DistillSettings, config: "RecurTraceConfig") -> DistilledHead:
    from recurtrace.halting.distill import default_settings
    from recurtrace.halting.distill import distill as run
    from recurtrace.halting.objectives import DistillRecipe
    from recurtrace.halting.rule import StoppingRule
    from recurtrace.halting.sweep_files import STATES
    from recurtrace.model.heads import copy_model, write_head
    from recurtrace.records import HEAD_BUDGET_FILE, write_record
    from recurtrace.stages.model_sweep import read_sweep_of

    fields = {**default_settings(config), "objective": settings.objective, **settings.set}
    recipe = DistillRecipe.check(fields, "the settings of distill")
    arrays = ["loss", "correct", "token_accuracy", STATES[recipe.pooling]]
    measured = read_sweep_of(settings.model, settings.sweep, arrays, settings.tasks)
    made = run(measured, recipe)
    if settings.out is not None:
        copy_model(settings.model, settings.out, settings.overwrite)
    budget = min(config.loop_halting_max_depth, len(measured.depths))
    rule = StoppingRule(config.loop_halting_threshold, min(2, budget), budget)  # until it is calibrated
    head = replace(made.head, settings=made.head.settings.with_rule(rule))
    write_head(settings.folder, settings.head_name, head)
    CalibrateSettings(model=settings.folder, sweep=settings.sweep, head=settings.head_name).file.unlink(missing_ok=True)
    if settings.head_name is None:
        write_record(settings.folder / HEAD_BUDGET_FILE, _budget(measured, recipe, head.weight.numel()))
    return DistilledHead(settings.head_name, settings.folder, recipe, len(measured), made.history)


def _budget(sweep: "Sweep", recipe: "DistillRecipe", width: int) -> "HeadBudget":
    from recurtrace.records import HeadBudget

    examples = recipe.steps * min(recipe.batch_size, len(sweep))
    return HeadBudget(
        trained_parameters=width + 1,
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        examples=len(sweep),
        horizon=min(recipe.horizon, len(sweep.depths)),
        sweep_flops=sweep.manifest.flops,
        head_flops=6.0 * examples * len(sweep.depths) * width,
    )
