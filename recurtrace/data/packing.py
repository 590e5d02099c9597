"""Packed training data: tokenised once, shuffled by seed, kept on disk, the same in every process and every resume."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from recurtrace.data.collate import Encoded, Encoder, Lengths, collate_packed, pack
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.files import writing

CHUNK = 1000

_SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "lengths": pa.list_(pa.int32()),
        "prompt_lengths": pa.list_(pa.int32()),
        "ids": pa.list_(pa.string()),
    }
)


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
