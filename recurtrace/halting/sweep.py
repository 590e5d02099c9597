"""The depth sweep: every depth of every example, measured in one unroll.

A batch is encoded once, looped to the deepest depth once, and decoded at every depth: in layer passes, encoder +
T·block + T·decoder. Losses come of that pass alone. So do greedy answers where every token of the reference is the
likeliest; the others are written out from a cache that already holds their prompt.

Shapes: b rows · s positions · d hidden size · T depths.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from recurtrace.data.answers import first_line
from recurtrace.data.benchmarks import is_right, longest_answer
from recurtrace.data.collate import IGNORED, Encoded, Encoder, collate_aligned, padding_id
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.files import begin, claim, locked
from recurtrace.halting.signals import DECODED, next_token
from recurtrace.halting.sweep_files import (
    STATES,
    SWEEP,
    SavedRow,
    SweepItem,
    SweepManifest,
    part_files,
    read_partial,
    write_manifest,
    write_part,
    write_partial,
)
from recurtrace.model import RecurTraceCache, RecurTraceForCausalLM
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.cost import cost_of
from recurtrace.model.depth import check_limit
from recurtrace.model.halting import pool_prompt
from recurtrace.model.heads import loop_fingerprint
from recurtrace.model.labelled_loss import head_chunks
from recurtrace.model.positions import longest_input

DEPTHS = tuple(range(1, 17))
MAX_LENGTH = 1024
"""Longest example in tokens where nothing is asked for and the base has as many positions."""
SAVE_EVERY = 30  # seconds of work that an interruption may cost


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


def sweep(
    model: RecurTraceForCausalLM | Engine,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    out: Path,
    split: str,
    *,
    data: str = "",
    depths: Sequence[int] = DEPTHS,
    seeds: Sequence[int] | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    extrapolate: bool = False,
    part_size: int = 256,
    states: bool = True,
    overwrite: bool = False,
) -> SweepManifest:
    """Measure `examples` into the folder `out`; what is there already is not measured again.

    `split` says what they may be used for: thresholds and heads are never fitted on "test". `seeds` gives each example
    its evaluation seed. `states` keeps the pooled states, which heads are trained on. `max_length` is that of the base
    if left out, and beyond its positions only with `extrapolate`. Started by `accelerate launch`, every process takes
    its share of the parts, and the files are those of one process.
    """
    depths = sorted(set(depths))
    if states and not isinstance(model, RecurTraceForCausalLM):
        raise RecurTraceError("pooled states are kept by the torch engine only; pass --no-states.")
    if not depths or depths[0] < 1:
        raise RecurTraceError(f"depths must be whole numbers of at least 1, got {depths}.")
    check_limit(depths[-1], model.config, "the deepest of the depths")
    max_length = longest_input(model.config, max_length, MAX_LENGTH, extrapolate)
    encoder = Encoder(tokenizer, max_length)
    require_own_ids(examples)
    seed_of = dict(zip(examples, seeds if seeds is not None else [-1] * len(examples), strict=True))
    encoded = encoder(examples)
    if not encoded:
        raise RecurTraceError(f"no example fits in {max_length} tokens; raise max_length (--max-length).")
    parts = [encoded[i : i + part_size] for i in range(0, len(encoded), part_size)]
    layers, block = model.config.get_text_config().num_hidden_layers, model.config.block
    manifest = SweepManifest(
        split=split,
        depths=depths,
        base_fingerprint=model.config.base_fingerprint,
        loop_fingerprint=fingerprint_of(model),
        block=[block.start, block.stop - 1],
        data=data,
        examples=len(encoded),
        examples_sha256=examples_hash([item.source for item in encoded]),
        max_length=max_length,
        parts=len(parts),
        part_size=part_size,
        states=states,
        signals=[signal.name for signal in DECODED] if isinstance(model, RecurTraceForCausalLM) else [*model.signals],
        layer_passes=block.start + depths[-1] * len(block) + len(depths) * (layers - block.stop),
        layer_passes_of_the_base=layers,
        cut=encoder.lengths.cut,
        dropped=encoder.lengths.dropped,
        versions=versions_of(model),
        model=model.config.name_or_path,
        flops=_flops(model.config, encoded, depths),
    )
    process = PartialState(cpu=not torch.cuda.is_available())

    def measured(batch: Sequence[Encoded]) -> list[Measured]:
        if isinstance(model, RecurTraceForCausalLM):
            return measure(model, tokenizer, batch, depths, states=states)
        return model.measure(batch, depths)

    with locked(out) if process.is_main_process else nullcontext():
        if process.is_main_process and claim(out, SWEEP, manifest.identity, overwrite) is None:
            begin(out, SWEEP, asdict(manifest))
        process.wait_for_everyone()
        mine = list(enumerate(parts))[process.process_index :: process.num_processes]
        total, desc = sum(len(part) for _, part in mine), f"sweep to depth {depths[-1]}"
        bar = tqdm(total=total, desc=desc, unit="example", disable=not process.is_main_process)
        for number, part in mine:
            if part_files(out, number)[0].is_file():
                bar.update(len(part))
                continue
            by_length = sorted(range(len(part)), key=lambda i: len(part[i].input_ids))
            rows, saved = read_partial(out, number), time.monotonic()
            for start in range(0, len(part), batch_size):
                batch = by_length[start : start + batch_size]
                if not all(i in rows for i in batch):
                    found = measured([part[i] for i in batch])
                    rows |= {i: one.as_saved() for i, one in zip(batch, found, strict=True)}
                if time.monotonic() - saved > SAVE_EVERY:
                    write_partial(out, number, rows)
                    saved = time.monotonic()
                bar.update(len(batch))
            answers, arrays = zip(*(rows[i] for i in range(len(part))), strict=True)
            items = [
                SweepItem(**identity(item, seed_of[item.source]), answers=own, prompt=item.source.prompt)
                for item, own in zip(part, answers, strict=True)
            ]
            write_part(out, number, items, {name: np.stack([own[name] for own in arrays]) for name in arrays[0]})
        bar.close()
        process.wait_for_everyone()
        manifest = replace(manifest, complete=True)
        if process.is_main_process:
            write_manifest(out, manifest)
    return manifest


def fingerprint_of(model: RecurTraceForCausalLM | Engine) -> str:
    """Of the loop modules, whatever runs them."""
    if isinstance(model, RecurTraceForCausalLM):
        return loop_fingerprint(model.loop_state_dict())
    return model.fingerprint


def versions_of(model: RecurTraceForCausalLM | Engine) -> dict[str, str]:
    """What measured; another engine is another version, so that none resumes what the other began."""
    own = {package: version(package) for package in ("recurtrace", "torch", "transformers")}
    return own if isinstance(model, RecurTraceForCausalLM) else {**own, **model.versions}


def _flops(config: RecurTraceConfig, encoded: Sequence[Encoded], depths: Sequence[int]) -> float:
    cost, before = cost_of(config), config.block.start
    lengths = [(len(item.input_ids), len(item.input_ids) - item.prompt_length) for item in encoded]
    return 2.0 * sum(cost.sweep_macs(depths, tokens, answer, before) for tokens, answer in lengths)


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


def require_own_ids(examples: Sequence[Example]) -> None:
    if len({example.id for example in examples}) < len(examples):
        raise RecurTraceError(
            "two examples have the same id, so their measurements cannot be told apart; make ids unique."
        )


def examples_hash(examples: Iterable[Example]) -> str:
    """Which examples, in which order."""
    return hashlib.sha256("\0".join(f"{item.id} {item.prompt_hash}" for item in examples).encode()).hexdigest()


def identity(encoded: Encoded, seed: int) -> dict[str, Any]:
    """The fields of an `Item`."""
    example = encoded.source
    return {
        "id": example.id,
        "task": example.task,
        "bucket": example.bucket,
        "seed": seed,
        "prompt_hash": example.prompt_hash,
        "reference": example.answer,
        "answer_tokens": encoded.answer_tokens,
    }
