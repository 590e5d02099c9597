"""What a run cost: parameters, steps, tokens, analytical FLOPs, time and memory, the same table for every method."""

import json
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from recurtrace.model.cost import Cost

_CLOCK_FILE = "clock.json"
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Clock:
    """Time and peak memory of a run, over all the processes that were killed and begun again."""

    def __init__(self, seconds: float = 0.0, peak_bytes: int = 0, launched: str | None = None):
        self._before, self._peak, self._began = seconds, peak_bytes, time.monotonic()
        self.launched = launched
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        elif _CLEAR_REFS.exists():
            _CLEAR_REFS.write_text("5")  # the peak counts from here

    @classmethod
    def read(cls, checkpoint: Path | None) -> "Clock":
        file = checkpoint / _CLOCK_FILE if checkpoint is not None else None
        return cls(**json.loads(file.read_text())) if file is not None and file.is_file() else cls()

    def write(self, checkpoint: Path, launched: str) -> None:
        facts = {"seconds": self.seconds, "peak_bytes": self.peak_bytes, "launched": launched}
        (checkpoint / _CLOCK_FILE).write_text(json.dumps(facts))

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    @property
    def peak_bytes(self) -> int:
        """Of one process: on a GPU what torch allocated there, otherwise the resident memory."""
        if torch.cuda.is_available():
            return max(self._peak, torch.cuda.max_memory_allocated())
        if _CLEAR_REFS.exists():  # Linux
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            return max(self._peak, int(status["VmHWM"].split()[0]) * 1024)
        return max(self._peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@dataclass(frozen=True)
class Macs:
    """Multiply-adds of one token in one training step, by the usual 2:2:2 of forward and the two backward parts."""

    forward: float
    activations: float
    """Gradients of the states."""
    weights: float
    """Gradients of the weights that are trained."""

    @property
    def total(self) -> float:
        return self.forward + self.activations + self.weights


def training_macs(
    cost: Cost,
    method: str,
    depth: int,
    context: float,
    first_looped: int,
    train_block: bool = False,
    labelled: float = 1.0,
) -> Macs:
    """What a token costs at a depth when it attends to `context` positions.

    `labelled` is the part of the tokens whose next one has a label: the LM head is computed there only. Nothing
    is propagated back before the first thing that is trained: the base's encoder, and the first loop of a frozen block.
    """
    attention = 2 * cost.attention_width * context
    back = cost.layer_macs + 2 * attention  # through a layer: attention has two operands with a gradient each
    head = labelled * cost.head_macs
    decoder = (cost.layers - first_looped - cost.looped_layers) * back + head
    if method == "full":
        weights = cost.layers * cost.layer_macs + head
        return Macs(cost.macs(1, context, labelled), cost.layers * back + head, weights)
    if method == "adapter":
        forward = cost.macs(1, context, labelled) + cost.added_macs
        return Macs(forward, decoder + cost.looped_layers * back + cost.added_macs, cost.added_macs)
    passes = depth if train_block else depth - 1  # of the block, that are propagated through
    if passes == 0:
        return Macs(cost.macs(depth, context, labelled), 0.0, 0.0)
    through = decoder + passes * cost.looped_layers * back + (depth - 1) * cost.added_macs
    weights = (depth - 1) * cost.added_macs + (passes * cost.looped_layers * cost.layer_macs if train_block else 0)
    return Macs(cost.macs(depth, context, labelled), through, weights)
