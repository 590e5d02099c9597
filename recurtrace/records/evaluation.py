"""What evaluation writes: one JSON line for an item.

A folder holds `evaluation.json` (model, data, settings) and `records*.jsonl`, one file for each process.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from recurtrace.errors import RecurTraceError, brief
from recurtrace.files import Kind, load_manifest, writing
from recurtrace.records.record import problem

MANIFEST = "evaluation.json"
EVALUATION = Kind("evaluation", MANIFEST, ("records*.jsonl",), ("items", "loops"))


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

    @property
    def key(self) -> tuple[str, str]:
        """Measurements with the same key are of the same question."""
        return self.id, self.prompt_hash


@dataclass(frozen=True)
class ItemRecord(Item):
    results: list[DepthResult]
    continue_probs: list[float]
    """The head's, as far as it ran; empty without a head."""

    def at(self, loops: str) -> DepthResult:
        return next(result for result in self.results if result.loops == loops)

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


_RECORD = TypeAdapter(ItemRecord)


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
    base: str = ""
    """Hub id or folder of the base; evaluations of an older version do not say."""
    command: str = ""
    """What was typed for it."""


@dataclass(frozen=True)
class Measures:
    """Accuracy in percent and loss in nats, of a task or as the unweighted mean over tasks."""

    accuracy: float
    nll: float
    """Of one answer token."""


@dataclass(frozen=True)
class Evaluation:
    """A model's records, and what they were made with."""

    manifest: EvaluationManifest
    records: list[ItemRecord]
    seed: int | None = None
    """The model's training seed, where it stands in a study's folder seed-<n>."""

    @cached_property
    def tasks(self) -> dict[str, list[ItemRecord]]:
        """Records by task."""
        found: dict[str, list[ItemRecord]] = {}
        for record in self.records:
            found.setdefault(record.task, []).append(record)
        return dict(sorted(found.items()))

    @cached_property
    def measures(self) -> dict[str, dict[str, Measures]]:
        """By task and what was asked for. Items count alike for accuracy, answer tokens for the loss."""
        found: dict[str, dict[str, Measures]] = {}
        for task, records in self.tasks.items():
            results: dict[str, list[tuple[bool, float, int]]] = {}
            for record in records:
                for one in record.results:
                    results.setdefault(one.loops, []).append((one.correct, one.nll, max(1, record.answer_tokens)))
            found[task] = {}
            for asked, rows in results.items():
                accuracy = 100 * sum(right for right, _, _ in rows) / len(rows)
                nll = sum(nll * tokens for _, nll, tokens in rows) / sum(tokens for _, _, tokens in rows)
                found[task][asked] = Measures(accuracy, nll)
        return found


def items_hash(keys: Iterable[tuple[str, str]]) -> str:
    """Which items, whatever their order."""
    return hashlib.sha256("\0".join(f"{name} {prompt}" for name, prompt in sorted(keys)).encode()).hexdigest()


def read_records(file: Path) -> Iterator[ItemRecord]:
    """The whole lines of a file; a last line that an interruption cut short is left out."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield _RECORD.validate_python(json.loads(line))
            except (ValueError, RecursionError) as error:
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
    for record in records:
        # An item without a number of steps has no result at T = k.
        if missing := set(manifest.loops) - {"k"} - {result.loops for result in record.results}:
            raise RecurTraceError(
                f"the item {brief(record.id, 60)} in {str(folder)!r} was not measured at all of its depths (it lacks "
                f"{brief(', '.join(sorted(missing)), 60)}); run `recurtrace evaluate` again, into another folder."
            )
    return Evaluation(manifest, sorted(records, key=lambda record: record.id))


def whole_batches(file: Path, batches: Sequence[Sequence[str]]) -> list[bool]:
    """Which batches, each the ids of its items, are in the file of an interrupted run; nothing else stays in it.

    What goes is measured again in the batch it belongs to, so that the file ends as if there had been no interruption:
    half a line, half a batch, and what two processes of an older version wrote into one file.
    """
    content = file.read_bytes() if file.is_file() else b""
    found: dict[str, bytes] = {}
    for line in content.splitlines(keepends=True):
        try:
            found.setdefault(_RECORD.validate_python(json.loads(line)).id, line)
        except (ValueError, RecursionError):  # no record
            continue
    there = [all(item in found and found[item].endswith(b"\n") for item in batch) for batch in batches]
    kept = b"".join(found[item] for batch, whole in zip(batches, there, strict=True) if whole for item in batch)
    if kept != content:
        with writing(file) as temporary:
            temporary.write_bytes(kept)
    return there
