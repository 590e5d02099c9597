"""The training mixture: sources loaded, audited against every test, sampled by seed, written as Parquet.

A folder holds

    manifest.json                          recipe, counts, versions, hashes; complete once it says so
    train/<task>-00000-of-00003.parquet    what is trained on
    heldout/<task>.parquet                 kept from training, for thresholds and halting heads
    removed/<task>.jsonl                   what the audit took out, each with the test item it repeats

Sources are built one after another, and a finished one is not built again: the manifest names it with the hashes of
its files, so an interrupted build resumes where it was.
"""

import hashlib
import json
import logging
import platform
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field, PositiveInt, TypeAdapter, ValidationError, model_validator
from tqdm import tqdm

from recurtrace.data.benchmarks import TASKS, Task, suite
from recurtrace.data.example import Example
from recurtrace.data.loading import Loaded, MissingDataError, find_task, load
from recurtrace.data.overlap import THRESHOLD, OverlapIndex
from recurtrace.data.own import OwnTask
from recurtrace.data.synthetic import PAPER, Sizes
from recurtrace.errors import RecurTraceError, brief
from recurtrace.files import Kind, begin, claim, load_manifest, locked, write_json, writing
from recurtrace.recipe import Recipe, Seed
from recurtrace.records.record import problem

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
MIXTURE = Kind("mixture", MANIFEST, ("train/*.parquet", "heldout/*.parquet", "removed/*.jsonl"), ("recipe", "sources"))
AUDITED = ("train_covered", "classic", "diagnostic")

_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "task": pa.string(),
        "prompt": pa.string(),
        "answer": pa.string(),
        "choices": pa.list_(pa.string()),
        "bucket": pa.string(),
        "aliases": pa.list_(pa.string()),
    }
)


@dataclass(frozen=True)
class _File:
    bytes: int


@dataclass(frozen=True)
class _Source:
    train: int
    files: dict[str, _File]


@dataclass(frozen=True)
class _Audit:
    sha256: str


@dataclass(frozen=True)
class _Written:
    """What is read of a manifest later; it says more."""

    recipe: dict[str, Any]
    complete: bool
    sources: dict[str, _Source]
    audit: _Audit


_WRITTEN = TypeAdapter(_Written)


def _own(value: Any) -> Any:
    return OwnTask.check(value, "the task of a source") if isinstance(value, dict) else value


class Source(Recipe):
    """One task of the mixture."""

    task: Annotated[str | OwnTask, BeforeValidator(_own)]
    """Name of a task (`recurtrace data list`), or one of your own: file, prompt, answer, scorer (data/own.py)."""
    count: PositiveInt | None = None
    """Training examples to take, by seed; all there are if left out."""
    revision: str | None = None
    """Commit of the hub dataset, so that the same data is loaded every time."""

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def row(self) -> Task:
        return find_task(self.task) if isinstance(self.task, str) else self.task.row


