"""What `recurtrace trace` hands over: all that the loop did with one prompt.

Lists that belong to positions have one entry for each token of the prompt, in order. Numbers have four digits.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from recurtrace.files import writing
from recurtrace.records.record import LEFT_OUT, Record, read_record

Numbers = list[float]


@dataclass(frozen=True)
class TracedHead:
    """The halting head's rule: stop after the first loop from `min_depth` on whose probability is below `threshold`."""

    threshold: float
    min_depth: int
    max_depth: int
    name: str = ""
    """Of a named head; empty for the model's own."""


@dataclass(frozen=True)
class LoopedLayer:
    """What does not change from loop to loop in one looped layer."""

    index: int
    """Of the base, counted from 0."""
    scale: float | None
    """The scalar gate γ; None without memory."""
    slopes: Numbers
    """Of each memory head: how much an older loop is penalised, for each loop of distance."""


@dataclass(frozen=True)
class Lens:
    """The likeliest tokens at each position."""

    words: list[list[int]]
    """[positions, few] places in the trace's `vocabulary`, the likeliest first."""
    probs: list[Numbers]
    """[positions, few]"""
    entropy: Numbers
    """[positions] of the whole distribution, in nats."""


@dataclass(frozen=True)
class TracedLayer:
    """One looped layer in one loop."""

    norm: Numbers
    """[positions] of the layer's output."""
    change: Numbers
    """[positions] angle between this output and the one of the loop before, in half turns; in the first loop, between
    it and the block's input."""
    gate: Numbers = field(default_factory=list, metadata=LEFT_OUT)
    """[positions] token-wise gate, mean over features. This and what follows is absent where no memory was read."""
    memory: Numbers = field(default_factory=list, metadata=LEFT_OUT)
    """[positions] length of what the memory added, divided by the length of what it was added to."""
    attention: list[list[Numbers]] = field(default_factory=list, metadata=LEFT_OUT)
    """[heads, positions, remembered loops] weights, the newest loop first; each row sums to one."""


@dataclass(frozen=True)
class TracedLoop:
    """One loop, and what the model says if it is the last."""

    loop: int
    """Counted from 1."""
    continue_prob: float | None
    """The head's probability that another loop is worth it; None without a trained head."""
    confidence: float
    """Probability of the likeliest first token of the answer."""
    answer: str
    """Greedy, at this depth."""
    answer_prob: float
    """Product over its tokens."""
    right: bool | None
    """Whether it is the reference; None without one."""
    loss: float | None
    """Mean negative log-likelihood of the reference's tokens."""
    norm: Numbers
    """[positions] of the block's output."""
    change: Numbers
    """[positions] angle between the block's output and its output of the loop before (its input, in the first loop),
    in half turns."""
    injection: Numbers
    """[positions] length of what the input injection added, divided by the length of what it was added to."""
    lens: Lens
    """The block's output read by the final norm and the LM head, past the decoder layers."""
    decoded: Lens
    """The model's prediction of the next token at this depth."""
    layers: list[TracedLayer]


@dataclass(frozen=True)
class LoopTrace(Record):
    """All that the loop did with one prompt, at every depth, from one pass."""

    model: str
    """Hub id or folder."""
    prompt: str
    tokens: Annotated[list[str], Field(min_length=1)]
    """The prompt's tokens as text."""
    reference: str | None
    """The right answer, if it was given."""
    memory_off_from: int | None
    """Loop from which on the memory was switched off; None if it was not."""
    memory_window: int
    """Loops that a layer can look back; 0 for a model without memory."""
    injection_scale: float
    """α"""
    head: TracedHead | None
    """None without a trained halting head."""
    block: list[LoopedLayer]
    vocabulary: list[str]
    """Texts of the tokens that occur in a lens."""
    loops: Annotated[list[TracedLoop], Field(min_length=1)]
    loop_fingerprint: str = ""
    """Tells whether another trace is of the same loop modules."""
    version: str = ""
    """Of the package."""
    format: int = 1
    """Of this file."""

    def write(self, path: Path) -> None:
        """On one line: a long prompt has some hundred thousand numbers."""
        with writing(path) as temporary:
            text = json.dumps(self.as_json(), ensure_ascii=False, separators=(",", ":"))
            temporary.write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_record(path, cls, "a trace", "recurtrace trace --out")
