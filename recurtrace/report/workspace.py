"""What a report is made of: the files that stages left in one folder.

probe.json                     the block probe
cost.json                      runtime and memory at each depth
analysis/seed-<n>.json         adaptive depth (`recurtrace compare --out`)
evaluations/<run>/seed-<n>/    records (`recurtrace evaluate --out`)
runs/<run>/seed-<n>/           what training took: budget.json (`recurtrace train`)

Tables average over training seeds. Where there is one, its folder may be left out: evaluations/<run>/, runs/<run>/.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from recurtrace.errors import RecurTraceError
from recurtrace.records import (
    BUDGET_FILE,
    Analysis,
    BlockProbe,
    Budget,
    CostReport,
    Evaluation,
    HeadAnalysis,
    read_evaluation,
)
from recurtrace.records import MANIFEST as EVALUATION

T = TypeVar("T")


@dataclass(frozen=True)
class Workspace:
    folder: Path
    probe: BlockProbe | None
    cost: CostReport | None
    analyses: list[Analysis]
    """One for each training seed."""
    evaluations: dict[str, list[Evaluation]]
    """By the name of the run, one for each training seed."""
    budgets: dict[str, list[Budget]]
    """By the name of the run, one for each training seed."""

    @property
    def head_analyses(self) -> list[HeadAnalysis]:
        """Those of models with a halting head of their own."""
        return [analysis for analysis in self.analyses if isinstance(analysis, HeadAnalysis)]


def read_workspace(folder: Path) -> Workspace:
    if not folder.is_dir():
        raise RecurTraceError(f"there is no folder {str(folder)!r} to report on.")
    probe, cost = folder / "probe.json", folder / "cost.json"
    found = Workspace(
        folder=folder,
        probe=BlockProbe.read(probe) if probe.is_file() else None,
        cost=CostReport.read(cost) if cost.is_file() else None,
        analyses=[Analysis.read(file) for file in sorted(folder.glob("analysis/*.json"))],
        evaluations=_by_run(folder / "evaluations", EVALUATION, lambda file: read_evaluation(file.parent)),
        budgets=_by_run(folder / "runs", BUDGET_FILE, Budget.read),
    )
    if not (found.probe or found.cost or found.analyses or found.evaluations or found.budgets):
        raise RecurTraceError(
            f"{str(folder)!r} holds nothing to report on: no analysis/*.json, evaluations/*, runs/*/budget.json, "
            "probe.json or cost.json."
        )
    if len({(one.data, one.items, one.depths) for one in found.analyses}) > 1:
        raise RecurTraceError(
            f"the files in {folder / 'analysis'} are of different items or depths; they are averaged as training "
            "seeds of one model, so keep others in another folder."
        )
    return found


def _by_run(folder: Path, file: str, read: Callable[[Path], T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for path in sorted([*folder.glob(f"*/{file}"), *folder.glob(f"*/seed-*/{file}")]):
        found.setdefault(path.relative_to(folder).parts[0], []).append(read(path))
    return dict(sorted(found.items()))
