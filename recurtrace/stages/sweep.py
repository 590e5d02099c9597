"""Every depth of every example, measured once; heads, thresholds and comparisons are made from the files."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from recurtrace.stages.settings import Depths, OnExamples, Place, stage

if TYPE_CHECKING:
    from recurtrace.halting.sweep_files import SweepManifest


class SweepSettings(OnExamples):
    model: Place
    """Folder or hub id of a looped model."""
    out: Path
    """Folder to write."""
    split: Literal["heldout", "train", "test"] = "heldout"
    """Which examples: heldout (for thresholds), train (for heads) or test (only for comparing)."""
    depths: Depths = list(range(1, 17))
    """Depths to decode at: 1-16, or 1,2,4,8."""
    states: bool = True
    """Keep pooled states, which heads are trained on."""


@stage(SweepSettings)
def sweep(settings: SweepSettings) -> "SweepManifest":
    """Measure what is not measured yet."""
    from recurtrace.assets import place
    from recurtrace.data.selection import gather, name_of, sample
    from recurtrace.halting.sweep import sweep as run
    from recurtrace.model.loading import load_looped

    data, data_dir, seed = settings.data, settings.data_dir, settings.seed
    examples = gather(data, data_dir, settings.count or settings.per_task, seed, settings.split, settings.tasks)
    model, tokenizer = load_looped(place(settings.model), dtype=settings.dtype, device=settings.device)
    return run(
        model,
        tokenizer,
        sample(examples, settings.count, settings.per_task, seed),
        settings.out,
        settings.split,
        data=name_of(data),
        depths=settings.depths,
        batch_size=settings.batch_size,
        max_length=settings.max_length,
        states=settings.states,
    )
