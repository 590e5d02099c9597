"""The depth sweep: every depth of every example, kept in files, resumed and shared between processes."""

import hashlib
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from recurtrace.data.collate import Encoded, Encoder
from recurtrace.data.example import Example
from recurtrace.errors import RecurTraceError
from recurtrace.files import begin, claim, locked
from recurtrace.halting.measure import Engine, Measured, measure
from recurtrace.halting.signals import DECODED
from recurtrace.halting.sweep_files import (
    SWEEP,
    SweepItem,
    SweepManifest,
    part_files,
    read_partial,
    write_manifest,
    write_part,
    write_partial,
)
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.cost import cost_of
from recurtrace.model.depth import check_limit
from recurtrace.model.heads import loop_fingerprint
from recurtrace.model.positions import longest_input

DEPTHS = tuple(range(1, 17))
MAX_LENGTH = 1024
"""Longest example in tokens where nothing is asked for and the base has as many positions."""
SAVE_EVERY = 30  # seconds of work that an interruption may cost


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
