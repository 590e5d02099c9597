"""A model's accuracy and likelihood, item by item."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeInt, PositiveInt, model_validator

from recurtrace.errors import RecurTraceError
from recurtrace.stages.settings import Loops, OnExamples, Place, stage

if TYPE_CHECKING:
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
    head: str | None = None
    """Name of the halting head for adaptive depth. Default: the model's own head."""

    @model_validator(mode="after")
    def _check(self) -> "EvaluateSettings":
        if self.seeds and (self.count or self.per_task):
            raise ValueError("evaluation seeds have per_seed items each; leave out count and per_task")
        return self


@stage(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> "Evaluation":
    """Answer what is not answered yet, and return the records; every process of a launcher takes its share."""
    from recurtrace.assets import place
    from recurtrace.data.sampling import evaluation_seeds
    from recurtrace.data.selection import gather, name_of, sample
    from recurtrace.evaluation.evaluate import evaluate as run
    from recurtrace.model.loading import load_any
    from recurtrace.records import read_evaluation

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
        examples = sample(examples, settings.count, settings.per_task, seed)
    model, tokenizer, kind = load_any(place(settings.model), dtype=settings.dtype, device=settings.device)
    if kind != "looped" and settings.loops != [1]:
        raise RecurTraceError(f"{settings.model!r} has no loops; evaluate it with --loops 1.")
    run(
        model,
        tokenizer,
        examples,
        settings.out,
        settings.loops,
        seeds=numbers,
        head=settings.head,
        batch_size=settings.batch_size,
        max_length=settings.max_length,
        about={"model": settings.model, "kind": kind, "tasks": name_of(data), "split": settings.split, "seed": seed},
        command=settings.command(),
    )
    return read_evaluation(settings.out)
