"""The training mixture, from its recipe."""

from pathlib import Path
from typing import Any, ClassVar

from recurtrace.stages.settings import StageSettings, stage


class DataSettings(StageSettings):
    arguments: ClassVar[tuple[str, ...]] = ()

    recipe: Path
    """Recipe of the mixture: a YAML file, or the name of a shipped recipe (`recurtrace recipes list`)."""
    out: Path
    """Folder to write."""
    data_dir: Path | None = None
    """Folder with the datasets, instead of the hub."""
    skip_missing: bool = False
    """Leave out sources and tests that cannot be found, and list them."""
    overwrite: bool = False
    """Replace the mixture that the folder already holds."""


@stage(DataSettings)
def data(settings: DataSettings) -> dict[str, Any]:
    """Build what is not built yet; returns the manifest."""
    from recurtrace.data.mixture import MixtureRecipe, build

    recipe = MixtureRecipe.read(settings.recipe)
    return build(recipe, settings.out, settings.data_dir, settings.skip_missing, settings.overwrite)
