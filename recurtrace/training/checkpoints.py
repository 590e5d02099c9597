"""Checkpoints of a run: whole or not there, and one that was damaged later is passed over."""

import json
import logging
import os
import shutil
from pathlib import Path

from recurtrace.records import BUDGET_FILE

logger = logging.getLogger(__name__)

_SIZES = "files.json"


def publish(staged: Path, checkpoint: Path) -> None:
    """Give a finished checkpoint its name, with the sizes of its files."""
    sizes = {str(file.relative_to(staged)): file.stat().st_size for file in staged.rglob("*") if file.is_file()}
    (staged / _SIZES).write_text(json.dumps(sizes))
    shutil.rmtree(checkpoint, ignore_errors=True)
    os.replace(staged, checkpoint)


def has_trained(run: Path) -> bool:
    """Whether there is anything to lose in the folder of a run."""
    return (run / BUDGET_FILE).is_file() or any(run.glob("checkpoint-*"))


def last_whole_checkpoint(run: Path) -> Path | None:
    """The newest whose files have the sizes they were written with."""
    found = {int(path.name.rpartition("-")[2]): path for path in run.glob("checkpoint-[0-9]*") if path.is_dir()}
    for step in sorted(found, reverse=True):
        if (damaged := _damaged_file(found[step])) is None:
            return found[step]
        logger.warning("%s is damaged (%s), so an earlier checkpoint is resumed.", found[step], damaged)
    return None


def _damaged_file(checkpoint: Path) -> str | None:
    if not (checkpoint / _SIZES).is_file():  # of an older version
        return None
    try:
        sizes = json.loads((checkpoint / _SIZES).read_text())
    except ValueError:
        return _SIZES
    for name, size in sizes.items():
        file = checkpoint / name
        if not file.is_file() or file.stat().st_size != size:
            return name
    return None
