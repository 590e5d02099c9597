"""Packed training data: tokenised once, shuffled by seed, kept on disk, the same in every process and every resume.

A row is made of pieces. Usually a piece is an example; where questions about one text share that text, it is a piece
of its own, computed once, and each question is a piece that continues it.
"""

import json
import os
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from recurtrace.data.collate import IGNORED, Encoded, Encoder, Lengths
from recurtrace.data.example import End, Example
from recurtrace.errors import RecurTraceError
from recurtrace.files import writing

CHUNK = 1000
OPEN_PACKS = 64
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""How an Arrow stream ends that was written whole."""

_SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "lengths": pa.list_(pa.int32()),
        "prompt_lengths": pa.list_(pa.int32()),
        "begins": pa.list_(pa.int32()),
        "ids": pa.list_(pa.string()),
        "lesson": pa.int32(),
    }
)


def share_beginnings(encoded: Iterable[Encoded], max_length: int) -> Iterator[list[Encoded]]:
    """Neighbours that agree in at least half of their prompts, as pieces: the common beginning, then what follows it.

    The last token of a prompt is never shared, since what it predicts is the example's own.
    """
    group: list[Encoded] = []
    shared = 0
    for item in encoded:
        common = _common(group[0].input_ids, item.input_ids, min(shared, item.prompt_length - 1)) if group else 0
        size = sum(len(member.input_ids) for member in [*group, item]) - common * len(group)
        if 2 * common >= item.prompt_length and size <= max_length:
            group, shared = [*group, item], common
            continue
        if group:
            yield _pieces(group, shared)
        group, shared = [item], item.prompt_length - 1
    if group:
        yield _pieces(group, shared)


def _common(one: list[int], other: list[int], most: int) -> int:
    return next((i for i in range(most) if one[i] != other[i]), most)


def _pieces(group: list[Encoded], shared: int) -> list[Encoded]:
    if len(group) == 1:
        return group
    beginning = Encoded(group[0].input_ids[:shared], shared)
    return [beginning] + [
        Encoded(item.input_ids[shared:], item.prompt_length - shared, item.example, begins=shared) for item in group
    ]


def pack(units: Iterable[list[Encoded]], max_length: int) -> Iterator[list[Encoded]]:
    """Pieces that belong together put in rows of at most `max_length` tokens, as they come.

    Best fit among OPEN_PACKS rows: pieces go where they leave the least room, and the fullest row is let go.
    """
    open_packs: list[tuple[int, int, list[Encoded]]] = []  # room, number (which settles ties), members; sorted
    for number, unit in enumerate(units):
        size = sum(len(piece.input_ids) for piece in unit)
        if size > max_length:
            raise RecurTraceError(
                f"an example of {size} tokens does not fit in {max_length}; encode it to that length."
            )
        place = bisect_left(open_packs, (size, -1, []))
        room, first, members = open_packs.pop(place) if place < len(open_packs) else (max_length, number, [])
        insort(open_packs, (room - size, first, [*members, *unit]))
        if len(open_packs) > OPEN_PACKS:
            yield open_packs.pop(0)[2]
    yield from (members for _, _, members in sorted(open_packs, key=lambda row: row[1]))


def collate_packed(
    packs: Sequence[Sequence[Encoded]], max_length: int, pad_id: int, one_row: bool = False
) -> dict[str, Tensor]:
    """Rows of packed examples. Positions restart with every example: by them attention keeps examples apart.

    The rest of a row is filled up as one more sample without labels, so that every batch has the same shape. Flash
    attention looks for restarts in a batch of one row only, so for it all are put behind each other (`one_row`).
    """
    rows: dict[str, list[list[int]]] = {"input_ids": [], "position_ids": [], "labels": []}
    for members in packs:
        used = sum(len(member.input_ids) for member in members)
        rest = max_length - used
        rows["input_ids"].append([i for member in members for i in member.input_ids] + [pad_id] * rest)
        positions = [member.begins + i for member in members for i in range(len(member.input_ids))]
        rows["position_ids"].append([*positions, *range(rest)])
        # The first token of a piece has no loss: the last of the one before would have to predict it.
        labels = [label for member in members for label in [IGNORED, *member.labels[1:]]]
        rows["labels"].append(labels + [IGNORED] * rest)
    batch = {name: torch.tensor(values) for name, values in rows.items()}
    return {name: values.view(1, -1) for name, values in batch.items()} if one_row else batch


def shared_mask(packs: Sequence[Sequence[Encoded]], length: int) -> Tensor:
    """[b, 1, s, s] 0 where a token is seen: earlier ones of its own piece, and all of the beginning it continues."""
    seen = torch.zeros(len(packs), 1, length, length, dtype=torch.bool)
    for row, members in zip(seen[:, 0], packs, strict=True):
        start, beginning = 0, slice(0)
        for member in members:
            piece = slice(start, start + len(member.input_ids))
            row[piece, piece] = True
            if member.begins:
                row[piece, beginning] = True
            else:
                beginning = piece
            start = piece.stop
        row[start:, start:] = True
    seen &= torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)


def write_packed(
    examples: Iterable[Example],
    count: int | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    file: Path,
    share: bool = False,
    end: End = "text",
    lesson_of: Callable[[Sequence[Example]], int] | None = None,
) -> Lengths:
    """Tokenise and pack to an Arrow file, with `<file>.json` beside it saying what the maximum length did.

    `lesson_of` gives a number to examples that belong together; a row holds those of one number, and says which.
    """
    encoder = Encoder(tokenizer, max_length, end)
    progress = tqdm(examples, desc=f"tokenising {file.stem}", total=count, unit="example")
    with writing(file) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as out:
        encoded = (item for chunk in _chunks(progress) for item in encoder(chunk))
        units = share_beginnings(encoded, max_length) if share else ([item] for item in encoded)
        for lesson, of_lesson in _by_lesson(units, lesson_of):
            for rows in _chunks(pack(of_lesson, max_length)):
                out.write_table(pa.Table.from_pylist([_row(members, lesson) for members in rows], schema=_SCHEMA))
        if not encoder.lengths.kept:
            raise RecurTraceError(f"no example fits in {max_length} tokens; raise max_length.")
        with writing(file.with_suffix(".json")) as summary:
            facts = {"kept": encoder.lengths.kept, "cut": encoder.lengths.cut, "dropped": encoder.lengths.dropped}
            summary.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return encoder.lengths


def _by_lesson(
    units: Iterable[list[Encoded]], lesson_of: Callable[[Sequence[Example]], int] | None
) -> Iterator[tuple[int, Iterable[list[Encoded]]]]:
    """Units by their lessons, which are held in memory; without lessons, all of them as they come."""
    if lesson_of is None:
        yield 0, units
        return
    found: dict[int, list[list[Encoded]]] = {}
    for unit in units:
        found.setdefault(lesson_of([piece.example for piece in unit if piece.example]), []).append(unit)
    yield from sorted(found.items())


def open_packed(file: Path) -> datasets.Dataset:
    with file.open("rb") as opened:
        opened.seek(-len(_END), os.SEEK_END)
        if opened.read() != _END:  # rows that are missing at the end would go unnoticed
            raise ValueError(f"{file} is truncated")
    return datasets.Dataset.from_file(str(file))


class PackCollator:
    """Rows of the Arrow file as a batch; `names` says whose they are, for a batch that goes wrong."""

    def __init__(self, max_length: int, pad_id: int, one_row: bool = False, share: bool = False):
        self.max_length = max_length
        self.pad_id = pad_id
        self.one_row = one_row
        self.share = share

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        packs = [_members(row) for row in rows]
        batch: dict[str, Any] = collate_packed(packs, self.max_length, self.pad_id, self.one_row)
        if self.share:
            batch["attention_mask"] = shared_mask(packs, self.max_length)
        return batch | {"names": [row["ids"] for row in rows]}


def _row(members: Sequence[Encoded], lesson: int) -> dict[str, Any]:
    return {
        "input_ids": [token for member in members for token in member.input_ids],
        "lengths": [len(member.input_ids) for member in members],
        "prompt_lengths": [member.prompt_length for member in members],
        "begins": [member.begins for member in members],
        "ids": [member.example.id if member.example else "" for member in members],
        "lesson": lesson,
    }


def _members(row: Mapping[str, Any]) -> list[Encoded]:
    members, start = [], 0
    for length, prompt, begins in zip(row["lengths"], row["prompt_lengths"], row["begins"], strict=True):
        members.append(Encoded(row["input_ids"][start : start + length], prompt, begins=begins))
        start += length
    return members


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
