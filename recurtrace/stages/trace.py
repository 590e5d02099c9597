"""All that the loop does with one prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from recurtrace.stages.settings import OnDevice, Place

if TYPE_CHECKING:
    from recurtrace.evaluation.trace import Progress
    from recurtrace.records import LoopTrace


class TraceSettings(OnDevice):
    arguments: ClassVar[tuple[str, ...]] = ("model", "prompt")

    model: Place
    """Folder or hub id of a looped model, or embedded/loop."""
    prompt: str
    """What the model reads; the answer follows it."""
    out: Path | None = None
    """JSON file to write."""
    reference: str | None = None
    """The right answer. The model's answers then have its length, and are compared with it."""
    max_loops: Annotated[PositiveInt, Field(le=64)] = 16
    """Deepest loop."""
    memory_off_from: Annotated[int, Field(ge=2)] | None = None
    """Ablation: switch the memory off from this loop on."""
    head: str | None = None
    """Name of the halting head. Default: the model's own head."""
    answer_tokens: Annotated[PositiveInt, Field(le=256)] = 8
    """Longest answer where there is no reference, in tokens."""
    max_tokens: PositiveInt = 2048
    """Longest prompt, in tokens."""


def trace(
    settings: TraceSettings | None = None,
    /,
    *,
    loaded: Any = None,
    progress: "Progress" = lambda loop: True,
    **fields: Any,
) -> "LoopTrace":
    """Trace a prompt and write the trace, if it says where.

    `loaded` is the model and its tokenizer, where they have been loaded already. `progress` is called with each loop,
    and ends the trace by returning False.
    """
    from dataclasses import replace

    from recurtrace.assets import place
    from recurtrace.evaluation.trace import trace as run
    from recurtrace.model.loading import load_looped
    from recurtrace.records import LoopTrace, refuse_other_file

    asked = settings or TraceSettings.check(fields, "the settings of trace")
    if asked.out is not None:
        refuse_other_file(asked.out, LoopTrace)
    model, tokenizer = loaded or load_looped(place(asked.model), **asked.loading)
    found = run(
        model,
        tokenizer,
        asked.prompt,
        reference=asked.reference,
        max_loops=asked.max_loops,
        memory_off_from=asked.memory_off_from,
        head=asked.head,
        answer_tokens=asked.answer_tokens,
        max_tokens=asked.max_tokens,
        progress=progress,
    )
    found = replace(found, model=asked.model)
    if asked.out is not None:
        found.write(asked.out)
    return found
