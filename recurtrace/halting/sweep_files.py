"""The files of a depth sweep, which later stages read without the model.

    manifest.json               model, data, split, depths, counts, cost; complete once it says so
    part-00000.parquet          items: id, task, bucket, seed, hash, reference, and the greedy answer at every depth
    part-00000.safetensors      measurements [n, T], pooled states [n, T, d]
    part-00000.partial          what is measured of a part so far, saved every half minute

Shapes: n examples · T depths · d hidden size.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recurtrace.errors import RecurTraceError
from recurtrace.files import Kind, load_manifest, write_json, writing
from recurtrace.records import Item
from recurtrace.records.record import problem

MANIFEST = "manifest.json"
SWEEP = Kind("sweep", MANIFEST, ("part-*.parquet", "part-*.safetensors", "part-*.partial"), ("split", "depths"))
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
        "prompt": pa.string(),
    }
)
SavedRow = tuple[list[str], dict[str, np.ndarray]]
"""An example's answers and measurements at every depth."""
STATES = {"prompt_mean": "state_mean", "prompt_last": "state_last"}  # pooling → tensor


@dataclass(frozen=True)
class SweepManifest:
    """What a sweep was made with. All of it must be the same for an interrupted one to resume, except names of folders:
    fingerprints and hashes say which model and which examples.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    split: str
    """heldout and train may be fitted to, test never."""
    depths: list[int]
    base_fingerprint: str | None = None
    loop_fingerprint: str = ""
    block: list[int] = field(default_factory=list)
    """First and last looped layer."""
    data: str = ""
    """Tasks, or the name of a mixture's folder."""
    examples: int = 0
    examples_sha256: str = ""
    """Hash of the examples' ids and prompts."""
    max_length: int = 0
    parts: int = 0
    part_size: int = 0
    states: bool = True
    """Pooled states were kept."""
    signals: list[str] = field(default_factory=list)
    """What was measured of the next token; a sweep of an older version does not say."""
    layer_passes: int = 0
    """For one prompt token."""
    layer_passes_of_the_base: int = 0
    cut: int = 0
    """Prompts that were cut from the left."""
    dropped: list[str] = field(default_factory=list)
    """Ids of examples that did not fit."""
    versions: dict[str, str] = field(default_factory=dict)
    model: str = ""
    flops: float = 0.0
    """Analytical, without answers that had to be written out; a sweep of an older version does not say."""
    complete: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        others = ("data", "model", "flops", "complete")
        return {name: value for name, value in asdict(self).items() if name not in others}


_MANIFEST = TypeAdapter(SweepManifest)


@dataclass(frozen=True)
class SweepItem(Item):
    """An example of a sweep, with its greedy answer at every depth."""

    answers: list[str]
    prompt: str = ""
    """What was asked; sweeps of an older version do not say."""


@dataclass(frozen=True)
class Sweep:
    """What was measured on each example at each depth."""

    manifest: SweepManifest
    items: list[SweepItem]
    arrays: dict[str, np.ndarray]

    @property
    def depths(self) -> list[int]:
        return self.manifest.depths

    @property
    def split(self) -> str:
        return self.manifest.split

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise RecurTraceError(f"the sweep did not measure {name}; sweep again into another folder.")
        return self.arrays[name]

    def keep(self, chosen: np.ndarray) -> "Sweep":
        """The examples of a mask."""
        items = [item for item, keeps in zip(self.items, chosen, strict=True) if keeps]
        return replace(self, items=items, arrays={name: array[chosen] for name, array in self.arrays.items()})

    def of_tasks(self, tasks: list[str]) -> "Sweep":
        there = {item.task for item in self.items}
        if missing := [task for task in tasks if task not in there]:
            raise RecurTraceError(f"the sweep has no {missing[0]}; it has {', '.join(sorted(there))}.")
        return self.keep(np.array([item.task in tasks for item in self.items]))

    def folds(self, count: int = 8) -> np.ndarray:
        """[n] the evaluation seed where there is one, else stretches of the sweep's order, which is stratified."""
        seeds = np.array([item.seed for item in self.items])
        return seeds if (seeds >= 0).all() else np.arange(len(self)) * count // len(self)

    def require_every_depth(self) -> None:
        """A policy steps from loop to loop, so none may be missing."""
        if self.depths != list(range(1, len(self.depths) + 1)):
            raise RecurTraceError(
                f"the sweep measured depths {self.depths}; every depth of 1..{self.depths[-1]} is needed; sweep "
                "again without --depths."
            )


