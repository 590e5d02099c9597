"""What training took and what depth costs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from recurtrace.records.record import Record, read_record

BUDGET_FILE = "budget.json"


@dataclass(frozen=True)
class Budget(Record):
    """What a training run took: one column of the paper's budget table."""

    method: str
    parameters: int
    """All that the model has."""
    trained_parameters: int
    steps: int
    batch_size: int
    """Sequences in one optimizer step, over all processes."""
    max_length: int
    """Tokens in one packed sequence."""
    tokens: int
    mean_depth: float
    """Loops of a forward pass, on average."""
    forward_flops: float
    """Analytical, of all forward passes."""
    total_flops: float
    """Analytical, backward passes included."""
    seconds: float
    """Over all starts of an interrupted run."""
    peak_bytes: int
    """Of one process: on a GPU what torch allocated there, otherwise the resident memory."""
    processes: int
    device: str
    precision: str

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_record(path, cls, "the budget of a run", "recurtrace train")


@dataclass(frozen=True)
class CostAtDepth:
    """What one depth costs, against the unlooped base."""

    loops: int
    layer_passes: int
    """Decoder layers that a token goes through."""
    flops_ratio: float
    """FLOPs of a prefill, times the base's."""
    time_ratio: float
    """Measured time, times the base's."""
    kv_bytes_per_token: int
    """Keys and values that are cached for one token."""


@dataclass(frozen=True)
class CostReport(Record):
    """What depth costs on one machine."""

    base_parameters: int
    added_parameters: int
    depths: list[CostAtDepth]
    note: str = ""
    """Sizes, type, machine."""
    command: str = ""
    """What made it."""

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_record(path, cls, "a cost report", "recurtrace cost --out")
