"""Examples into tensors: tokenised, with labels on the answer only, padded for evaluation (packed: packing.py).

An answer is never truncated. A prompt that leaves too little room for it loses tokens at its left end, where a long
context begins, and keeps what the tokenizer puts in front (BOS); an example whose answer would leave fewer than
MIN_PROMPT prompt tokens is dropped. `Lengths` counts both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from recurtrace.data.example import End, Example
from recurtrace.errors import RecurTraceError

IGNORED = -100  # the label of a position without loss, as in transformers
MIN_PROMPT = 16


@dataclass(frozen=True)
class Encoded:
    """Token ids of an example; the answer begins at `prompt_length`."""

    input_ids: list[int]
    prompt_length: int
    example: Example | None = None
    begins: int = 0
    """Position of its first token: above 0 for what follows a beginning that several examples share (packing.py)."""

    @property
    def source(self) -> Example:
        """The example it was made of."""
        assert self.example is not None  # only a packed row, read back from disk, has lost it
        return self.example

    @property
    def answer_tokens(self) -> int:
        """Without the end of the text."""
        return len(self.input_ids) - self.prompt_length - 1

    @property
    def labels(self) -> list[int]:
        return [IGNORED] * self.prompt_length + self.input_ids[self.prompt_length :]


@dataclass
class Lengths:
    """What the maximum length did to the examples."""

    kept: int = 0
    cut: int = 0
    """Kept with a prompt cut from the left."""
    dropped: list[str] = field(default_factory=list)
    """Ids of examples whose answer leaves no room for the prompt."""

    def __str__(self) -> str:
        return f"{self.kept:,} examples, {self.cut:,} with a prompt cut from the left, {len(self.dropped):,} dropped"


class Encoder:
    """Tokenises examples to at most `max_length` tokens.

    `end` is put behind the answer, as something to learn; measured losses are of the answer alone.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, end: End | None = "text"):
        if max_length <= MIN_PROMPT:
            raise RecurTraceError(f"max_length must be above {MIN_PROMPT}, got {max_length}.")
        if end == "text" and tokenizer.eos_token_id is None:
            raise RecurTraceError("the tokenizer has no end-of-text token, so an answer cannot end; set eos_token.")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.ending = [] if end is None else [tokenizer.eos_token_id if end == "text" else newline_id(tokenizer)]
        self.lengths = Lengths()
        self._front = len(_leading_special(tokenizer))

    def __call__(self, examples: Sequence[Example]) -> list[Encoded]:
        if not examples:  # which a tokenizer does not take
            return []
        prompts = self.tokenizer([example.prompt for example in examples])["input_ids"]
        wholes = self.tokenizer([f"{example.prompt} {example.answer}" for example in examples])["input_ids"]
        encoded = []
        for example, prompt, whole in zip(examples, prompts, wholes, strict=True):
            fitted = self._fit(prompt, self._answer(example, prompt, whole) + self.ending)
            if fitted is None:
                self.lengths.dropped.append(example.id)
            else:
                encoded.append(Encoded(*fitted, example))
        self.lengths.kept += len(encoded)
        return encoded

    def _answer(self, example: Example, prompt: list[int], whole: list[int]) -> list[int]:
        # A model is given the prompt alone, so the answer is what follows the prompt's own tokens; where the text in
        # one piece is cut into other tokens than the prompt is, the answer is tokenised by itself.
        if whole[: len(prompt)] == prompt and len(whole) > len(prompt):
            return whole[len(prompt) :]
        return self.tokenizer(f" {example.answer}", add_special_tokens=False)["input_ids"]

    def _fit(self, prompt: list[int], answer: list[int]) -> tuple[list[int], int] | None:
        room = self.max_length - len(answer)
        if len(prompt) > room:
            if room < max(MIN_PROMPT, self._front + 1):
                return None
            self.lengths.cut += 1
            prompt = prompt[: self._front] + prompt[len(prompt) - room + self._front :]
        return prompt + answer, len(prompt)


def newline_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a line."""
    *_, last = tokenizer("x\n", add_special_tokens=False)["input_ids"]
    if tokenizer.decode([last]) != "\n":
        raise RecurTraceError("the tokenizer has no token for the end of a line; end answers with the text.")
    return int(last)


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token padding is made of; masked everywhere, so any will do where the tokenizer names none."""
    return next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)


def _leading_special(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before every text: a BOS, or nothing."""
    bare, whole = (tokenizer("x", add_special_tokens=added)["input_ids"] for added in (False, True))
    if whole[len(whole) - len(bare) :] != bare:
        raise RecurTraceError(
            "the tokenizer appends tokens to a text, so an answer cannot follow its prompt; switch that off "
            "(add_eos_token=False)."
        )
    return whole[: len(whole) - len(bare)]


def collate_aligned(encoded: Sequence[Encoded], pad_id: int) -> tuple[dict[str, Tensor], int]:
    """One example in a row, all prompts ending in the same column: padding goes before them and after the answers.

    Gives the batch and the number of prompt columns, so that a cache cut there holds the prompts alone.
    """
    before = max(item.prompt_length for item in encoded)
    after = max(len(item.input_ids) - item.prompt_length for item in encoded)
    columns: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for item in encoded:
        left = before - item.prompt_length
        right = after - (len(item.input_ids) - item.prompt_length)
        columns["input_ids"].append([pad_id] * left + item.input_ids + [pad_id] * right)
        columns["attention_mask"].append([0] * left + [1] * len(item.input_ids) + [0] * right)
        columns["labels"].append([IGNORED] * left + item.labels + [IGNORED] * right)
    batch = {name: torch.tensor(values) for name, values in columns.items()}
    return _with_positions(batch), before


def collate_padded(encoded: Sequence[Encoded], pad_id: int, side: str = "right") -> dict[str, Any]:
    """One example in a row, with `prompt_mask` for the halting head; `side` is where the padding goes."""
    longest = max(len(item.input_ids) for item in encoded)

    def padded(values: list[int], filler: int) -> list[int]:
        rest = [filler] * (longest - len(values))
        return values + rest if side == "right" else rest + values

    columns = {
        "input_ids": [padded(item.input_ids, pad_id) for item in encoded],
        "attention_mask": [padded([1] * len(item.input_ids), 0) for item in encoded],
        "prompt_mask": [padded([int(label == IGNORED) for label in item.labels], 0) for item in encoded],
        "labels": [padded(item.labels, IGNORED) for item in encoded],
    }
    return _with_positions({name: torch.tensor(values) for name, values in columns.items()})


def _with_positions(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A sequence's first token is at 0, wherever padding goes."""
    return {**batch, "position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)}
