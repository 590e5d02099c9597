"""One batch of examples at every depth, measured in one unroll.

A batch is encoded once, looped to the deepest depth once, and decoded at every depth: in layer passes, encoder +
T·block + T·decoder. Losses come of that pass alone. So do greedy answers where every token of the reference is the
likeliest; the others are written out from a cache that already holds their prompt.

Shapes: b rows · s positions · d hidden size · T depths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from recurtrace.data.answers import first_line
from recurtrace.data.benchmarks import is_right, longest_answer
from recurtrace.data.collate import IGNORED, Encoded, collate_aligned, padding_id
from recurtrace.halting.signals import DECODED, next_token
from recurtrace.halting.sweep_files import STATES, SavedRow
from recurtrace.model import RecurTraceCache, RecurTraceForCausalLM
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.halting import pool_prompt
from recurtrace.model.labelled_loss import head_chunks


class Choice(Protocol):
    """Gives every example of a batch a depth, as the loops run."""

    deepest: int

    def stops(self, t: int, h: Tensor, prompt: Tensor, encoded: Sequence[Encoded]) -> list[bool]:
        """Which examples have reached their depth by loop `t`, including those that reached it earlier."""


@dataclass(frozen=True)
class Chosen:
    """An example at the depth that a rule gave it."""

    depth: int
    answer: str
    loss: float
    correct: bool


@dataclass(frozen=True)
class Measured:
    """One example at every depth."""

    answers: list[str]
    correct: np.ndarray  # [T]
    arrays: dict[str, np.ndarray]
    """Losses and signals [T], pooled states [T, d]."""
    chosen: list[Chosen]
    """One for each rule."""

    def as_saved(self) -> SavedRow:
        return self.answers, self.arrays | {"correct": self.correct}


class Engine(Protocol):
    """Another way to run a model than torch, without its states: vLLM's (serving/offline.py)."""

    config: RecurTraceConfig
    fingerprint: str
    """Of the loop modules."""
    signals: Sequence[str]
    """What it measures of the next token."""
    versions: Mapping[str, str]

    def measure(
        self, encoded: Sequence[Encoded], depths: Sequence[int], named: Sequence[Sequence[int | str]] = ()
    ) -> list[Measured]:
        """Examples at every depth, and each at depths of its own: a list for every rule, numbers or "adaptive"."""


def measure(
    model: RecurTraceForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Sequence[Encoded],
    depths: Sequence[int],
    choose: Sequence[Choice] = (),
    states: bool = True,
) -> list[Measured]:
    """One batch, at every depth; `choose` are rules that give each example a depth of its own, measured too."""
    batch, prompt_columns = collate_aligned(encoded, padding_id(tokenizer))
    batch = {name: values.to(model.device) for name, values in batch.items()}
    measurement = _Measurement(model, tokenizer, encoded, batch, prompt_columns, depths, choose, states)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    deepest = max([*depths, *(rule.deepest for rule in choose)], default=1)
    with torch.inference_mode():
        model.unroll(**inputs, loops=deepest, cache=measurement.cache, visit=measurement.visit)
    return measurement.rows()


class _Measurement:
    """What is measured on one batch while it is unrolled."""

    def __init__(
        self,
        model: RecurTraceForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        encoded: Sequence[Encoded],
        batch: dict[str, Tensor],
        prompt_columns: int,
        depths: Sequence[int],
        choose: Sequence[Choice],
        states: bool,
    ):
        self.model, self.encoded, self.prompt_columns = model, encoded, prompt_columns
        self.depths, self.choose, self.states = depths, choose, states
        self.ends = EndOfAnswer(tokenizer)
        self.cache = RecurTraceCache(model.config)
        self.cache.activate_past_recording()  # sliding windows too can then be cut back to the prompt
        self.targets = batch["labels"].roll(-1, dims=1)  # what each position has to predict
        self.targets[:, -1] = IGNORED
        self.prompt = batch["attention_mask"].bool()
        self.prompt[:, prompt_columns:] = False
        self.log_probs: Tensor | None = None  # of the next token, at the depth before
        self.found: dict[str, list[Tensor]] = {}
        self.answers: list[list[str]] = []
        self.chosen: list[list[Chosen | None]] = [[None] * len(choose) for _ in encoded]

    def visit(self, t: int, h: Tensor, decode: Callable[[RecurTraceCache], Tensor]) -> bool:
        stopped = [rule.stops(t, h, self.prompt, self.encoded) for rule in self.choose]
        new = [
            (row, number)
            for number, stops in enumerate(stopped)
            for row, stop in enumerate(stops)
            if stop and self.chosen[row][number] is None
        ]
        if t in self.depths or new:
            rows = list(range(len(self.encoded))) if t in self.depths else sorted({row for row, _ in new})
            answers, values = self._measure(t, h, decode, rows)
            for row, number in new:
                place = rows.index(row)
                right = is_right(self.encoded[row].source, answers[place])
                self.chosen[row][number] = Chosen(t, answers[place], values["loss"][place].item(), right)
        return t < max(self.depths, default=0) or not all(map(all, stopped))

    def _measure(
        self, t: int, h: Tensor, decode: Callable[[RecurTraceCache], Tensor], rows: list[int]
    ) -> tuple[list[str], dict[str, Tensor]]:
        """Answers and means of some rows; of all at a depth that was asked for."""
        slots = self.cache.fork(t)
        final = decode(slots)
        logits, likeliest, means = _answer_tokens(
            self.model, final[rows], self.targets[rows], [self.encoded[row] for row in rows]
        )
        answers = self._greedy(slots, logits.argmax(-1), likeliest, rows)
        if t in self.depths:
            log_probs, before = next_token(logits), self.log_probs
            signals = {signal.name: signal.formula(log_probs, before) for signal in DECODED if signal.formula}
            self.log_probs = log_probs
            poolings = STATES.items() if self.states else ()
            pooled = {name: pool_prompt(h, self.prompt, pooling) for pooling, name in poolings}
            for name, values in {**means, **signals, **pooled}.items():
                self.found.setdefault(name, []).append(values)
            self.answers.append(answers)
        return answers, means

    def _greedy(self, slots: RecurTraceCache, first: Tensor, likeliest: list[list[int]], rows: list[int]) -> list[str]:
        """The greedy answers at one depth; only those that are not the reference must be written out."""
        items = [self.encoded[row] for row in rows]
        written = [item.input_ids[item.prompt_length :] for item in items]
        short = [len(tokens) <= longest_answer(i.source) for tokens, i in zip(written, items, strict=True)]
        differ = [i for i, reference in enumerate(written) if likeliest[i] != reference or not short[i]]
        if differ:
            left = torch.tensor([rows[i] for i in differ], device=first.device)
            slots.crop(self.prompt_columns - self.prompt.shape[1])
            slots.batch_select_indices(left)
            limits = [longest_answer(items[i].source) for i in differ]
            mask = self.prompt[left, : self.prompt_columns]
            for i, tokens in zip(
                differ, _write_on(self.model, slots, first[differ], mask, limits, self.ends), strict=True
            ):
                written[i] = tokens
        return [first_line(self.ends.text(tokens)) for tokens in written]

    def rows(self) -> list[Measured]:
        arrays = {name: torch.stack(values, dim=1).float().cpu().numpy() for name, values in self.found.items()}
        rows = []
        for i, item in enumerate(self.encoded):
            answers = [at_depth[i] for at_depth in self.answers]
            correct = np.array([is_right(item.source, answer) for answer in answers])
            chosen = [one for one in self.chosen[i] if one is not None]  # every rule has stopped by its deepest loop
            rows.append(Measured(answers, correct, {name: array[i] for name, array in arrays.items()}, chosen))
        return rows


