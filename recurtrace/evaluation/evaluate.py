"""Evaluation: every item at the depths asked for, as records.

Fixed depths, the halting head's choice and T = k share one unroll for each batch. A model without loops (a fine-tuned
base, an adapter) is the same thing at one loop, so baselines go through the same code.
"""

import hashlib
import json
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
from recurtrace.files import holds_something, write_json
from recurtrace.halting.sweep import Choice, measure
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.halting import HaltingHead, pool_prompt
from recurtrace.model.heads import loop_fingerprint
from recurtrace.records import MANIFEST, DepthResult, ItemRecord, repaired

Asked = Sequence[int | str]


class HeadChoice:
    """Algorithm 1 along an unroll: an example's depth is the first at which the head says stop."""

    def __init__(self, head: HaltingHead, settings: HeadSettings):
        self.head, self.settings, self.deepest = head, settings, settings.max_depth
        self.probs: list[Tensor] = []
        self.stopped: Tensor = torch.tensor(False)

    def stops(self, t: int, h: Tensor, prompt: Tensor, encoded: Sequence[Encoded]) -> list[bool]:
        probs = self.head(pool_prompt(h, prompt, self.settings.pooling))
        self.probs.append(probs)
        if t >= self.deepest:
            return [True] * len(encoded)
        if t >= self.settings.min_depth:
            self.stopped = self.stopped.to(probs.device) | (probs < self.settings.threshold)
        return self.stopped.expand(len(encoded)).tolist()


class StepsChoice:
    """T = k: as many loops as the problem has steps, which its bucket says."""

    def __init__(self, deepest: int):
        self.deepest = deepest

    def stops(self, t: int, h: Tensor, prompt: Tensor, encoded: Sequence[Encoded]) -> list[bool]:
        return [t >= steps_of(item.example) for item in encoded]  # type: ignore[arg-type]


def steps_of(example: Example) -> int:
    name, _, number = example.bucket.partition("=")
    if name != "k" or not number.isdigit():
        raise RecurTraceError(f"T = k needs a task with steps, and {example.task} has none; leave out k.")
    return int(number)


def evaluate(
    model: RecurTraceForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    out: Path,
    loops: Asked = (1, 2, 4, 6, 8),
    seeds: Sequence[int] | None = None,
    head: str | None = None,
    batch_size: int = 16,
    max_length: int = 1024,
    about: dict[str, Any] | None = None,
) -> None:
    """Write a record for every example to the folder `out`; those that are there are not measured again.

    Started by `accelerate launch`, every process takes its share of the items. `about` goes into the manifest: where
    model and data came from.
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
    file = out / f"records-{process.process_index:05d}-of-{process.num_processes:05d}.jsonl"
    with process.main_process_first():
        _begin(out, model, encoded, encoder, loops, head, settings, process.num_processes, about or {})
    done = {record.id for record in repaired(file)}
    mine = sorted(encoded, key=lambda item: len(item.input_ids))[process.process_index :: process.num_processes]
    left = [item for item in mine if _of(item).id not in done]

    bar = tqdm(total=len(mine), initial=len(done), unit="item", desc="evaluate", disable=not process.is_main_process)
    with file.open("a", encoding="utf-8") as lines:
        for start in range(0, len(left), batch_size):
            batch = left[start : start + batch_size]
            rules: dict[str, Choice] = {}
            if settings is not None:
                rules["adaptive"] = HeadChoice(model.loop.head(head), settings)
            if "k" in named:
                rules["k"] = StepsChoice(deepest)
            rows = measure(model, tokenizer, batch, fixed or [1], list(rules.values()), states=False)
            probs = _probs(rules.get("adaptive"), len(batch))
            for item, row, own in zip(batch, rows, probs, strict=True):
                lines.write(_record(item, row, fixed, list(rules), seed_of[_of(item)], own).line())
            lines.flush()
            bar.update(len(batch))
    bar.close()
    process.wait_for_everyone()


def _probs(rule: Choice | None, rows: int) -> list[list[float]]:
    return torch.stack(rule.probs, dim=1).tolist() if isinstance(rule, HeadChoice) else [[]] * rows


def _record(
    item: Encoded, row: dict[str, Any], fixed: list[int], named: list[str], seed: int, probs: list[float]
) -> ItemRecord:
    example = _of(item)
    results = [
        DepthResult(str(t), t, float(row["loss"][i]), bool(row["correct"][i]), row["answers"][i])
        for i, t in enumerate(fixed)
    ]
    for name, chosen in zip(named, row.get("chosen", []), strict=True):
        results.append(DepthResult(name, chosen["depth"], chosen["loss"], chosen["correct"], chosen["answer"]))
        if name == "adaptive":
            probs = probs[: chosen["depth"]]
    return ItemRecord(
        id=example.id,
        task=example.task,
        bucket=example.bucket,
        seed=seed,
        prompt_hash=example.prompt_hash,
        reference=example.answer,
        answer_tokens=len(item.input_ids) - item.prompt_length - 1,
        results=results,
        continue_probs=[float(f"{p:.6g}") for p in probs],
    )


def _of(item: Encoded) -> Example:
    assert item.example is not None  # the encoder made it of one
    return item.example


def _begin(
    out: Path,
    model: RecurTraceForCausalLM,
    encoded: list[Encoded],
    encoder: Encoder,
    loops: Asked,
    head: str | None,
    settings: HeadSettings | None,
    processes: int,
    about: dict[str, Any],
) -> None:
    ids = "\0".join(sorted(f"{_of(item).id} {_of(item).prompt_hash}" for item in encoded))
    what = {
        **about,
        "base_fingerprint": model.config.base_fingerprint,
        "loop_fingerprint": loop_fingerprint(model.loop_state_dict()),
        "loops": [str(asked) for asked in loops],
        "head": head,
        "halting": vars(settings) if settings is not None else None,
        "items": len(encoded),
        "items_sha256": hashlib.sha256(ids.encode()).hexdigest(),
        "max_length": encoder.max_length,
        "cut": encoder.lengths.cut,
        "dropped": encoder.lengths.dropped,
        "processes": processes,
        "versions": {package: version(package) for package in ("recurtrace", "torch", "transformers")},
    }
    if (out / MANIFEST).is_file():
        found = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        if changed := [name for name in what if found.get(name) != what[name]]:
            raise RecurTraceError(
                f"{str(out)!r} holds an evaluation with another {changed[0].replace('_', ' ')}; choose another folder."
            )
        return
    if holds_something(out):
        raise RecurTraceError(f"{str(out)!r} is not empty and holds no evaluation; choose another folder.")
    write_json(out / MANIFEST, what)
