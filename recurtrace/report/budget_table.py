"""What training took, in both stages: the paper's budget table, a column for each run."""

import statistics
from collections.abc import Callable, Sequence

from recurtrace.records import Budget, HeadBudget
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

RUNS = {"full": "Baseline", "loop": "RecurTrace", "plain-loop": "Plain looping", "adapter": "Adapter"}
"""Those that have a column, with its heading; ablations have the budget of the run they change."""
NONE = "—"
Seeds = Sequence[Budget]

STAGE_1: dict[str, Callable[[Seeds], str]] = {
    "Base weights": lambda seeds: _base_weights(seeds[0]),
    "Trainable parameters": lambda seeds: (
        f"{seeds[0].trained_parameters:,} ({seeds[0].trained_parameters / seeds[0].parameters:.1%})"
    ),
    "Optimizer, schedule": lambda seeds: "AdamW, cosine",
    "Peak learning rate": lambda seeds: f"{seeds[0].learning_rate:.1e}" if seeds[0].learning_rate else NONE,
    "Optimizer steps": lambda seeds: f"{seeds[0].steps:,}",
    "Global batch (sequences)": lambda seeds: f"{seeds[0].batch_size:,}",
    "Micro-batch × accumulation": lambda seeds: _micro(seeds[0]),
    "Max length (tokens)": lambda seeds: f"{seeds[0].max_length:,}",
    "Training tokens": lambda seeds: f"{seeds[0].tokens:,}",
    "Hardware": lambda seeds: f"{seeds[0].processes} × {seeds[0].device}",
    "Precision": lambda seeds: {"bf16": "bfloat16", "fp32": "float32"}.get(seeds[0].precision, seeds[0].precision),
    "Forward layer passes per token": lambda seeds: spread(
        (one.layer_passes for one in seeds[:1]), ".1f", unknown=NONE
    ),
    "Training FLOPs (analytical)": lambda seeds: f"{_mean(seeds, 'total_flops'):.2e}",
    "Minutes": lambda seeds: spread((one.seconds / 60 for one in seeds), ".1f"),
    "Peak memory of a process, GiB": lambda seeds: f"{max(one.peak_bytes for one in seeds) / 2**30:.2f}",
}
STAGE_2: dict[str, Callable[[HeadBudget], str]] = {
    "Trained module": lambda head: f"halting head, {head.trained_parameters:,} parameters",
    "Base and loop modules": lambda head: "frozen",
    "Head: optimizer steps": lambda head: f"{head.steps:,}",
    "Head: learning rate, schedule": lambda head: f"{head.learning_rate:.1e}, cosine",
    "Oracle horizon": lambda head: f"depth {head.horizon}",
    "Oracle losses": lambda head: f"cached offline, {head.examples:,} examples",
}


def budget(space: Workspace) -> Table:
    """Stage 1 and its baselines beside each other; the second stage is RecurTrace's alone."""
    name, title = "budget", "What training took"
    shown = {run: heading for run, heading in RUNS.items() if run in space.budgets}
    if not shown:
        return Table(name, title, missing="runs/*/budget.json (recurtrace train)")
    rows = [[row, *(cell(space.budgets[run]) for run in shown)] for row, cell in STAGE_1.items()]
    if space.head_budgets and "loop" in shown:
        heads = space.head_budgets
        second = {row: cell(heads[0]) for row, cell in STAGE_2.items()}
        if all(head.sweep_flops for head in heads):
            flops = statistics.mean(head.sweep_flops + head.head_flops for head in heads)
            second["Sweep and head FLOPs (analytical)"] = f"{flops:.2e}"
            second["Extra FLOPs against stage 1"] = f"{flops / _mean(space.budgets['loop'], 'total_flops'):.1%}"
        rows += [[row, *(value if run == "loop" else NONE for run in shown)] for row, value in second.items()]
    others = [run for run in space.budgets if run not in shown]
    seeds = max(len(space.budgets[run]) for run in shown)
    note = "FLOPs are analytical, forward and both parts of backward."
    note += f" Means over {seeds} training seeds." if seeds > 1 else ""
    note += f" Not shown: {', '.join(others)} (runs/<run>/budget.json)." if others else ""
    return Table(name, title, ["", *shown.values()], rows, note, "recurtrace train, recurtrace distill")


def _base_weights(one: Budget) -> str:
    if one.method == "full":
        return "fine-tuned"
    return "frozen but for the looped layers" if one.train_block else "frozen"


def _micro(one: Budget) -> str:
    if one.micro_batch_size is None:
        return NONE
    return f"{one.micro_batch_size} × {one.batch_size // (one.micro_batch_size * one.processes)}"


def _mean(seeds: Seeds, field: str) -> float:
    return statistics.mean(getattr(one, field) for one in seeds)