def read_sweep(folder: str | Path, names: list[str] | None = None) -> Sweep:
    """A finished sweep; `names` are the arrays to read, all of them if left out."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if not manifest.complete:
        raise RecurTraceError(f"the sweep in {str(folder)!r} is not finished; run `recurtrace sweep` again.")
    items: list[SweepItem] = []
    parts: dict[str, list[np.ndarray]] = {}
    for number in range(manifest.parts):
        table, tensors = part_files(folder, number)
        try:
            items += [SweepItem(**row) for row in pq.read_table(table).to_pylist()]
            with safe_open(tensors, framework="np") as file:
                measured = file.keys()
                for name in measured if names is None else [name for name in names if name in measured]:
                    parts.setdefault(name, []).append(file.get_tensor(name))
        except (OSError, TypeError, pa.ArrowException, SafetensorError) as error:
            raise RecurTraceError(f"{table.stem} of {str(folder)!r} is damaged or missing; sweep again.") from error
    return Sweep(manifest, items, {name: np.concatenate(arrays) for name, arrays in parts.items()})


def read_manifest(folder: Path) -> SweepManifest:
    found = load_manifest(folder / MANIFEST, "sweep", "recurtrace sweep")
    try:
        manifest = _MANIFEST.validate_python(found)
    except ValidationError as error:
        raise RecurTraceError(
            f"{folder / MANIFEST} is not the manifest of a sweep ({problem(error)}); pass the folder of a sweep."
        ) from error
    if not manifest.depths or min(manifest.depths) < 1:
        raise RecurTraceError(f"{folder / MANIFEST} names no depths of at least 1; sweep again into another folder.")
    return manifest


def write_manifest(folder: Path, manifest: SweepManifest) -> None:
    write_json(folder / MANIFEST, asdict(manifest))


def part_files(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"part-{number:05d}.parquet", folder / f"part-{number:05d}.safetensors"


def write_partial(folder: Path, number: int, rows: dict[int, SavedRow]) -> None:
    """Some examples of a part, by their place in it."""
    arrays = {name: np.stack([values[name] for _, values in rows.values()]) for name in next(iter(rows.values()))[1]}
    answers = json.dumps([answers for answers, _ in rows.values()])
    with writing(partial_file(folder, number)) as temporary:
        save_file(arrays | {"place": np.array(list(rows))}, temporary, metadata={"answers": answers})


def read_partial(folder: Path, number: int) -> dict[int, SavedRow]:
    file = partial_file(folder, number)
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="np") as opened:
            answers = json.loads(opened.metadata()["answers"])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dictionary)
    except SafetensorError:  # damaged: measured again
        return {}
    places = arrays.pop("place").tolist()
    return {
        place: (own, {name: array[i] for name, array in arrays.items()})
        for i, (place, own) in enumerate(zip(places, answers, strict=True))
    }


def partial_file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.partial"


def write_part(folder: Path, number: int, items: list[SweepItem], arrays: dict[str, np.ndarray]) -> None:
    """The table comes last: a part is there once it is."""
    table, tensors = part_files(folder, number)
    with writing(tensors) as temporary:
        save_file(arrays, temporary)
    with writing(table) as temporary:
        rows = pa.Table.from_pylist([asdict(item) for item in items], schema=SCHEMA)
        pq.write_table(rows, temporary, compression="zstd")
    partial_file(folder, number).unlink(missing_ok=True)
