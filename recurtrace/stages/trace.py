"""All that the loop does with one prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PositiveInt, field_validator

from recurtrace.errors import RecurTraceError, is_unicode
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
    """Ablation: switch the memory off from this loop on; at most max_loops."""
    head: str | None = None
    """Name of the halting head. Default: the model's own head."""
    answer_tokens: Annotated[PositiveInt, Field(le=256)] = 8
    """Longest answer where there is no reference, in tokens."""
    max_tokens: PositiveInt = 2048
    """Longest prompt, in tokens; never more than the positions of the base leave beside the answer."""

    @field_validator("prompt", "reference")
    @classmethod
    def _is_text(cls, text: str | None) -> str | None:
        if text is not None and not is_unicode(text):
            raise ValueError("is not valid Unicode: it holds half of a surrogate pair")
        return text


def _longest_prompt(asked: TraceSettings, config: Any, tokenizer: Any) -> int:
    from recurtrace.model.positions import positions_of

    positions = positions_of(config)
    if positions is None:
        return asked.max_tokens
    answer = asked.answer_tokens if asked.reference is None else len(tokenizer(asked.reference)["input_ids"]) + 1
    if answer >= positions:
        raise RecurTraceError(
            f"the answer may take {answer:,} of the base's {positions:,} positions, which leaves none for the prompt; "
            "lower answer_tokens (--answer-tokens), or shorten the reference."
        )
    return min(asked.max_tokens, positions - answer)


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
    max_tokens = _longest_prompt(asked, model.config, tokenizer)
    found = run(
        model,
        tokenizer,
        asked.prompt,
        reference=asked.reference,
        max_loops=asked.max_loops,
        memory_off_from=asked.memory_off_from,
        head=asked.head,
        answer_tokens=asked.answer_tokens,
        max_tokens=max_tokens,
        progress=progress,
    )
    found = replace(found, model=asked.model)
    if asked.out is not None:
        found.write(asked.out)
    return found
