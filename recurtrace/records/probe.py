"""What `recurtrace probe` hands over: which layers to loop."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from recurtrace.errors import RecurTraceError
from recurtrace.records.record import Record, read_record, write_record


@dataclass(frozen=True)
class Window:
    """A block that could be looped."""

    start: int
    """Its first layer."""
    mean_distance: float
    """Mean angular distance over its layers."""
    nll: float | None = None
    """Loss of the answers with the window run twice, plainly or after a short training."""


@dataclass(frozen=True)
class BlockProbe(Record):
    """Which layers to loop, and why; `convert` and the pipeline read it."""

    distances: list[float]
    """Mean angular distance over each layer, in half turns."""
    errors: list[float]
    """Standard errors of those means."""
    inputs: int
    """Inputs that were averaged over."""
    encoder_end: int | None
    """Last layer of the encoder; None if the curve has no bend there."""
    decoder_start: int | None
    """First layer of the decoder; None if the curve has no bend there."""
    loop_num_layers: int
    """Layers of a window."""
    windows: Annotated[list[Window], Field(min_length=1)]
    """Windows inside the span, the best first."""
    base_nll: float | None
    """Loss of the answers with every layer run once."""
    compared_on: int
    """Examples the windows were compared on."""
    compared_by: Literal["distance", "plain loops", "training"]
    model: str = ""
    """Hub id or folder of the base."""
    base_fingerprint: str = ""
    """Tells whether another model is the same base."""
    data: str = ""
    """Tasks or mixture that the inputs are from."""

    @property
    def loop_start(self) -> int:
        return self.windows[0].start

    def as_json(self) -> dict[str, Any]:
        return {"loop_start": self.loop_start, **super().as_json()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """The file repeats the best window's start, for those who only want to know that."""
        if "loop_start" not in found:
            raise ValueError("loop_start: field required")
        return super().from_json({key: value for key, value in found.items() if key != "loop_start"})

    def write(self, path: Path) -> None:
        write_record(path, self)

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_record(path, cls, "a result of `recurtrace probe`", "recurtrace probe --out")

    def check_base(self, base_fingerprint: str | None, path: Path) -> None:
        if base_fingerprint != self.base_fingerprint:
            raise RecurTraceError(f"{path} was measured on another model, {self.model}; probe this one.")
