"""What evaluation writes and everything after it reads: one JSON line for an item. No torch here.

A folder holds `evaluation.json` (model, data, settings) and `records*.jsonl`, one file for each process.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recurtrace.errors import RecurTraceError
from recurtrace.files import load_manifest

MANIFEST = "evaluation.json"


@dataclass(frozen=True)
class DepthResult:
    """One item at one depth."""

    loops: str
    """What was asked for: a number, "adaptive", or "k"."""
    depth: int
    """Loops that were run."""
    nll: float
    correct: bool
    answer: str


@dataclass(frozen=True)
class ItemRecord:
    id: str
    task: str
    bucket: str
    seed: int
    """Evaluation seed the item belongs to; -1 where there are none."""
    prompt_hash: str
    reference: str
    answer_tokens: int
    results: list[DepthResult]
    continue_probs: list[float]
    """The head's, as far as it ran; empty without a head."""

    def at(self, loops: str) -> DepthResult:
        return next(result for result in self.results if result.loops == loops)

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Evaluation:
    """A model's records, and what they were made with."""

    manifest: dict[str, Any]
    records: list[ItemRecord]


def read_records(file: Path) -> Iterator[ItemRecord]:
    """The whole lines of a file; a last one that a kill cut short is left out."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                fields = json.loads(line)
                results = [DepthResult(**result) for result in fields.pop("results")]
                yield ItemRecord(**fields, results=results)
            except (ValueError, TypeError, KeyError) as error:
                raise RecurTraceError(f"line {number} of {file} is no record; evaluate again.") from error


def read_evaluation(folder: Path) -> Evaluation:
    """A finished evaluation; its items come in the order of their ids, whichever process measured them."""
    manifest = load_manifest(folder / MANIFEST, "evaluation", "recurtrace evaluate")
    records = [record for file in sorted(folder.glob("records*.jsonl")) for record in read_records(file)]
    if len(records) != manifest.get("items"):
        raise RecurTraceError(
            f"{str(folder)!r} has {len(records)} of {manifest.get('items')} items; run `recurtrace evaluate` again."
        )
    return Evaluation(manifest, sorted(records, key=lambda record: record.id))


def repaired(file: Path) -> list[ItemRecord]:
    """The records of an interrupted run, with a half-written last line taken off the file."""
    if not file.is_file():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        file.write_bytes(whole)
    return list(read_records(file))
