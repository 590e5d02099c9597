"""Records into examples: from the hub through `datasets`, or from a folder in the same schema.

A folder holds `<org>__<name>/<config>/<split>.jsonl` for the hub dataset `<org>/<name>`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recurtrace.data import nested, stories, synthetic
from recurtrace.data.benchmarks import TASKS, Record, Task
from recurtrace.data.example import Example
from recurtrace.data.own import OwnTask
from recurtrace.data.synthetic import PAPER, TEST_ITEMS_PER_BUCKET, TRAIN_ITEMS, Sizes
from recurtrace.errors import RecurTraceError, brief, is_unicode
from recurtrace.hub import datasets_offline_if_unreachable

logger = logging.getLogger(__name__)


class MissingDataError(RecurTraceError):
    """The data of a task is not where it was looked for."""


@dataclass
class Loaded:
    """Examples of one task, and how many records gave none."""

    task: Task
    examples: list[Example]
    unusable: int = 0


def find_task(name: str | Task) -> Task:
    """A row of the table by its name, or a task of one's own by its YAML file."""
    if isinstance(name, Task):
        return name
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise RecurTraceError(f"there is no file {name!r} that describes a task.")
        return OwnTask.read(name).row
    if name not in TASKS:
        raise RecurTraceError(f"there is no task {name!r}; `recurtrace data list` shows all tasks.")
    return TASKS[name]


def load(
    name: str | Task,
    split: str,
    data_dir: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    sizes: Sizes = PAPER,
    revision: str | None = None,
    progress: bool = False,
) -> Loaded:
    """The examples of a task's `train`, `test` or own `heldout` split, in the order of its records.

    `seed` and `sizes` are a generated task's; `revision` is the commit of a hub dataset.
    """
    task = find_task(name)
    name = task.name
    if task.generated:
        items = _generated(name, split, limit if limit is not None else TRAIN_ITEMS, seed, sizes)
        return Loaded(task, list(tqdm(islice(items, limit), desc=name, disable=not progress, leave=False)))
    if split not in task.splits:
        raise RecurTraceError(f"{name} has no {split} split; it has {' and '.join(task.splits)}.")
    loaded = Loaded(task, [])
    if task.files:
        records = _own_records(task.files[split])
    else:
        records = _hub_records(task, split, revision) if data_dir is None else _folder_records(task, split, data_dir)
    for index, (where, record) in enumerate(tqdm(records, desc=name, disable=not progress, leave=False)):
        if limit is not None and len(loaded.examples) >= limit:
            break
        if not isinstance(record, Mapping):
            raise RecurTraceError(f"{where} is not a record with fields; correct or remove it.")
        if index == 0:
            _refuse_missing_columns(task, record)
        if task.hash_split and _is_held_out(record, task.hash_split) != (split == "test"):
            continue
        try:
            example = _example(task, f"{name}/{split}/{index}", record)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RecurTraceError(
                f"{where} has a field that cannot be read as {name} ({type(error).__name__}: {brief(error, 100)}); "
                "correct or remove it."
            ) from error
        if example is None:
            loaded.unusable += 1
        else:
            loaded.examples.append(example)
    if not loaded.examples:
        raise RecurTraceError(f"the {split} split of {name} gave no example; check its files or its row in the table.")
    return loaded


def _example(task: Task, name: str, record: Record) -> Example | None:
    """What a record asks; None where it holds no usable answer. Fields of another kind than `read` expects raise."""
    parts = task.read(record)
    if parts is None or not parts.answer.strip() or not parts.prompt.strip():
        return None
    texts = (parts.prompt, parts.answer, parts.bucket, *parts.choices, *parts.aliases)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("not a text")
    if not all(map(is_unicode, texts)):
        raise ValueError("half of a surrogate pair")
    return Example(
        id=name,
        task=task.name,
        prompt=parts.prompt,
        answer=parts.answer,
        choices=parts.choices,
        bucket=parts.bucket,
        aliases=parts.aliases,
        question=parts.asked,
        **task.marks,
    )


_TOLD = {**dict.fromkeys(stories.QUESTIONS, stories), nested.TASK: nested}
"""Generated tasks with held-out items of their own; the others are the paper's."""


