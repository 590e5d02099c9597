"""Checkpoints of a run: whole or not there, and one that was damaged later is passed over."""

import json
import logging
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from transformers.trainer_pt_utils import safe_globals

from recurtrace.errors import RecurTraceError
from recurtrace.records import BUDGET_FILE

logger = logging.getLogger(__name__)

_FILES = "files.json"
_LARGEST = 2**32
"""Bytes of a file that is hashed; a larger one is known by its size and by whether it can be opened."""
_DAMAGED = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    EOFError,
    RecursionError,
    pickle.PickleError,
    SafetensorError,
)


def publish(staged: Path, checkpoint: Path) -> None:
    """Give a finished checkpoint its name, with sizes and hashes of its files."""
    files = [file for file in staged.rglob("*") if file.is_file() and file != staged / _FILES]
    facts = {str(file.relative_to(staged)): _facts(file) for file in files}
    (staged / _FILES).write_text(json.dumps(facts))
    shutil.rmtree(checkpoint, ignore_errors=True)
    os.replace(staged, checkpoint)


def has_trained(run: Path) -> bool:
    """Whether there is anything to lose in the folder of a run."""
    return (run / BUDGET_FILE).is_file() or any(run.glob("checkpoint-*"))


def last_whole_checkpoint(run: Path) -> Path | None:
    """The newest whose files are as they were written and can be opened without running anything of theirs."""
    found = {int(path.name.rpartition("-")[2]): path for path in run.glob("checkpoint-[0-9]*") if path.is_dir()}
    for step in sorted(found, reverse=True):
        if (damaged := _damaged_file(found[step])) is None:
            return found[step]
        logger.warning("%s is damaged (%s), so an earlier checkpoint is resumed.", found[step], damaged)
    if found:
        raise RecurTraceError(
            f"every checkpoint in {str(run)!r} is damaged, the newest in {_damaged_file(found[max(found)])}; remove "
            "them to train from the beginning."
        )
    return None


def _damaged_file(checkpoint: Path) -> str | None:
    if (checkpoint / _FILES).is_file():  # an older version wrote none, or sizes alone
        try:
            facts = json.loads((checkpoint / _FILES).read_text(encoding="utf-8"))
            changed = [name for name, was in facts.items() if not _is_same(checkpoint / name, was)]
        except (ValueError, AttributeError, RecursionError):
            return _FILES
        if changed:
            return changed[0]
    return next((file.name for file in sorted(checkpoint.iterdir()) if not _opens(file)), None)


def _facts(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    return {"bytes": size, "xxh3": _hash(file) if size <= _LARGEST else None}


def _is_same(file: Path, was: Any) -> bool:
    if not file.is_file():
        return False
    if isinstance(was, int):
        return file.stat().st_size == was
    return isinstance(was, dict) and file.stat().st_size == was.get("bytes") and was.get("xxh3") in (None, _hash(file))


def _hash(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while part := opened.read(2**24):
            digest.update(part)
    return digest.hexdigest()


def _opens(file: Path) -> bool:
    """Whether a file holds what its name says; of tensors only the list is read."""
    try:
        if file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
        elif file.suffix == ".safetensors":
            with safe_open(file, framework="pt"):
                pass
        elif file.suffix in (".pt", ".pth"):
            with safe_globals():
                torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except _DAMAGED:
        return False
    return True
