"""What evaluation writes: one JSON line for an item.

A folder holds `evaluation.json` (model, data, settings) and `records*.jsonl`, one file for each process.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from recurtrace.errors import RecurTraceError
from recurtrace.files import load_manifest
from recurtrace.records.record import problem

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
class Item:
    """Which example a measurement is of."""

    id: str
    task: str
    bucket: str
    seed: int
    """Evaluation seed it belongs to; -1 where there are none."""
    prompt_hash: str
    reference: str
    answer_tokens: int


@dataclass(frozen=True)
class ItemRecord(Item):
    results: list[DepthResult]
    continue_probs: list[float]
    """The head's, as far as it ran; empty without a head."""

    def at(self, loops: str) -> DepthResult:
        return next(result for result in self.results if result.loops == loops)

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class EvaluationManifest:
    """The part of `evaluation.json` that is read later; the file says more."""

    items: int
    """Items that were to be measured."""
    loops: list[str] = field(default_factory=list)
    """Depths that were asked for: numbers, "adaptive", "k"."""
    model: str = ""
    """Folder or hub id."""
    kind: str = ""
    """"looped", "base" or "adapter"."""
    command: str = ""
    """What was typed for it."""


@dataclass(frozen=True)
class Evaluation:
    """A model's records, and what they were made with."""

    manifest: EvaluationManifest
    records: list[ItemRecord]


def read_records(file: Path) -> Iterator[ItemRecord]:
    """The whole lines of a file; a last line that an interruption cut short is left out."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                fields = json.loads(line)
                results = [DepthResult(**result) for result in fields.pop("results")]
                yield ItemRecord(**fields, results=results)
            except (ValueError, TypeError, KeyError) as error:
                raise RecurTraceError(
                    f"line {number} of {file} is not a record; run `recurtrace evaluate` again."
                ) from error


def read_evaluation(folder: Path) -> Evaluation:
    """A finished evaluation; its items come in the order of their ids, whichever process measured them."""
    found = load_manifest(folder / MANIFEST, "evaluation", "recurtrace evaluate")
    try:
        manifest = TypeAdapter(EvaluationManifest).validate_python(found)
    except ValidationError as error:
        raise RecurTraceError(
            f"{folder / MANIFEST} is not an evaluation ({problem(error)}); make one with `recurtrace evaluate`."
        ) from error
    records = [record for file in sorted(folder.glob("records*.jsonl")) for record in read_records(file)]
    if len(records) != manifest.items:
        raise RecurTraceError(
            f"{str(folder)!r} has {len(records)} of {manifest.items} items; run `recurtrace evaluate` again."
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