def _generated(name: str, split: str, count: int, seed: int, sizes: Sizes) -> Iterator[Example]:
    if split == "test":
        return _test_items(name, seed, TEST_ITEMS_PER_BUCKET, sizes)
    if split == "heldout":
        return (_TOLD[name].item(name, "heldout", index, seed, sizes=sizes) for index in range(count))
    return _TOLD.get(name, synthetic).training_items(name, count, seed, sizes)


def _test_items(name: str, seed: int, per_bucket: int, sizes: Sizes) -> Iterator[Example]:
    return _TOLD.get(name, synthetic).evaluation_items(name, seed, per_bucket, sizes)


def few_of_each_bucket(name: str, count: int, seed: int = 0, sizes: Sizes = PAPER) -> dict[str, list[Example]]:
    """The first test items of a generated task, by difficulty, the easiest first."""
    found: dict[str, list[Example]] = {}
    for example in _test_items(name, seed, count, sizes):
        found.setdefault(example.bucket, []).append(example)
    return found


def _folder_records(task: Task, split: str, data_dir: Path) -> Iterator[tuple[str, Any]]:
    if not data_dir.is_dir():
        raise RecurTraceError(f"the data folder {str(data_dir)!r} does not exist.")
    home = data_dir / str(task.hub).replace("/", "__")
    files = [home / config / f"{task.splits[split]}.jsonl" for config in task.configs]
    if split in task.folders:
        files = sorted(home.glob(f"{task.folders[split]}.jsonl")) or files
    missing = [file for file in files if not file.is_file()]
    if missing == files:
        raise MissingDataError(
            f"the {split} data of {task.name} should be in {str(files[0])!r}, which does not exist; put it "
            "there, or leave out --data-dir to load from the hub."
        )
    for file in missing:
        logger.warning("%s does not exist; %s continues without it.", file, task.name)
    for file in (file for file in files if file not in missing):
        yield from json_lines(file)


def _own_records(file: Path) -> Iterator[tuple[str, Any]]:
    if not file.is_file():
        raise MissingDataError(f"there is no file {str(file)!r}; correct file or test of the task.")
    yield from json_lines(file)


def json_lines(file: Path) -> Iterator[tuple[str, Any]]:
    """What each line of a file holds, with the words that name the line."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"line {number} of {file}"
            try:
                yield where, json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise RecurTraceError(f"{where} is not UTF-8; correct or remove it.") from error
            except (ValueError, RecursionError) as error:
                raise RecurTraceError(f"{where} is not JSON; correct or remove it.") from error


def _hub_records(task: Task, split: str, revision: str | None) -> Iterator[tuple[str, Any]]:
    for config in task.configs:
        try:
            with datasets_offline_if_unreachable():
                rows = _load_from_hub(task, config, task.splits[split], revision)
        except (OSError, ValueError, RuntimeError) as error:
            reason = brief(error) or type(error).__name__
            raise MissingDataError(
                f"{task.hub} ({config}, {task.splits[split]}) could not be loaded from the hub: {reason} Go online, or "
                "pass --data-dir with a folder that holds it."
            ) from error
        yield from ((f"row {number} of {task.hub} ({config})", row) for number, row in enumerate(rows))


def _load_from_hub(task: Task, config: str, split: str, revision: str | None) -> Any:
    """A split; of a dataset that is a script, which `datasets` no longer runs, the hub's own conversion to Parquet."""
    from datasets import load_dataset

    try:
        return load_dataset(task.hub, config, split=split, revision=revision, streaming=task.streamed)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        converted = f"hf://datasets/{task.hub}@refs%2Fconvert%2Fparquet/{config}/{split}/*.parquet"
        return load_dataset("parquet", data_files=converted, split="train", streaming=task.streamed)


def _refuse_missing_columns(task: Task, record: Record) -> None:
    if missing := [column for column in task.columns if column not in record]:
        if task.files:
            raise RecurTraceError(
                f"records of {task.name} lack {', '.join(missing)} (they have {brief(', '.join(record))}); correct "
                "prompt, answer or bucket of the task."
            )
        raise RecurTraceError(
            f"records of {task.hub} lack {', '.join(missing)} (they have {', '.join(record)}); the dataset changed, "
            f"so adapt the row {task.name!r} in recurtrace/data/benchmarks.py."
        )


def _is_held_out(record: Record, one_in: int) -> bool:
    text = json.dumps(record, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) % one_in == 0