class MixtureRecipe(Recipe):
    """What a mixture is made of."""

    sources: list[Source] = Field(min_length=1)
    seed: Seed = 0
    heldout: int = Field(300, ge=0)
    """Examples of each source that are kept from training; never more than a tenth of it."""
    audit: list[str] = [task.name for task in TASKS.values() if set(task.suites) & set(AUDITED)]
    """Tasks whose test questions must not occur; every benchmark if left out."""
    sizes: Sizes = PAPER
    """Sizes of the synthetic tasks."""
    shard_size: PositiveInt = 50_000
    """Examples in one Parquet file."""

    @classmethod
    def resolve(cls, fields: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The files of own tasks are found from the recipe's folder, too."""
        sources = fields.get("sources")
        for source in sources if isinstance(sources, list) else []:
            if isinstance(source, dict) and isinstance(source.get("task"), dict):
                source["task"] = OwnTask.resolve(source["task"], folder)
        return super().resolve(fields, folder)

    @model_validator(mode="after")
    def _check(self) -> "MixtureRecipe":
        names = [source.name for source in self.sources]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise ValueError(f"{twice[0]} is listed twice; list it once, with one count")
        for source in self.sources:
            if "train" not in source.row.splits:
                trainable = ", ".join(task.name for task in suite("training"))
                raise ValueError(f"{source.name} is for testing only; train on {trainable}")
            if source.row.streamed and source.count is None:
                raise ValueError(f"{source.name} is streamed without an end; give it a count")
        for name in self.audit:
            if "test" not in find_task(name).splits:
                raise ValueError(f"{name} has no test split to audit against")
        return self


def build(
    recipe: MixtureRecipe,
    out: Path,
    data_dir: Path | None = None,
    skip_missing: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Build what is not built yet and return the manifest."""
    with locked(out):
        return _build(recipe, out, data_dir, skip_missing, overwrite)


def _build(
    recipe: MixtureRecipe, out: Path, data_dir: Path | None, skip_missing: bool, overwrite: bool
) -> dict[str, Any]:
    what = _identity(recipe)
    if (found := claim(out, MIXTURE, what, overwrite)) is not None:
        _checked(found, out)
    if found is not None and found["complete"]:
        return found
    tests, audit = _test_questions(recipe, data_dir, skip_missing)
    manifest = {**what, "complete": False, "audit": audit, "missing": [], "sources": {}}
    if found is not None and found["audit"]["sha256"] == audit["sha256"]:  # else nothing that was audited before stands
        manifest["sources"] = found["sources"]
    index = OverlapIndex((example.id, example.asked) for example in tests)
    if found is None:
        begin(out, MIXTURE, manifest)
    else:
        _write_manifest(out, manifest)
    for source in tqdm(recipe.sources, desc="sources", unit="source"):
        if source.name in manifest["sources"]:
            continue
        try:
            manifest["sources"][source.name] = _build_source(source, recipe, index, out, data_dir)
        except MissingDataError:
            if not skip_missing:
                raise
            manifest["missing"].append(source.name)
        _write_manifest(out, manifest)
    if not manifest["sources"]:
        raise RecurTraceError("none of the recipe's sources was found; check --data-dir or the network.")
    if not any(facts["train"] for facts in manifest["sources"].values()):
        raise RecurTraceError(
            f"the mixture in {str(out)!r} has no training example: the audit removed them all (removed/ says why), or "
            "heldout took them; change the recipe's sources, audit or heldout."
        )
    manifest["complete"] = True
    _write_manifest(out, manifest)
    return manifest


def read_split(folder: Path, split: Literal["train", "heldout"], tasks: Iterable[str] | None = None) -> list[Path]:
    """The Parquet files of a built mixture, checked to be there and of the size they were written with."""
    manifest = _read_manifest(folder)
    if not manifest["complete"]:
        raise RecurTraceError(f"the mixture in {str(folder)!r} is not finished; run `recurtrace data build` again.")
    wanted = list(tasks) if tasks is not None else list(manifest["sources"])
    if unknown := [task for task in wanted if task not in manifest["sources"]]:
        raise RecurTraceError(f"the mixture has no {unknown[0]}; it has {', '.join(manifest['sources'])}.")
    names = [name for task in wanted for name in manifest["sources"][task]["files"] if name.startswith(split)]
    for task in wanted:
        for name, facts in manifest["sources"][task]["files"].items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != facts["bytes"]:
                raise RecurTraceError(f"{file} is missing or was changed; build the mixture again with --overwrite.")
    return [folder / name for name in names]


def read_examples(
    folder: Path, split: Literal["train", "heldout"], tasks: Iterable[str] | None = None
) -> list[Example]:
    """The examples themselves, for what fits in memory."""
    rows = [row for file in read_split(folder, split, tasks) for row in _rows(file)]
    marks = {source.name: source.row.marks for source in mixture_recipe(folder).sources}
    return [
        Example(**{**row, "choices": tuple(row["choices"]), "aliases": tuple(row["aliases"])}, **marks[row["task"]])
        for row in rows
    ]


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        return pq.read_table(file, schema=_SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise RecurTraceError(
            f"{file} is damaged ({brief(error, 80)}); build the mixture again with --overwrite."
        ) from error


def is_mixture(data: str | Path) -> bool:
    return (Path(data) / MANIFEST).is_file()


def mixture_recipe(folder: Path) -> MixtureRecipe:
    """What a built mixture was made of, as far as its sources were found."""
    manifest = _read_manifest(folder)
    recipe = MixtureRecipe.check(manifest["recipe"], str(folder))
    return recipe.model_copy(update={"sources": [s for s in recipe.sources if s.name in manifest["sources"]]})


def mixture_sizes(folder: Path) -> dict[str, int]:
    """Training examples of each source that a built mixture has."""
    return {name: facts["train"] for name, facts in _read_manifest(folder)["sources"].items()}


def _build_source(
    source: Source, recipe: MixtureRecipe, index: OverlapIndex, out: Path, data_dir: Path | None
) -> dict[str, Any]:
    name, row = source.name, source.row
    own_heldout = "heldout" in row.splits
    wanted = source.count + (0 if own_heldout else recipe.heldout) if source.count and row.endless else None

    def read(split: str, limit: int | None) -> Loaded:
        return load(row, split, data_dir, limit, recipe.seed, recipe.sizes, revision=source.revision, progress=True)

    loaded = read("train", wanted)
    examples = loaded.examples
    questions = tqdm((e.asked for e in examples), desc=f"audit {name}", total=len(examples), leave=False)
    overlaps = list(index.audit(questions))
    overlapping = {overlap.index for overlap in overlaps}
    kept = [example for number, example in enumerate(examples) if number not in overlapping]

    order = list(range(len(kept)))
    random.Random(f"{recipe.seed} {name}").shuffle(order)
    heldout_size = 0 if own_heldout else min(recipe.heldout, len(kept) // 10)
    train = order[heldout_size:][: source.count]
    heldout = [kept[i] for i in sorted(order[:heldout_size])]
    if own_heldout and recipe.heldout:
        heldout = read("heldout", recipe.heldout).examples
    if len(heldout) < recipe.heldout:
        why = "there are no more" if own_heldout else f"never more than a tenth of its {len(kept):,} examples"
        logger.warning("%s: %d examples are held out, not %d: %s.", name, len(heldout), recipe.heldout, why)
    files = _write_shards(out, name, [kept[i] for i in sorted(train)], recipe.shard_size)
    if heldout:
        files |= _write_table(out, f"heldout/{name}.parquet", heldout)
    removed = [
        {"id": examples[overlap.index].id, **{k: v for k, v in asdict(overlap).items() if k != "index"}}
        for overlap in overlaps
    ]
    files |= _write_lines(out, f"removed/{name}.jsonl", removed)
    return {
        "records": len(examples) + loaded.unusable,
        "without_answer": loaded.unusable,
        "removed_exact": sum(overlap.kind == "exact" for overlap in overlaps),
        "removed_near": sum(overlap.kind == "near" for overlap in overlaps),
        "train": len(train),
        "heldout": len(heldout),
        "files": files,
    }


def _test_questions(
    recipe: MixtureRecipe, data_dir: Path | None, skip_missing: bool
) -> tuple[list[Example], dict[str, Any]]:
    tests: list[Example] = []
    counts: dict[str, int] = {}
    missing = []
    own = [source.row for source in recipe.sources if isinstance(source.task, OwnTask)]
    for row in tqdm([*map(find_task, recipe.audit), *own], desc="test questions", unit="task"):
        name = row.name
        try:
            found = load(row, "test", data_dir, seed=recipe.seed, sizes=recipe.sizes).examples
        except MissingDataError as error:
            if not skip_missing:
                raise RecurTraceError(
                    f"{error} The audit needs it; name the tasks to audit against in the recipe's `audit`, or pass "
                    "--skip-missing."
                ) from error
            missing.append(name)
            continue
        counts[name] = len(found)
        tests += found
    digest = hashlib.sha256("\0".join(example.asked for example in tests).encode()).hexdigest()
    return tests, {
        "threshold": THRESHOLD,
        "questions": len(tests),
        "tasks": counts,
        "missing": missing,
        "sha256": digest,
    }


def _write_shards(out: Path, task: str, examples: list[Example], size: int) -> dict[str, Any]:
    parts = [examples[start : start + size] for start in range(0, len(examples), size)]
    for old in out.glob(f"train/{task}-*-of-*.parquet"):
        old.unlink()
    files: dict[str, Any] = {}
    for number, part in enumerate(parts):
        files |= _write_table(out, f"train/{task}-{number:05d}-of-{len(parts):05d}.parquet", part)
    return files


def _write_table(out: Path, name: str, examples: list[Example]) -> dict[str, Any]:
    columns = {column: [getattr(example, column) for example in examples] for column in _SCHEMA.names}
    with writing(out / name) as temporary:
        pq.write_table(pa.table(columns, schema=_SCHEMA), temporary, compression="zstd")
    return _facts(out, name)


def _write_lines(out: Path, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    with writing(out / name) as temporary:
        temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return _facts(out, name)


def _facts(out: Path, name: str) -> dict[str, Any]:
    with (out / name).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {name: {"sha256": digest, "bytes": (out / name).stat().st_size}}


def _identity(recipe: MixtureRecipe) -> dict[str, Any]:
    """All that a mixture depends on, except what the sources hold."""
    versions = {package: version(package) for package in ("recurtrace", "datasets", "pyarrow")}
    return {
        "recipe": json.loads(recipe.model_dump_json()),
        "versions": {"python": platform.python_version(), **versions},
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    found = load_manifest(folder / MANIFEST, "mixture", "recurtrace data build")
    return _checked(found, folder)


def _checked(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        _WRITTEN.validate_python(found)
    except ValidationError as error:
        raise RecurTraceError(
            f"{folder / MANIFEST} is not the manifest of a mixture ({problem(error)}); pass the folder of one."
        ) from error
    return found


def _write_manifest(out: Path, manifest: dict[str, Any]) -> None:
    write_json(out / MANIFEST, manifest)