class EndOfAnswer:
    """Which tokens end an answer: the end of the text, and a new line."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self._known: dict[int, bool] = {}

    def __call__(self, token: int) -> bool:
        if token not in self._known:
            self._known[token] = token == self.tokenizer.eos_token_id or "\n" in self.tokenizer.decode([token])
        return self._known[token]

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def _answer_tokens(
    model: RecurTraceForCausalLM, final: Tensor, targets: Tensor, encoded: Sequence[Encoded]
) -> tuple[Tensor, list[list[int]], dict[str, Tensor]]:
    """Logits after the prompt, the likeliest token at every answer position, means without the end of the text."""
    rows, columns = (targets != IGNORED).nonzero(as_tuple=True)
    wanted = targets[rows, columns]
    begins = columns == columns.min()  # prompts end in the same column
    next_token, likeliest, measured = [], [], []
    for chunk in head_chunks(model.lm_head, len(rows)):
        logits = model.lm_head(final[rows[chunk], columns[chunk]])
        next_token.append(logits[begins[chunk]])
        log_probs = F.log_softmax(logits.float(), dim=-1)
        top, ids = log_probs.topk(2, dim=-1)
        likeliest.append(ids[:, 0])
        loss = -log_probs.gather(1, wanted[chunk, None])[:, 0]
        first, second = top.exp().unbind(-1)
        measured.append(torch.stack([loss, (ids[:, 0] == wanted[chunk]).float(), first, first - second]))
    lengths = [len(item.input_ids) - item.prompt_length for item in encoded]
    per_row = torch.cat(measured, dim=1).split(lengths, dim=1)
    means = torch.stack([values[:, :-1].mean(dim=1) for values in per_row], dim=1)
    names = ("loss", "token_accuracy", "mean_top_prob", "mean_margin")
    tokens = [part.tolist() for part in torch.cat(likeliest).split(lengths)]
    return torch.cat(next_token), tokens, dict(zip(names, means, strict=True))


def _write_on(
    model: RecurTraceForCausalLM,
    cache: RecurTraceCache,
    first: Tensor,
    mask: Tensor,
    limits: Sequence[int],
    ends: EndOfAnswer,
) -> list[list[int]]:
    """Greedy answers of rows whose prompts are in the cache and whose first token is known, each to its own length."""
    written = [[token] for token in first.tolist()]
    active = list(range(len(written)))
    position = mask.sum(dim=1)
    while True:
        stay = [
            place for place, row in enumerate(active) if len(written[row]) < limits[row] and not ends(written[row][-1])
        ]
        if not stay:
            break
        if len(stay) < len(active):
            active = [active[place] for place in stay]
            chosen = torch.tensor(stay, device=mask.device)
            cache.batch_select_indices(chosen)
            mask, position, first = mask[chosen], position[chosen], first[chosen]
        mask = F.pad(mask, (0, 1), value=True)
        out = model(
            input_ids=first[:, None],
            attention_mask=mask.long(),
            position_ids=position[:, None],
            past_key_values=cache,
        )
        first, position = out.logits[:, -1].argmax(-1), position + 1
        for row, token in zip(active, first.tolist(), strict=True):
            written[row].append(token)
    return written
