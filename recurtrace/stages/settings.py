"""What the settings of all stages have in common: they are checked, and know the command that would do the same."""

import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, PositiveInt

from recurtrace.depths import format_depths, parse_depths
from recurtrace.recipe import Recipe, Seed, Switch, with_changes

Result = TypeVar("Result")

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
EngineName = Literal["torch", "vllm"]


def _names(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _changes(value: Any) -> Any:
    return with_changes({}, value) if isinstance(value, list) else value


Place = Annotated[str, BeforeValidator(_text)]
"""A folder or a name: of a model on the hub, of tasks."""
Names = Annotated[list[str], BeforeValidator(_names)]
"""Names, separated by commas where they are one text."""
Depths = Annotated[list[int], BeforeValidator(parse_depths)]
Loops = Annotated[list[int | str], BeforeValidator(lambda value: parse_depths(value, words=("adaptive", "k")))]
Changes = Annotated[dict[str, Any], BeforeValidator(_changes)]
"""Fields of a recipe and their values, or a list of `field=value`."""


class StageSettings(Recipe):
    """Settings of a stage. Fields that are `arguments` stand without a name on the command line."""

    arguments: ClassVar[tuple[str, ...]] = ("model",)

    def command(self) -> str:
        """What to type for the same; settings that have their default are left out."""
        name = type(self).__name__.removesuffix("Settings").lower()
        words = ["recurtrace", *(["data", "build"] if name == "data" else [name])]
        words += [str(getattr(self, field)) for field in self.arguments]
        for field, value in self:
            if field not in (*self.arguments, "overwrite") and value != type(self).model_fields[field].get_default(
                call_default_factory=True
            ):
                words += _option(field, value)
        return shlex.join(words)


def _option(field: str, value: Any) -> list[str]:
    flag = f"--{field.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, dict):
        return [word for name, part in value.items() for word in (flag, f"{name}={part}")]
    return [flag, format_depths(value) if isinstance(value, list) else str(value)]


class OnDevice(StageSettings):
    """A stage that runs a model."""

    dtype: Dtype = "auto"
    """Type of the weights; auto keeps that of the checkpoint."""
    device: str = "auto"
    """Device, such as cpu or cuda; auto takes the best available."""
    trust_remote_code: bool = Field(default=False, exclude=True)
    """Run code that comes with the model; only for models whose authors you trust."""

    @property
    def loading(self) -> dict[str, Any]:
        """How its model is loaded."""
        return {name: getattr(self, name) for name in ("dtype", "device", "trust_remote_code")}


class OnExamples(OnDevice):
    """A stage that runs a model on examples."""

    data: Place
    """Folder of a mixture, or names of tasks and suites (`recurtrace data list`), separated by commas."""
    tasks: Names = []
    """Use only these tasks of a mixture, separated by commas."""
    data_dir: Path | None = None
    """Folder with the datasets, instead of the hub."""
    count: PositiveInt | None = None
    """Number of examples in all, stratified. Default: all of them."""
    per_task: PositiveInt | None = None
    """Number of examples of each task, stratified. Default: all of them."""
    batch_size: PositiveInt = 16
    """Examples in one batch."""
    max_length: PositiveInt | None = None
    """Longest example, in tokens. Default: 1,024, or the positions of the base if it has fewer."""
    extrapolate: Switch = False
    """Allow a longer max_length than the base has positions."""
    depth_limit: PositiveInt | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """Deepest loop that may be asked for. Default: eight times the largest depth of training, and at least 64."""
    seed: Seed = 0
    """Seed of the sample."""


def stage(settings_type: type[Any]) -> Callable[[Callable[[Any], Result]], Callable[..., Result]]:
    """Lets a stage be called with its settings whole, or with their fields as keywords."""

    def decorate(run: Callable[[Any], Result]) -> Callable[..., Result]:
        @wraps(run)
        def call(settings: Any = None, /, **fields: Any) -> Result:
            made = settings if settings is not None else settings_type.check(fields, f"the settings of {run.__name__}")
            return run(made)

        return call

    return decorate
