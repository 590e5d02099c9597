"""A model on vLLM's offline engine, for the stages that can be run there."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from recurtrace.assets import place
from recurtrace.errors import RecurTraceError
from recurtrace.stages.settings import OnExamples

if TYPE_CHECKING:
    from recurtrace.serving.offline import OfflineModel


@contextmanager
def offline_model(
    name: str, settings: OnExamples, deepest: int, loops: Sequence[int | str] = (), head: str | None = None
) -> "Iterator[OfflineModel]":
    """The model of a stage; vLLM's processes end with the block."""
    from recurtrace.halting.sweep import MAX_LENGTH
    from recurtrace.serving.offline import OfflineModel

    folder = Path(place(name))
    if not folder.is_dir():
        raise RecurTraceError(f"there is no model folder at {str(folder)!r}; --engine vllm needs one.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RecurTraceError("vLLM starts processes of its own; run --engine vllm without accelerate.")
    if settings.device != "auto":
        raise RecurTraceError("vLLM chooses the device by its build; leave out --device.")
    longest = settings.max_length or MAX_LENGTH
    model = OfflineModel(folder, deepest, "adaptive" in loops, head, longest, settings.dtype)
    try:
        yield model
    finally:
        model.close()
