"""Time and peak memory of a run that may be begun several times."""

import json
import resource
import time
from pathlib import Path

import torch

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
