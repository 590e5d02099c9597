"""What a report is made of: the files that stages left in one folder.

probe.json                     the block probe
cost.json                      runtime and memory at each depth
analysis/seed-<n>.json         adaptive depth (`recurtrace compare --out`)
task-analysis/seed-<n>.json    the same for tasks with heads of their own
evaluations/<run>/seed-<n>/    records (`recurtrace evaluate --out`)
full-test/                     records of the first seed on all test items of the compared tasks
runs/<run>/seed-<n>/           what training took: budget.json (`recurtrace train`)
models/seed-<n>/               the looped model's config.json; head-budget.json, what its head took

Tables average over training seeds. Where there is one, its folder may be left out: evaluations/<run>/, runs/<run>/.
A folder of such folders, one for each scale, gives the tables over scales.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from recurtrace.config_file import read_config_file
from recurtrace.errors import RecurTraceError
from recurtrace.records import (
    BUDGET_FILE,
    HEAD_BUDGET_FILE,
    Analysis,
    BlockProbe,
    Budget,
    CostReport,
    Evaluation,
    HeadAnalysis,
    HeadBudget,
    items_hash,
    read_evaluation,
)
from recurtrace.records import MANIFEST as EVALUATION
from recurtrace.report.escape import plain
from recurtrace.report.pairing import paired

T = TypeVar("T")
_SIZES = ("loop_start", "loop_num_layers", "num_hidden_layers", "hidden_size")
PAPER_SCALES = ("0.6B", "1.7B", "4B", "8B")
_PAPER_BASE = re.compile(rf"Qwen3-({'|'.join(map(re.escape, PAPER_SCALES))})-Base$")  # all four are base releases


@dataclass(frozen=True)
class Workspace:
    """One study: a base, what was trained on it, and what was measured."""

    folder: Path
    probe: BlockProbe | None
    cost: CostReport | None
    analyses: list[Analysis]
    """One for each training seed."""
    evaluations: dict[str, list[Evaluation]]
    """By the name of the run, one for each training seed."""
    budgets: dict[str, list[Budget]]
    """By the name of the run, one for each training seed."""
    head_budgets: list[HeadBudget] = field(default_factory=list)
    """Of the halting heads, one for each training seed."""
    task_analyses: list[HeadAnalysis] = field(default_factory=list)
    """Of tasks with heads of their own, one for each training seed."""
    config: dict[str, Any] | None = None
    """The looped model's config.json, which the table of settings shows."""
    full_test: Evaluation | None = None
    """The first seed on all test items of the compared tasks."""
    left_out: str = ""
    """Items that some of the compared runs lack, said in a sentence."""

    @property
    def head_analyses(self) -> list[HeadAnalysis]:
        """Those of models with a halting head of their own."""
        return [analysis for analysis in self.analyses if isinstance(analysis, HeadAnalysis)]

    def paired(self, *runs: str) -> "Workspace":
        """The study with these runs cut to the items that all of them have."""
        pair = paired(self.evaluations, *runs)
        return replace(self, evaluations={**self.evaluations, **pair.runs}, left_out=pair.note)

    def of_analysed_items(self, evaluations: Sequence[Evaluation]) -> bool:
        """Whether evaluations are of the items that the analyses are of, as far as these say which."""
        known = {one.items_sha256 for one in self.analyses} - {""}
        return all(items_hash(record.key for record in one.records) in known for one in evaluations) if known else True

    @property
    def base(self) -> str:
        """Hub id or folder of the base; empty where no file says."""
        evaluated = [one.manifest.base for run in self.evaluations.values() for one in run]
        analysed = [one.base for one in (*self.analyses, *self.task_analyses)]
        return next((name for name in (*evaluated, *analysed) if name), "")

    @property
    def scale(self) -> str:
        """How tables call it: as the paper does where it is one of its bases, else by the base or the folder."""
        known = _PAPER_BASE.search(self.base.rstrip("/"))
        return known[1] if known else Path(self.base).name or self.folder.resolve().name

    @property
    def in_the_paper(self) -> bool:
        return _PAPER_BASE.search(self.base.rstrip("/")) is not None


