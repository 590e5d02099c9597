"""The files of a depth sweep, which later stages read without the model.

    manifest.json               model, data, split, depths, counts, cost; complete once it says so
    part-00000.parquet          items: id, task, bucket, seed, hash, reference, and the greedy answer at every depth
    part-00000.safetensors      measurements [n, T], pooled states [n, T, d]

Shapes: n examples · T depths · d hidden size.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recurtrace.errors import RecurTraceError
from recurtrace.files import load_manifest, write_json, writing

MANIFEST = "manifest.json"
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "task": pa.string(),
        "bucket": pa.string(),
        "seed": pa.int64(),
        "prompt_hash": pa.string(),
        "reference": pa.string(),
        "answer_tokens": pa.int64(),
        "answers": pa.list_(pa.string()),
    }
)
STATES = {"prompt_mean": "state_mean", "prompt_last": "state_last"}  # pooling → tensor


@dataclass(frozen=True)
class Sweep:
    """What was measured on each example at each depth."""

    manifest: dict[str, Any]
    items: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]

    @property
    def depths(self) -> list[int]:
        return self.manifest["depths"]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def keep(self, chosen: np.ndarray) -> "Sweep":
        """The examples of a mask."""
        items = [item for item, keeps in zip(self.items, chosen, strict=True) if keeps]
        return replace(self, items=items, arrays={name: array[chosen] for name, array in self.arrays.items()})

    def of_tasks(self, tasks: list[str]) -> "Sweep":
        there = {item["task"] for item in self.items}
        if missing := [task for task in tasks if task not in there]:
            raise RecurTraceError(f"the sweep has no {missing[0]}; it has {', '.join(sorted(there))}.")
        return self.keep(np.array([item["task"] in tasks for item in self.items]))

    def require_every_depth(self) -> None:
        """A policy steps from loop to loop, so none may be missing."""
        if self.depths != list(range(1, len(self.depths) + 1)):
            raise RecurTraceError(
                f"the sweep measured depths {self.depths}; this needs each of 1..{self.depths[-1]}, so sweep again "
                "without --depths."
            )


def read_sweep(folder: Path, names: list[str] | None = None) -> Sweep:
    """A finished sweep; `names` are the arrays to read, all of them if left out."""
    manifest = read_manifest(folder)
    if not manifest["complete"]:
        raise RecurTraceError(f"the sweep in {str(folder)!r} is not finished; run `recurtrace sweep` again.")
    items: list[dict[str, Any]] = []
    parts: dict[str, list[np.ndarray]] = {}
    for number in range(manifest["parts"]):
        table, tensors = part_files(folder, number)
        try:
            items += pq.read_table(table).to_pylist()
            with safe_open(tensors, framework="np") as file:
                for name in file.keys() if names is None else names:
                    parts.setdefault(name, []).append(file.get_tensor(name))
        except (OSError, pa.ArrowInvalid, SafetensorError) as error:
            raise RecurTraceError(f"{table.stem} of {str(folder)!r} is damaged or missing; sweep again.") from error
    return Sweep(manifest, items, {name: np.concatenate(arrays) for name, arrays in parts.items()})


def read_manifest(folder: Path) -> dict[str, Any]:
    manifest = load_manifest(folder / MANIFEST, "sweep", "recurtrace sweep")
    if "depths" not in manifest:
        raise RecurTraceError(f"{str(folder)!r} holds no sweep but something else; name the folder of a sweep.")
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_json(folder / MANIFEST, manifest)


def part_files(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"part-{number:05d}.parquet", folder / f"part-{number:05d}.safetensors"


def write_part(folder: Path, number: int, items: list[dict[str, Any]], arrays: dict[str, np.ndarray]) -> None:
    """The table comes last: a part is there once it is."""
    table, tensors = part_files(folder, number)
    with writing(tensors) as temporary:
        save_file(arrays, temporary)
    with writing(table) as temporary:
        pq.write_table(pa.Table.from_pylist(items, schema=SCHEMA), temporary, compression="zstd")
