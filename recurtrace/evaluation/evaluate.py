"""Evaluation: every item at the depths asked for, as records.

Fixed depths, the halting head's choice and T = k share one unroll for each batch. A model without loops (a fine-tuned
base, an adapter) is the same thing at one loop, so baselines go through the same code.
"""

from collections.abc import Sequence
from importlib.metadata import version
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
from recurtrace.files import claim, write_json
from recurtrace.halting.sweep import Choice, Measured, examples_hash, identity, measure
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.halting import HaltingHead, pool_prompt
from recurtrace.model.heads import loop_fingerprint
from recurtrace.records import MANIFEST, DepthResult, ItemRecord, repaired

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
        return [t >= steps_of(item.source) for item in encoded]


def steps_of(example: Example) -> int:
    name, _, number = example.bucket.partition("=")
    if name != "k" or not number.isdigit():
        raise RecurTraceError(
            f"loops k needs tasks whose items have a number of steps, and {example.task} has none; leave out k."
        )
    return int(number)


def evaluate(
    model: RecurTraceForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    out: Path,
    loops: Asked = (1, 2, 4, 6, 8),
    *,
    seeds: Sequence[int] | None = None,
    head: str | None = None,
    batch_size: int = 16,
    max_length: int = 1024,
    about: dict[str, Any] | None = None,
    command: str = "",
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
    settings = model.config.head_settings(head) if "adaptive" in named else None
    seed_of = dict(zip(examples, seeds if seeds is not None else [-1] * len(examples), strict=True))
    deepest = max((steps_of(example) for example in examples), default=1) if "k" in named else 1

    encoder = Encoder(tokenizer, max_length)
    encoded = encoder(examples)
    if not encoded:
        raise RecurTraceError(f"no example fits in {max_length} tokens; raise max_length (--max-length).")
    process = PartialState(cpu=not torch.cuda.is_available())
    manifest = {
        **(about or {}),
        "base_fingerprint": model.config.base_fingerprint,
        "loop_fingerprint": loop_fingerprint(model.loop_state_dict()),
        "loops": [str(asked) for asked in loops],
        "head": head,
        "halting": vars(settings) if settings is not None else None,
        "items": len(encoded),
        "items_sha256": examples_hash(sorted((item.source for item in encoded), key=lambda example: example.id)),
        "max_length": encoder.max_length,
        "cut": encoder.lengths.cut,
        "dropped": encoder.lengths.dropped,
        "processes": process.num_processes,
        "versions": {package: version(package) for package in ("recurtrace", "torch", "transformers")},
    }
    with process.main_process_first():
        if claim(out, MANIFEST, manifest, "evaluation") is None:
            write_json(out / MANIFEST, {**manifest, "command": command})
    file = out / f"records-{process.process_index:05d}-of-{process.num_processes:05d}.jsonl"
    done = {record.id for record in repaired(file)}
    mine = sorted(encoded, key=lambda item: len(item.input_ids))[process.process_index :: process.num_processes]
    left = [item for item in mine if item.source.id not in done]

    bar = tqdm(total=len(mine), initial=len(done), unit="item", desc="evaluate", disable=not process.is_main_process)
    with file.open("a", encoding="utf-8") as lines:
        for start in range(0, len(left), batch_size):
            batch = left[start : start + batch_size]
            rules: dict[str, Choice] = {}
            if settings is not None:
                rules["adaptive"] = HeadChoice(model.loop.head(head), settings)
            if "k" in named:
                rules["k"] = StepsChoice(deepest)
            rows = measure(model, tokenizer, batch, fixed, list(rules.values()), states=False)
            probs = _probs(rules.get("adaptive"), len(batch))
            for item, row, own in zip(batch, rows, probs, strict=True):
                lines.write(_record(item, row, fixed, list(rules), seed_of[item.source], own).line())
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
        results.append(DepthResult(name, chosen.depth, chosen.loss, chosen.correct, chosen.answer))
        if name == "adaptive":
            probs = probs[: chosen.depth]
    return ItemRecord(**identity(item, seed), results=results, continue_probs=[float(f"{p:.6g}") for p in probs])
