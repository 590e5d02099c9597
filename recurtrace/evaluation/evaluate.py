"""Evaluation: every item at the depths asked for, as records.

Fixed depths, the halting head's choice and T = k share one unroll for each batch. A model without loops (a fine-tuned
base, an adapter) is the same thing at one loop, so baselines go through the same code.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from recurtrace.data.collate import Encoded, Encoder
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.files import begin, claim, locked
from recurtrace.halting.measure import Choice, Engine, Measured, measure
from recurtrace.halting.sweep import MAX_LENGTH, fingerprint_of, identity, require_own_ids, versions_of
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.depth import check_limit
from recurtrace.model.halting import HaltingHead, pool_prompt
from recurtrace.model.positions import longest_input
from recurtrace.records import EVALUATION, DepthResult, ItemRecord, items_hash, whole_batches

Asked = Sequence[int | str]


class HeadChoice:
    """Algorithm 1 along an unroll that goes on for the others: an example's depth is the first that the rule stops."""

    def __init__(self, head: HaltingHead, settings: HeadSettings):
        self.head, self.settings, self.deepest = head, settings, settings.max_depth
        self.probs: list[Tensor] = []
        self.stopped: Any = False

    def stops(self, t: int, h: Tensor, prompt: Tensor, encoded: Sequence[Encoded]) -> list[bool]:
        probs = self.head(pool_prompt(h, prompt, self.settings.pooling))
        self.probs.append(probs)
        self.stopped = self.stopped | self.settings.rule.halts(t, probs)
        return torch.as_tensor(self.stopped).expand(len(encoded)).tolist()


class StepsChoice:
    """T = k: as many loops as the problem has steps, which its bucket says."""

    def __init__(self, deepest: int):
        self.deepest = deepest

    def stops(self, t: int, h: Tensor, prompt: Tensor, encoded: Sequence[Encoded]) -> list[bool]:
        return [t >= (steps_of(item.source) or 1) for item in encoded]


def steps_of(example: Example) -> int | None:
    """None where an item does not say; it then has no result at T = k."""
    name, _, number = example.bucket.partition("=")
    return int(number) if name == "k" and number.isdigit() else None


def evaluate(
    model: RecurTraceForCausalLM | Engine,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    out: Path,
    loops: Asked = (1, 2, 4, 6, 8),
    *,
    seeds: Sequence[int] | None = None,
    head: str | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    extrapolate: bool = False,
    about: dict[str, Any] | None = None,
    command: str = "",
    overwrite: bool = False,
) -> None:
    """Write a record for every example to the folder `out`; those that are there are not measured again.

    Started by `accelerate launch`, every process takes its share of the items. `about` and `command` go into the
    manifest: where model and data came from, and what was typed.
    """
    fixed = sorted({asked for asked in loops if isinstance(asked, int)})
    named = [asked for asked in loops if isinstance(asked, str)]
    if unknown := [name for name in named if name not in ("adaptive", "k")]:
        raise RecurTraceError(f'loops are whole numbers, "adaptive" or "k", got {unknown[0]!r}.')
    if fixed and fixed[0] < 1:
        raise RecurTraceError(f"loops must be at least 1, got {fixed[0]}.")
    check_limit(max(fixed, default=1), model.config)
    settings = model.config.head_settings(head) if "adaptive" in named else None
    seed_of = dict(zip(examples, seeds if seeds is not None else [-1] * len(examples), strict=True))
    steps = [known for example in examples if (known := steps_of(example))] if "k" in named else []
    if "k" in named and not steps:
        raise RecurTraceError("loops k needs tasks whose items have a number of steps, and none has; leave out k.")

    max_length = longest_input(model.config, max_length, MAX_LENGTH, extrapolate)
    require_own_ids(examples)
    encoder = Encoder(tokenizer, max_length)
    encoded = encoder(examples)
    if not encoded:
        raise RecurTraceError(f"no example fits in {max_length} tokens; raise max_length (--max-length).")
    process = PartialState(cpu=not torch.cuda.is_available())
    manifest = {
        **(about or {}),
        "base_fingerprint": model.config.base_fingerprint,
        "loop_fingerprint": fingerprint_of(model),
        "loops": [str(asked) for asked in loops],
        "head": head,
        "halting": vars(settings) if settings is not None else None,
        "items": len(encoded),
        "items_sha256": items_hash((item.source.id, item.source.prompt_hash) for item in encoded),
        "max_length": encoder.max_length,
        "cut": encoder.lengths.cut,
        "dropped": encoder.lengths.dropped,
        "processes": process.num_processes,
        "versions": versions_of(model),
    }

    def records(batch: Sequence[Encoded]) -> list[ItemRecord]:
        if isinstance(model, RecurTraceForCausalLM):
            rules: dict[str, Choice] = {}
            if settings is not None:
                rules["adaptive"] = HeadChoice(model.loop.head(head), settings)
            if "k" in named:
                rules["k"] = StepsChoice(max(steps))
            rows = measure(model, tokenizer, batch, fixed, list(rules.values()), states=False)
            names, probs = list(rules), _probs(rules.get("adaptive"), len(batch))
        else:
            names, probs = sorted(named), [[]] * len(batch)  # adaptive before k; an engine tells no probabilities
            own_depths = [
                [name if name == "adaptive" else steps_of(one.source) or 1 for one in batch] for name in names
            ]
            rows = model.measure(batch, fixed, own_depths)
        return [
            _record(item, row, fixed, names, seed_of[item.source], own)
            for item, row, own in zip(batch, rows, probs, strict=True)
        ]

    with locked(out) if process.is_main_process else nullcontext():
        if process.is_main_process:
            # Folders may be renamed: fingerprints and hashes say which model and which items.
            same = {name: value for name, value in manifest.items() if name not in ("model", "tasks")}
            if claim(out, EVALUATION, same, overwrite) is None:
                base = model.config.base_model_name_or_path if manifest.get("kind") == "looped" else None
                begin(out, EVALUATION, {**manifest, "base": base or "", "command": command})
        process.wait_for_everyone()
        mine = sorted(encoded, key=lambda item: len(item.input_ids))[process.process_index :: process.num_processes]
        batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
        file = out / f"records-{process.process_index:05d}-of-{process.num_processes:05d}.jsonl"
        there = whole_batches(file, [[item.source.id for item in batch] for batch in batches])
        bar = tqdm(total=len(mine), unit="item", desc="evaluate", disable=not process.is_main_process)
        with file.open("a", encoding="utf-8") as lines:
            for batch, done in zip(batches, there, strict=True):
                if not done:
                    lines.writelines(record.line() for record in records(batch))
                    lines.flush()
                bar.update(len(batch))
        bar.close()
        process.wait_for_everyone()


def _probs(rule: Choice | None, rows: int) -> list[list[float]]:
    return torch.stack(rule.probs, dim=1).tolist() if isinstance(rule, HeadChoice) else [[]] * rows


def _record(
    item: Encoded, row: Measured, fixed: list[int], named: list[str], seed: int, probs: list[float]
) -> ItemRecord:
    results = [
        DepthResult(str(t), t, float(row.arrays["loss"][i]), bool(row.correct[i]), row.answers[i])
        for i, t in enumerate(fixed)
    ]
    for name, chosen in zip(named, row.chosen, strict=True):
        if name == "k" and steps_of(item.source) is None:
            continue
        results.append(DepthResult(name, chosen.depth, chosen.loss, chosen.correct, chosen.answer))
        if name == "adaptive":
            probs = probs[: chosen.depth]
    return ItemRecord(**identity(item, seed), results=results, continue_probs=[float(f"{p:.6g}") for p in probs])
