"""The paper's tables, from a workspace. A table for which runs are missing says which."""

from collections.abc import Callable, Sequence

from recurtrace.report.analysis_tables import (
    calibration,
    difficulty,
    histogram,
    main_comparison,
    per_task,
    reconciliation,
    thresholds,
    transition,
    worked,
)
from recurtrace.report.run_tables import ablation, breadth, budget, cost, memory, scaling
from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace

TABLES: Sequence[Callable[[Workspace], Table]] = (
    main_comparison,
    worked,
    per_task,
    breadth,
    memory,
    ablation,
    scaling,
    calibration,
    histogram,
    transition,
    reconciliation,
    difficulty,
    thresholds,
    cost,
    budget,
)


def all_tables(space: Workspace) -> list[Table]:
    return [make(space) for make in TABLES]
