"""A model's accuracy and likelihood, item by item."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from recurtrace.errors import RecurTraceError
from recurtrace.stages.settings import EngineName, Loops, OnExamples, Place, stage

if TYPE_CHECKING:
    from recurtrace.data.example import Example
    from recurtrace.records import Evaluation


class EvaluateSettings(OnExamples):
    model: Place
    """A looped model, a base, a fine-tuned base or a PEFT adapter."""
    out: Path
    """Folder to write."""
    loops: Loops = [1, 2, 4, 6, 8]
    """Depths, separated by commas: numbers, ranges, adaptive, or k (as many loops as the problem has steps)."""
    split: Literal["test", "heldout"] = "test"
    """Which items: test or heldout."""
    seeds: NonNegativeInt = 0
    """Number of disjoint evaluation seeds to divide each task into; 0 for none."""
    per_seed: PositiveInt = 300
    """Items of each task in one evaluation seed."""
    sampled: bool = False
    """Take of each task as many items as the paper's evaluation does (`recurtrace data list`), instead of per_task."""
    engine: EngineName = "torch"
    """What runs the model: torch, or vllm, for looped models."""
    head: str | None = None
    """Name of the halting head for adaptive depth. Default: the model's own head."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace what the folder already holds."""

    @model_validator(mode="after")
    def _check(self) -> "EvaluateSettings":
        if self.seeds and (self.count or self.per_task):
            raise ValueError("evaluation seeds have per_seed items each; leave out count and per_task")
        if self.sampled and (self.seeds or self.per_task):
            raise ValueError("sampled says how many items of each task; leave out seeds and per_task")
        return self


@stage(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> "Evaluation":
    """Answer what is not answered yet, and return the records; every process of a launcher takes its share."""
    from recurtrace.assets import place
    from recurtrace.data.counts import sample_sizes
    from recurtrace.data.sampling import evaluation_seeds
    from recurtrace.data.selection import gather, name_of, sample
    from recurtrace.evaluation.evaluate import evaluate as run
    from recurtrace.model.loading import load_any
    from recurtrace.records import read_evaluation
    from recurtrace.stages.engines import offline_model

    data, data_dir, seed = settings.data, settings.data_dir, settings.seed
    examples = gather(data, data_dir, settings.count or settings.per_task, seed, settings.split, settings.tasks)
    numbers = None
    if settings.seeds:
        numbered = []
        for task in sorted({example.task for example in examples}):
            own = [example for example in examples if example.task == task]
            groups = evaluation_seeds(own, settings.seeds, settings.per_seed, seed)
            numbered += [(example, number) for number, group in enumerate(groups) for example in group]
        examples, numbers = [example for example, _ in numbered], [number for _, number in numbered]
    else:
        per_task = sample_sizes(examples) if settings.sampled else settings.per_task
        examples = sample(examples, settings.count, per_task, seed)
    about = {"model": settings.model, "tasks": name_of(data), "split": settings.split, "seed": seed}
    record = partial(
        run,
        examples=examples,
        out=settings.out,
        loops=settings.loops,
        seeds=numbers,
        head=settings.head,
        max_length=settings.max_length,
        extrapolate=settings.extrapolate,
        command=settings.command(),
        overwrite=settings.overwrite,
    )
    if settings.engine == "vllm":
        with offline_model(
            settings.model, settings, _deepest(settings.loops, examples), settings.loops, settings.head
        ) as served:
            at_once = 32 * settings.batch_size  # vLLM makes batches of its own of them
            record(served, served.tokenizer, batch_size=at_once, about={**about, "kind": "looped"})
    else:
        limit: dict[str, Any] = {"loop_depth_limit": settings.depth_limit} if settings.depth_limit else {}
        model, tokenizer, kind = load_any(place(settings.model), **settings.loading, **limit)
        if kind != "looped" and settings.loops != [1]:
            raise RecurTraceError(f"{settings.model!r} has no loops; evaluate it with --loops 1.")
        record(model, tokenizer, batch_size=settings.batch_size, about={**about, "kind": kind})
    return read_evaluation(settings.out)


def _deepest(loops: Sequence[int | str], examples: "Sequence[Example]") -> int:
    """The deepest of the depths that are known before the model is asked."""
    from recurtrace.evaluation.evaluate import steps_of

    steps = [steps_of(example) or 1 for example in examples] if "k" in loops else []
    return max([1, *(depth for depth in loops if isinstance(depth, int)), *steps])
