"""What training took and what depth costs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from recurtrace.records.record import LEFT_OUT, Record, read_record

BUDGET_FILE = "budget.json"
HEAD_BUDGET_FILE = "head-budget.json"


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
    micro_batch_size: int | None = field(default=None, metadata=LEFT_OUT)
    """Sequences in one forward pass of one process."""
    learning_rate: float | None = field(default=None, metadata=LEFT_OUT)
    """At its highest; it falls as a cosine."""
    layers: int | None = field(default=None, metadata=LEFT_OUT)
    """Of the base. Budgets of an older version do not say it, nor the three beside it."""
    looped_layers: int | None = field(default=None, metadata=LEFT_OUT)
    train_block: bool | None = field(default=None, metadata=LEFT_OUT)
    """Whether the looped layers of the base learned too. Not in the paper."""

    @property
    def layer_passes(self) -> float | None:
        """Decoder layers that a token goes through in a forward pass, on average."""
        if self.layers is None or self.looped_layers is None:
            return None
        return self.layers + (self.mean_depth - 1) * self.looped_layers

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_record(path, cls, "the budget of a run", "recurtrace train")


@dataclass(frozen=True)
class HeadBudget(Record):
    """What the second stage took: a halting head, everything else frozen."""

    trained_parameters: int
    steps: int
    batch_size: int
    """Examples in one step."""
    learning_rate: float
    examples: int
    """Of the sweep that it was trained on."""
    horizon: int
    """Deepest loop that the oracle looks at."""
    sweep_flops: float
    """Analytical, of the sweep: its losses are measured once, before the training. Answers that had to be written out
    are not counted."""
    head_flops: float
    """Analytical, of the training itself."""

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_record(path, cls, "the budget of a halting head", "recurtrace distill")


@dataclass(frozen=True)
class CostAtDepth:
    """What one depth costs, against the unlooped base."""

    loops: int
    layer_passes: int
    """Decoder layers that a token goes through."""
    flops_ratio: float
    """FLOPs of a prefill, logits at the last position only, times the base's."""
    time_ratio: float
    """Measured time of it, times the base's."""
    kv_bytes_per_token: int
    """Keys and values that are cached for one token."""
    all_logits_flops_ratio: float | None = field(default=None, metadata=LEFT_OUT)
    """FLOPs of a teacher-forced pass, logits at every position, times the base's: the paper's setting."""
    all_logits_time_ratio: float | None = field(default=None, metadata=LEFT_OUT)
    """Measured time of it, times the base's."""


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
