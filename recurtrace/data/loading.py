"""Records into examples: from the hub through `datasets`, or from a folder in the same schema.

A folder holds `<org>__<name>/<config>/<split>.jsonl` for the hub dataset `<org>/<name>`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recurtrace.data import stories, synthetic
from recurtrace.data.benchmarks import TASKS, Record, Task
from recurtrace.data.example import Example
from recurtrace.data.synthetic import PAPER, TRAIN_ITEMS, Sizes
from recurtrace.errors import RecurTraceError

logger = logging.getLogger(__name__)


class MissingDataError(RecurTraceError):
    """The data of a task is not where it was looked for."""


@dataclass
class Loaded:
    """Examples of one task, and how many records gave none."""

    task: Task
    examples: list[Example]
    unusable: int = 0


def find_task(name: str) -> Task:
    if name not in TASKS:
        raise RecurTraceError(f"there is no task {name!r}; `recurtrace data list` shows all tasks.")
    return TASKS[name]


def load(
    name: str,
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
    if task.hub is None:
        items = _generated(name, split, limit if limit is not None else TRAIN_ITEMS, seed, sizes)
        return Loaded(task, list(tqdm(islice(items, limit), desc=name, disable=not progress, leave=False)))
    if split not in task.splits:
        raise RecurTraceError(f"{name} has no {split} split; it has {' and '.join(task.splits)}.")
    loaded = Loaded(task, [])
    records = _folder_records(task, split, data_dir) if data_dir is not None else _hub_records(task, split, revision)
    for index, record in enumerate(tqdm(records, desc=name, disable=not progress, leave=False)):
        if limit is not None and len(loaded.examples) >= limit:
            break
        if index == 0:
            _refuse_missing_columns(task, record)
        if task.hash_split and _is_held_out(record, task.hash_split) != (split == "test"):
            continue
        parts = task.read(record)
        if parts is None or not parts.answer.strip() or not parts.prompt.strip():
            loaded.unusable += 1
            continue
        loaded.examples.append(
            Example(
                id=f"{name}/{split}/{index}",
                task=name,
                prompt=parts.prompt,
                answer=parts.answer,
                choices=parts.choices,
                bucket=parts.bucket,
                aliases=parts.aliases,
                question=parts.asked,
            )
        )
    if not loaded.examples:
        raise RecurTraceError(f"the {split} split of {name} gave no example; check its files or its row in the table.")
    return loaded


def _generated(name: str, split: str, count: int, seed: int, sizes: Sizes) -> Iterator[Example]:
    if name in stories.QUESTIONS:
        if split == "test":
            return stories.evaluation_items(name, seed)
        names: stories.Split = "heldout" if split == "heldout" else "train"
        return (stories.item(name, names, index, seed) for index in range(count))
    if split == "train":
        return synthetic.training_items(name, count, seed, sizes)
    return synthetic.evaluation_items(name, seed, sizes=sizes)


def _folder_records(task: Task, split: str, data_dir: Path) -> Iterator[Record]:
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
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise RecurTraceError(f"line {number} of {file} is not JSON; correct or remove it.") from error


def _hub_records(task: Task, split: str, revision: str | None) -> Iterator[Record]:
    from datasets import load_dataset

    for config in task.configs:
        try:
            rows: Any = load_dataset(
                task.hub, config, split=task.splits[split], revision=revision, streaming=task.streamed
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MissingDataError(
                f"{task.hub} ({config}, {task.splits[split]}) could not be loaded from the hub: {reason} Go online, or "
                "pass --data-dir with a folder that holds it."
            ) from error
        yield from rows


def _refuse_missing_columns(task: Task, record: Record) -> None:
    if missing := [column for column in task.columns if column not in record]:
        raise RecurTraceError(
            f"records of {task.hub} lack {', '.join(missing)} (they have {', '.join(record)}); the dataset changed, "
            f"so adapt the row {task.name!r} in recurtrace/data/benchmarks.py."
        )


def _is_held_out(record: Record, one_in: int) -> bool:
    text = json.dumps(record, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) % one_in == 0
