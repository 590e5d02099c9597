"""Every depth of every example, measured once; heads, thresholds and comparisons are made from the files."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from recurtrace.stages.settings import Depths, EngineName, OnExamples, Place, stage

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
    engine: EngineName = "torch"
    """What runs the model: torch, or vllm, with --no-states and without entropy and kl."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace what the folder already holds."""

    @model_validator(mode="after")
    def _check(self) -> "SweepSettings":
        if self.engine == "vllm" and self.states:
            raise ValueError("vLLM gives no pooled states; pass --no-states, or sweep with the torch engine")
        return self


@stage(SweepSettings)
def sweep(settings: SweepSettings) -> "SweepManifest":
    """Measure what is not measured yet."""
    from recurtrace.assets import place
    from recurtrace.data.selection import gather, name_of, sample
    from recurtrace.halting.sweep import sweep as run
    from recurtrace.model.loading import load_looped
    from recurtrace.stages.engines import offline_model

    data, data_dir, seed = settings.data, settings.data_dir, settings.seed
    examples = gather(data, data_dir, settings.count or settings.per_task, seed, settings.split, settings.tasks)
    record = partial(
        run,
        examples=sample(examples, settings.count, settings.per_task, seed),
        out=settings.out,
        split=settings.split,
        data=name_of(data),
        depths=settings.depths,
        max_length=settings.max_length,
        extrapolate=settings.extrapolate,
        states=settings.states,
        overwrite=settings.overwrite,
    )
    if settings.engine == "vllm":
        with offline_model(settings.model, settings, max(settings.depths)) as served:
            return record(served, served.tokenizer, batch_size=32 * settings.batch_size)  # it makes batches of its own
    limit: dict[str, Any] = {"loop_depth_limit": settings.depth_limit} if settings.depth_limit else {}
    model, tokenizer = load_looped(place(settings.model), **settings.loading, **limit)
    return record(model, tokenizer, batch_size=settings.batch_size)
