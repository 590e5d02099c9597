"""Which examples a stage works on: from a mixture or from tasks, by what they may be used for, sampled by seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from recurtrace.data.benchmarks import SUITES, Task, suite
from recurtrace.data.example import Example
from recurtrace.data.loading import find_task, load
from recurtrace.data.mixture import is_mixture, mixture_recipe, read_examples
from recurtrace.data.sampling import stratified
from recurtrace.data.synthetic import PAPER
from recurtrace.errors import RecurTraceError

OWN_HELDOUT = 5
"""Of a task that no mixture trains on, one training example in so many is held out."""


def gather(
    data: str,
    data_dir: Path | None = None,
    count: int | None = None,
    seed: int = 0,
    split: str | None = None,
    only: Sequence[str] = (),
) -> list[Example]:
    """Examples of a mixture's folder, or of tasks and suites (`a,b`), by what they may be used for.

    heldout: kept from training, which only a mixture knows. train: what may be trained on. test: the test of each task,
    at a mixture's own sizes. Left out, it is all of a mixture's heldout, or the tasks' train.

    A task in `only` that the mixture does not have, such as ARC-Challenge, gives its own training data, divided into
    train and heldout.

    A source of a mixture that is there for training alone (C4, MetaMathQA, Orca-Math) is in no split: what is measured
    on the others says nothing of it. Naming it in `only`, the tasks of a mixture to take, brings it in.

    `count` is how many the caller will use; a generated or streamed task gives no more of these.
    """
    sizes = PAPER
    if is_mixture(data):
        recipe = mixture_recipe(Path(data))
        rows = {source.name: source.row for source in recipe.sources}
        wanted = only or [name for name, row in rows.items() if split is None or "test" in row.splits]
        if not wanted:
            raise RecurTraceError(
                f"the sources of {data} are for training alone, so it has no {split} examples; name tasks instead."
            )
        if split != "test":
            kept: Literal["train", "heldout"] = "train" if split == "train" else "heldout"
            inside = [name for name in wanted if name in rows]
            found = read_examples(Path(data), kept, inside) if inside else []
            return found + [e for name in wanted if name not in rows for e in _divided(name, kept, data_dir)]
        tasks, sizes = [rows.get(name) or find_task(name) for name in wanted], recipe.sizes
    else:
        tasks = named_tasks(data)
        if unknown := [name for name in only if name not in [task.name for task in tasks]]:
            raise RecurTraceError(f"the data has no {unknown[0]}; it has {', '.join(task.name for task in tasks)}.")
        tasks = [task for task in tasks if task.name in only] if only else tasks
        if split == "heldout":
            raise RecurTraceError(
                "held-out examples come from a mixture; pass the folder of one (`recurtrace data build`), or ask for "
                "the train or test split."
            )
    role = "test" if split == "test" else "train"
    limits = {task.name: count if task.endless and role == "train" else None for task in tasks}
    return [
        example for task in tasks for example in load(task, role, data_dir, limits[task.name], seed, sizes).examples
    ]


def _divided(name: str, role: Literal["train", "heldout"], data_dir: Path | None) -> list[Example]:
    """A part of a task's training data, none of which stage 1 has seen."""
    if find_task(name).endless or "train" not in find_task(name).splits:
        raise RecurTraceError(f"the mixture has no {name}, and {name} has no training data of its own to hold out.")
    held_out = role == "heldout"
    examples = load(name, "train", data_dir).examples
    return [example for example in examples if (int(example.prompt_hash, 16) % OWN_HELDOUT == 0) == held_out]


def named_tasks(names: str) -> list[Task]:
    """Tasks by name, suites by the names that `recurtrace data list` prints, YAML files of own ones; with commas."""
    found: dict[str, Task] = {}
    for part in (part.strip() for part in names.split(",")):
        as_suite = part.replace("-", "_")
        for task in suite(as_suite) if as_suite in SUITES else [find_task(part)]:
            found[task.name] = task
    return list(found.values())


def sample(
    examples: Sequence[Example], count: int | None, per_task: int | Mapping[str, int] | None, seed: int
) -> list[Example]:
    """`per_task` of each task, one number or each its own, and `count` of these in all, in a stratified order."""
    if per_task is not None:
        tasks = sorted({example.task for example in examples})
        limits = per_task if isinstance(per_task, Mapping) else dict.fromkeys(tasks, per_task)
        parts = [stratified([e for e in examples if e.task == task], limits[task], seed) for task in tasks]
        examples = [example for part in parts for example in part]
    return stratified(examples, len(examples) if count is None else count, seed)


def name_of(data: str) -> str:
    """How results call their data: the name of a mixture's folder, or the tasks; an own one by its name."""
    if is_mixture(data):
        return Path(data).resolve().name
    parts = [part.strip() for part in data.split(",")]
    return ",".join(find_task(part).name if part.endswith((".yaml", ".yml")) else part for part in parts)
