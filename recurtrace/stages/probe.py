"""Which layers of a base to loop."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from recurtrace.errors import RecurTraceError
from recurtrace.recipe import Seed, Switch
from recurtrace.stages.settings import Depths, OnDevice, Place, stage

if TYPE_CHECKING:
    from recurtrace.records import BlockProbe


class ProbeSettings(OnDevice):
    arguments: ClassVar[tuple[str, ...]] = ("base",)

    base: Place
    """Hub id or folder of the base model."""
    data: Place = "c4"
    """Folder of a mixture, or tasks and suites of `recurtrace data list`, separated by commas."""
    data_dir: Path | None = None
    """Folder with the datasets, instead of the hub."""
    out: Path = Path("probe.json")
    """JSON file to write; the figure is written beside it."""
    inputs: PositiveInt = 10_000
    """Largest number of inputs to average over."""
    compare: NonNegativeInt = 256
    """Examples to compare windows on; 0 ranks windows by distance instead."""
    loop_num_layers: PositiveInt = 3
    """Layers in the block."""
    windows: Depths = []
    """First layers of the windows to compare, separated by commas: 15,18,27. Default: every window inside the span."""
    max_length: PositiveInt | None = None
    """Longest input, in tokens. Default: 512, or the positions of the base if it has fewer."""
    extrapolate: Switch = False
    """Allow a longer max_length than the base has positions."""
    batch_size: PositiveInt = 16
    """Inputs in one forward pass."""
    seed: Seed = 0
    """Seed of the sample."""
    recipe: Path | None = None
    """Training recipe: also train the best windows for a short stage 1, and rank them by held-out loss."""
    train_windows: int = Field(default=3, ge=2)
    """How many windows to train."""


@stage(ProbeSettings)
def probe(settings: ProbeSettings) -> "BlockProbe":
    """Measure, compare, and write the result with its figure."""
    from recurtrace.assets import place
    from recurtrace.data.selection import gather, name_of
    from recurtrace.model.base import load_base, portable_name, read_base_config
    from recurtrace.model.loading import find_device
    from recurtrace.model.positions import longest_input
    from recurtrace.model.tokenizer import load_tokenizer
    from recurtrace.probe.examples import probe_block
    from recurtrace.probe.window_trial import try_windows
    from recurtrace.records import BlockProbe, refuse_other_file
    from recurtrace.report.figures import draw_probe
    from recurtrace.training.recipe import TrainRecipe

    base, trust = place(settings.base), {"trust_remote_code": settings.trust_remote_code}
    changes = [f"model={base}", f"trust_remote_code={settings.trust_remote_code}"]
    trial = TrainRecipe.read_with(settings.recipe, changes) if settings.recipe is not None else None
    refuse_other_file(settings.out, BlockProbe)
    figure = settings.out.with_suffix(".png")
    if figure.exists() and not settings.out.exists():
        raise RecurTraceError(
            f"{str(figure)!r} exists, where the figure would be written; choose another --out, or move it away."
        )
    config = read_base_config(base, **trust)  # refused before gigabytes are read
    max_length = longest_input(config, settings.max_length, 512, settings.extrapolate)
    tokenizer = load_tokenizer(base, **trust)
    examples = gather(settings.data, settings.data_dir, settings.inputs + settings.compare, settings.seed)
    model, fingerprint = load_base(base, dtype=settings.dtype, device_map={"": find_device(settings.device)}, **trust)
    found = probe_block(
        model,
        tokenizer,
        examples,
        inputs=settings.inputs,
        compare=min(settings.compare, len(examples) // 5),
        loop_num_layers=settings.loop_num_layers,
        starts=settings.windows,
        max_length=max_length,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    found = replace(found, model=portable_name(base), base_fingerprint=fingerprint, data=name_of(settings.data))
    if trial is not None:
        found = try_windows(found, trial, len(settings.windows) or settings.train_windows)
    found.write(settings.out)
    draw_probe(settings.out, figure)
    return found
