"""Packed training data: tokenised once, shuffled by seed, kept on disk, the same in every process and every resume."""

import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.files import writing

CHUNK = 1000
OPEN_PACKS = 64

_SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "lengths": pa.list_(pa.int32()),
        "prompt_lengths": pa.list_(pa.int32()),
        "ids": pa.list_(pa.string()),
    }
)


def pack(encoded: Iterable[Encoded], max_length: int) -> Iterator[list[Encoded]]:
    """Examples put together in rows of at most `max_length` tokens, as they come.

    Best fit among OPEN_PACKS rows: an example goes where it leaves the least room, and the fullest row is let go.
    """
    open_packs: list[tuple[int, int, list[Encoded]]] = []  # room, number (which settles ties), members; sorted
    for number, item in enumerate(encoded):
        size = len(item.input_ids)
        if size > max_length:
            raise RecurTraceError(
                f"an example of {size} tokens does not fit in {max_length}; encode it to that length."
            )
        place = bisect_left(open_packs, (size, -1, []))
        room, first, members = open_packs.pop(place) if place < len(open_packs) else (max_length, number, [])
        insort(open_packs, (room - size, first, [*members, item]))
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
        rows["position_ids"].append([i for member in members for i in range(len(member.input_ids))] + [*range(rest)])
        # The first token of an example has no loss: the last of the one before would have to predict it.
        labels = [label for member in members for label in [IGNORED, *member.labels[1:]]]
        rows["labels"].append(labels + [IGNORED] * rest)
    batch = {name: torch.tensor(values) for name, values in rows.items()}
    return {name: values.view(1, -1) for name, values in batch.items()} if one_row else batch


def write_packed(
    examples: Iterable[Example], count: int | None, tokenizer: PreTrainedTokenizerBase, max_length: int, file: Path
) -> Lengths:
    """Tokenise and pack to an Arrow file, with `<file>.json` beside it saying what the maximum length did."""
    encoder = Encoder(tokenizer, max_length)
    progress = tqdm(examples, desc=f"tokenising {file.stem}", total=count, unit="example")
    with writing(file) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as out:
        packs = pack((item for chunk in _chunks(progress) for item in encoder(chunk)), max_length)
        for rows in _chunks(packs):
            out.write_table(pa.Table.from_pylist([_row(members) for members in rows], schema=_SCHEMA))
        if not encoder.lengths.kept:
            raise RecurTraceError(f"no example fits in {max_length} tokens; raise max_length.")
        with writing(file.with_suffix(".json")) as summary:
            facts = {"kept": encoder.lengths.kept, "cut": encoder.lengths.cut, "dropped": encoder.lengths.dropped}
            summary.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return encoder.lengths


def open_packed(file: Path) -> datasets.Dataset:
    return datasets.Dataset.from_file(str(file))


class PackCollator:
    """Rows of the Arrow file as a batch; `names` says whose they are, for a batch that goes wrong."""

    def __init__(self, max_length: int, pad_id: int, one_row: bool = False):
        self.max_length = max_length
        self.pad_id = pad_id
        self.one_row = one_row

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = collate_packed(
            [_members(row) for row in rows], self.max_length, self.pad_id, self.one_row
        )
        return batch | {"names": [row["ids"] for row in rows]}


def _row(members: Sequence[Encoded]) -> dict[str, Any]:
    return {
        "input_ids": [token for member in members for token in member.input_ids],
        "lengths": [len(member.input_ids) for member in members],
        "prompt_lengths": [member.prompt_length for member in members],
        "ids": [member.example.id if member.example else "" for member in members],
    }


def _members(row: Mapping[str, Any]) -> list[Encoded]:
    members, start = [], 0
    for length, prompt_length in zip(row["lengths"], row["prompt_lengths"], strict=True):
        members.append(Encoded(row["input_ids"][start : start + length], prompt_length))
        start += length
    return members


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
