"""Which examples a stage works on: from a mixture or from tasks, by what they may be used for, sampled by seed."""

from collections.abc import Sequence
from pathlib import Path

from recurtrace.data.benchmarks import SUITES, Task, suite
from recurtrace.data.example import Example
from recurtrace.data.loading import find_task, load
from recurtrace.data.mixture import is_mixture, mixture_recipe, read_examples
from recurtrace.data.sampling import stratified
from recurtrace.data.synthetic import PAPER
from recurtrace.errors import RecurTraceError


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

    A source of a mixture that is there for training alone (C4, MetaMathQA, Orca-Math) is in no split: what is measured
    on the others says nothing of it. Naming it in `only`, the tasks of a mixture to take, brings it in.

    `count` is how many the caller will use; a generated or streamed task gives no more of these.
    """
    sizes = PAPER
    if is_mixture(data):
        recipe = mixture_recipe(Path(data))
        sources = [source.task for source in recipe.sources]
        wanted = only or [name for name in sources if split is None or "test" in find_task(name).splits]
        if not wanted:
            raise RecurTraceError(
                f"the sources of {data} are for training alone, so it has no {split} examples; name tasks instead."
            )
        if split != "test":
            return read_examples(Path(data), "train" if split == "train" else "heldout", wanted)
        tasks, sizes = [find_task(name) for name in wanted], recipe.sizes
    else:
        tasks = named_tasks(data)
        if split == "heldout":
            raise RecurTraceError(
                "held-out examples come from a mixture; pass the folder of one (`recurtrace data build`), or ask for "
                "the train or test split."
            )
    role = "test" if split == "test" else "train"
    limits = {task.name: count if task.endless and role == "train" else None for task in tasks}
    return [
        example
        for task in tasks
        for example in load(task.name, role, data_dir, limits[task.name], seed, sizes).examples
    ]


def named_tasks(names: str) -> list[Task]:
    """Tasks by name, and suites by the names that `recurtrace data list` prints, separated by commas."""
    found: dict[str, Task] = {}
    for part in (part.strip() for part in names.split(",")):
        as_suite = part.replace("-", "_")
        for task in suite(as_suite) if as_suite in SUITES else [find_task(part)]:
            found[task.name] = task
    return list(found.values())


def sample(examples: Sequence[Example], count: int | None, per_task: int | None, seed: int) -> list[Example]:
    """`per_task` of each task, and `count` of these in all, in a stratified order."""
    if per_task is not None:
        tasks = sorted({example.task for example in examples})
        parts = [stratified([e for e in examples if e.task == task], per_task, seed) for task in tasks]
        examples = [example for part in parts for example in part]
    return stratified(examples, len(examples) if count is None else count, seed)


def name_of(data: str) -> str:
    """How results call their data: the name of a mixture's folder, or the tasks."""
    return Path(data).resolve().name if is_mixture(data) else data
