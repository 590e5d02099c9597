"""What a report is made of: the files that stages left in one folder.

probe.json                     the block probe
cost.json                      runtime and memory at each depth
analysis/*.json                adaptive depth, one file for each training seed (`recurtrace compare --out`)
evaluations/<run>/             records (`recurtrace evaluate --out`)
runs/<run>/budget.json         what training took (`recurtrace train`)
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurtrace.errors import RecurTraceError
from recurtrace.records import Evaluation, read_evaluation

SAME = ("data", "items", "depths")


@dataclass(frozen=True)
class Workspace:
    folder: Path
    probe: dict[str, Any] | None
    cost: dict[str, Any] | None
    analyses: dict[str, dict[str, Any]]
    evaluations: dict[str, Evaluation]
    budgets: dict[str, dict[str, Any]]


def read_workspace(folder: Path) -> Workspace:
    if not folder.is_dir():
        raise RecurTraceError(f"there is no folder {str(folder)!r} to report on.")
    found = Workspace(
        folder=folder,
        probe=_json(folder / "probe.json"),
        cost=_json(folder / "cost.json"),
        analyses={file.stem: _json(file) or {} for file in sorted(folder.glob("analysis/*.json"))},
        evaluations={
            file.parent.name: read_evaluation(file.parent)
            for file in sorted(folder.glob("evaluations/*/evaluation.json"))
        },
        budgets={file.parent.name: _json(file) or {} for file in sorted(folder.glob("runs/*/budget.json"))},
    )
    if not (found.probe or found.cost or found.analyses or found.evaluations or found.budgets):
        raise RecurTraceError(
            f"{str(folder)!r} holds nothing to report on: no analysis/*.json, evaluations/*, runs/*/budget.json, "
            "probe.json or cost.json."
        )
    for one in list(found.analyses.values())[1:]:
        first = next(iter(found.analyses.values()))
        if [one.get(key) for key in SAME] != [first.get(key) for key in SAME]:
            raise RecurTraceError(
                f"the files in {folder / 'analysis'} are of different items or depths; they are averaged as training "
                "seeds of one model, so keep others in another folder."
            )
    return found


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecurTraceError(f"{file} is not JSON; make it again.") from error