def read_studies(folder: Path) -> list[Workspace]:
    """The study in a folder, or those in its subfolders, by scale."""
    if not folder.is_dir():
        raise RecurTraceError(f"there is no folder {str(folder)!r} to report on.")
    if (found := _read(folder)) is not None:
        return [found]
    studies = [study for one in sorted(folder.iterdir()) if one.is_dir() and (study := _read(one)) is not None]
    if not studies:
        raise RecurTraceError(
            f"{str(folder)!r} holds nothing to report on: no analysis/*.json, evaluations/*, runs/*/budget.json, "
            "probe.json or cost.json, and no subfolders with these."
        )
    if len({study.scale for study in studies}) < len(studies):
        raise RecurTraceError(
            f"two studies in {str(folder)!r} are of the same scale; tables over scales need one folder for each."
        )
    return sorted(studies, key=lambda study: _size(study.scale))


def read_workspace(folder: Path) -> Workspace:
    """The only study of a folder."""
    return read_studies(folder)[0]


def _size(scale: str) -> tuple[float, str]:
    number = re.match(r"(\d+(?:\.\d+)?)B$", scale)
    return float(number[1]) if number else 0.0, scale


def _read(folder: Path) -> Workspace | None:
    probe, cost = folder / "probe.json", folder / "cost.json"
    configs = sorted(folder.glob("models/seed-*/config.json"))
    by_task = [Analysis.read(file) for file in sorted(folder.glob("task-analysis/*.json"))]
    found = Workspace(
        folder=folder,
        probe=BlockProbe.read(probe) if probe.is_file() else None,
        cost=CostReport.read(cost) if cost.is_file() else None,
        analyses=[Analysis.read(file) for file in sorted(folder.glob("analysis/*.json"))],
        evaluations=_by_run(folder / "evaluations", EVALUATION, _evaluation),
        budgets=_by_run(folder / "runs", BUDGET_FILE, Budget.read),
        head_budgets=[HeadBudget.read(file) for file in sorted(folder.glob(f"models/*/{HEAD_BUDGET_FILE}"))],
        task_analyses=[one for one in by_task if isinstance(one, HeadAnalysis)],
        config=_config(configs[0]) if configs else None,
        full_test=read_evaluation(folder / "full-test") if (folder / "full-test" / EVALUATION).is_file() else None,
    )
    if not (found.probe or found.cost or found.analyses or found.evaluations or found.budgets):
        return None
    for name, analyses in (("analysis", found.analyses), ("task-analysis", by_task)):
        if len({(one.data, one.items, one.depths, one.items_sha256) for one in analyses}) > 1:
            raise RecurTraceError(
                f"the files in {folder / name} are of different items or depths; they are averaged as training "
                "seeds of one model, so keep others in another folder."
            )
    return found


def _config(file: Path) -> dict[str, Any]:
    found = read_config_file(file, str(file.parent))
    sizes = {**found, **found.get("text_config", {})}
    if found["model_type"] != "recurtrace" or not all(type(sizes.get(name)) is int for name in _SIZES):
        raise RecurTraceError(f"{file} is not the config of a looped model; remove it from the folder of the report.")
    return found


def _evaluation(manifest: Path) -> Evaluation:
    return replace(read_evaluation(manifest.parent), seed=_seed(manifest))


def _seed(file: Path) -> int | None:
    """The training seed that a folder's name gives."""
    number = file.parent.name.removeprefix("seed-")
    return int(number) if number.isdecimal() else None


def _by_run(folder: Path, file: str, read: Callable[[Path], T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    paths = [*folder.glob(f"*/{file}"), *folder.glob(f"*/seed-*/{file}")]
    for path in sorted(paths, key=lambda path: (path.relative_to(folder).parts[0], _seed(path) or 0, path)):
        found.setdefault(plain(path.relative_to(folder).parts[0]), []).append(read(path))
    return dict(sorted(found.items()))
