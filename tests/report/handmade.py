"""A study of two scales, written by hand: records of every suite, run and seed, and sweeps with known arrays."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recurtrace.data.benchmarks import TASKS
from recurtrace.evaluation.analysis import analyse
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.signals import DECODED
from recurtrace.halting.sweep_files import Sweep, SweepManifest
from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig
from recurtrace.model.families import QWEN3
from recurtrace.model.heads import Head
from recurtrace.records import (
    BlockProbe,
    Budget,
    CostAtDepth,
    CostReport,
    DepthResult,
    HeadBudget,
    ItemRecord,
    Window,
    write_record,
)
from tests.conftest import sweep_items

SCALES = {"0.6B": "Qwen/Qwen3-0.6B-Base", "1.7B": "/models/Qwen3-1.7B-Base"}
SEEDS = (0, 1, 2)
LOOPS = ("1", "2", "4", "6", "8")
COSTED = (1, 2, 4, 8)  # depths whose cost is known
STEPS = (2, 8, 10, 12, 14, 16)
SYNTHETIC = ("p_hop", "symbolic", "arithmetic")
MEASURED = [task.name for task in TASKS.values() if set(task.suites) & {"train_covered", "classic", "diagnostic"}]
RUNS = {
    "loop": ("looped", (*LOOPS, "adaptive", "k")),
    "plain-loop": ("looped", (*LOOPS, "k")),
    "full": ("base", ("1",)),
    "adapter": ("adapter", ("1",)),
}
FURTHER = dict.fromkeys(("no-qk-norm", "window-1", "own-idea", "block-24-26", "block-3-5"), ("looped", LOOPS))
FURTHER |= dict.fromkeys(("same-start-plain", "same-start-memory"), ("looped", LOOPS))
FEWER = ("gsm8k", "math", "mathqa", "boolq", "lambada")
"""Tasks of the further runs: what is compared with them is restricted to these."""
ITEMS, DEPTHS, WIDTH = 64, 16, 4


def write_study(folder: Path) -> dict[tuple[int, str, str], Sweep]:
    """All files of both scales; returns the sweeps of the larger one by seed, split and whether they are by task."""
    for scale, base in SCALES.items():
        for run, (kind, loops) in (RUNS if scale == "0.6B" else RUNS | FURTHER).items():
            tasks = FEWER if run in FURTHER else MEASURED
            for seed in SEEDS:
                write_evaluation(folder / scale / "evaluations" / run / f"seed-{seed}", kind, loops, tasks, base)
    sweeps = {}
    for seed in SEEDS:
        for kind, tasks in (("analysis", ["mathqa"]), ("task-analysis", ["aqua_rat", "gsm8k"])):
            heldout, test = (made(split, seed, tasks) for split in ("heldout", "test"))
            sweeps |= {(seed, kind, "heldout"): heldout, (seed, kind, "test"): test}
            found = analyse(heldout, test, heads(), oracle=Oracle(), supervised=[1, 2, 4, 6])
            write_record(folder / "1.7B" / kind / f"seed-{seed}.json", replace(found, base=SCALES["1.7B"]))
    write_evaluation(folder / "1.7B" / "full-test", "looped", ["2", "adaptive"], ["mathqa"], SCALES["1.7B"])
    config = RecurTraceConfig(text_config=QWEN3["1.7B"].config().to_dict(), loop_start=12)
    config.save_pretrained(folder / "1.7B" / "models" / "seed-0")
    write_costs(folder / "1.7B")
    return sweeps


def write_costs(folder: Path) -> None:
    """What training, heads, depth and the probe took; every number is another."""
    rng = np.random.default_rng(0)
    for number, run in enumerate(RUNS):
        method = run.replace("-", "_")
        for seed in SEEDS:
            made = Budget(
                method, 2_000_000_000 + number, 30_000_000 + number, 25_000, 128, 1024, 3_276_800_000 + number,
                1.0 if method in ("full", "adapter") else 3.9, 1e19, float(rng.uniform(1e19, 9e19)),
                float(rng.uniform(3e4, 9e4)), int(rng.integers(2**34, 2**36)), 8, "NVIDIA H800", "bf16", 2, 1e-4, 28, 3,
            )  # fmt: skip
            write_record(folder / "runs" / run / f"seed-{seed}" / "budget.json", made)
    for seed in SEEDS:
        head = HeadBudget(2049, 200, 256, 3e-4, 5000, 16, float(rng.uniform(1e17, 9e17)), float(rng.uniform(1e9, 9e9)))
        write_record(folder / "models" / f"seed-{seed}" / "head-budget.json", head)
    depths = [
        CostAtDepth(t, 28 + 3 * (t - 1), *rng.uniform(1, 3, 2).tolist(), 114_688 + t, *rng.uniform(1, 3, 2).tolist())
        for t in COSTED
    ]
    write_record(folder / "cost.json", CostReport(1_720_574_976, 37_748_736, depths, "8 threads", "recurtrace cost m"))
    distances, errors = rng.uniform(0.05, 0.3, 28).tolist(), rng.uniform(0.001, 0.01, 28).tolist()
    windows = [Window(12, 0.1, 1.7), Window(3, 0.2, 1.9)]
    probe = BlockProbe(distances, errors, 500, 11, 20, 3, windows, 1.8, 64, "plain loops", SCALES["1.7B"], "f", "c4")
    write_record(folder / "probe.json", probe)


def write_evaluation(folder: Path, kind: str, loops: Sequence[str], tasks: Sequence[str], base: str) -> None:
    """Tasks differ in their numbers of items, and items in their numbers of answer tokens, so that weights matter."""
    rng = np.random.default_rng(zlib.crc32("/".join(folder.parts[-4:]).encode()))
    lines = []
    for task in tasks:
        share = rng.uniform(0.2, 0.9)
        for i in range(6 + len(task) % 3):
            k = STEPS[i % len(STEPS)]
            results = []
            for asked in loops:
                if asked == "k" and task not in SYNTHETIC:
                    continue
                depth = k if asked == "k" else 3 if asked == "adaptive" else int(asked)
                results.append(DepthResult(asked, depth, float(rng.gamma(2)), bool(rng.random() < share), "x"))
            bucket = f"k={k}" if task in SYNTHETIC else ""
            lines.append(ItemRecord(f"{task}/{i}", task, bucket, -1, "h", "x", 1 + i % 4, results, []).line())
    folder.mkdir(parents=True)
    manifest = {"items": len(lines), "loops": list(loops), "kind": kind, "model": "m", "command": f"made {folder.name}"}
    manifest |= {"base": base} if kind == "looped" else {}
    (folder / "evaluation.json").write_text(json.dumps(manifest))
    (folder / "records-00000-of-00001.jsonl").write_text("".join(lines))


def made(split: str, seed: int, tasks: list[str]) -> Sweep:
    """A third of the items need five loops, the others two; feature 0 of the state says so with some noise."""
    rng = np.random.default_rng(100 * seed + len(split) + 10 * len(tasks))
    hard = rng.random(ITEMS) < 1 / 3
    t = np.arange(1, DEPTHS + 1)
    best = np.where(hard, 5, 2)[:, None]
    loss = (0.3 + 0.1 * np.abs(t - best) + 0.1 * rng.random((ITEMS, DEPTHS))).astype(np.float32)
    correct = rng.random((ITEMS, DEPTHS)) < np.where(t < best, 0.3, 0.8 - 0.03 * t)
    states = np.zeros((ITEMS, DEPTHS, WIDTH), dtype=np.float32)
    states[..., 0] = np.where(t < best, 1.5, -1.5) + rng.normal(size=(ITEMS, DEPTHS))
    arrays = {"loss": loss, "correct": correct, "state_mean": states, "state_last": states}
    arrays |= {signal.name: rng.random((ITEMS, DEPTHS)).astype(np.float32) for signal in DECODED}
    states[..., 1] = rng.normal(size=(ITEMS, DEPTHS))  # heads do not look at it; the state's turns come from it
    manifest = SweepManifest(
        split=split, data="mixture", model="m", loop_fingerprint="a", base_fingerprint="b", depths=t.tolist()
    )
    items = [
        replace(
            item,
            task=tasks[i % len(tasks)],
            bucket=f"kind-{i % 3}",
            answer_tokens=1 + i % 5,
            answers=["x" if right else f"y{t // 3}" for t, right in enumerate(correct[i])],
            prompt=f"Question {i}?" if i % 2 else "",
        )
        for i, item in enumerate(sweep_items(ITEMS, split, reference="x"))
    ]
    return Sweep(manifest, items, arrays)


WEIGHTS = {
    None: (2.0, 0.0, "oracle"), "act": (0.0, -9.0, "act"), "act-0.1": (0.5, -0.2, "act"),
    "pondernet": (0.3, -1.0, "pondernet"), "loopus": (1.0, 0.5, "loopus"), "tah": (-1.0, 0.3, "tah"),
    "gsm8k": (1.5, 0.1, "oracle"),
}  # fmt: skip


def heads() -> dict[str | None, Head]:
    """Each reads feature 0 alone; the one for GSM8K was trained there."""
    found = {}
    for name, (weight, bias, objective) in WEIGHTS.items():
        strength = float(name.partition("-")[2] or 0.01) if name else 0.01
        tasks = [name] if name == "gsm8k" else []
        kept = {"recipe": {"regularization": strength}, "sweep": {"tasks": tasks}}
        settings = HeadSettings(objective, trained_on=kept)
        found[name] = Head(torch.tensor([[weight, 0.0, 0.0, 0.0]]), torch.tensor([bias]), settings)
    return found


def as_rows(folder: Path) -> list[dict]:
    """Every result of every record, read from the files line by line."""
    rows = []
    for file in sorted(folder.glob("*/evaluations/*/*/records-*.jsonl")):
        scale, _, run, seed, _ = file.relative_to(folder).parts
        for line in file.read_text().splitlines():
            record = json.loads(line)
            common = {name: record[name] for name in ("id", "task", "answer_tokens")}
            for one in record["results"]:
                rows.append({"scale": scale, "run": run, "seed": seed, **common, **one})
    return rows
