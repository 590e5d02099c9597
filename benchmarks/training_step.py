"""A stage-1 step against a full fine-tune step: time, peak memory beyond the weights, and the analytical FLOPs.

Forward, backward and AdamW on full sequences at the mean training depth, float32, at the embedded base's shape and at
that of Qwen3-0.6B with random weights. Each method lives in a process of its own, which is the only way to tell their
memory apart; the processes take turns, so that times are of one run.

    python -m benchmarks.training_step [--turns 3] [--page docs/performance.md]
"""

import argparse
import multiprocessing
import os
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from transformers import Qwen3Config

from benchmarks.common import qwen3_06b, random_base, write_between
from recurtrace.errors import told
from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.model.cost import cost_of
from recurtrace.model.families import QWEN3
from recurtrace.model.labelled_loss import accept_return_logits
from recurtrace.training.budget import training_macs
from recurtrace.training.methods import freeze_for_stage_1

DEPTH = 4  # the sampler's mean is 3.9
EMBEDDED = {
    "vocab_size": 448, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES = {  # base, first looped layer, sequences, their length
    "embedded": (Qwen3Config(**EMBEDDED), 3, 16, 128),
    "Qwen3-0.6B": (qwen3_06b(), QWEN3["0.6B"].loop_start, 1, 256),
}
METHODS = ("full", "loop")


def loop_config(shape: str) -> RecurTraceConfig:
    base, start, *_ = SHAPES[shape]
    width = 32 if shape == "embedded" else 128
    return RecurTraceConfig(text_config=base, loop_start=start, loop_attn_head_dim=width)


def work(shape: str, method: str, connection: Connection) -> None:
    """Answers every request with the seconds of one step; None ends it with the peak beyond the weights."""
    torch.set_num_threads(multiprocessing.cpu_count())
    torch.manual_seed(0)
    config = loop_config(shape)
    base = random_base(config.get_text_config())
    if method == "loop":
        model = RecurTraceForCausalLM(config, base)
        freeze_for_stage_1(model)
    else:
        model = base
        accept_return_logits(model)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    _, _, rows, length = SHAPES[shape]
    ids = torch.randint(0, 400, (rows, length))
    depth = {"loops": DEPTH} if method == "loop" else {}
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    weights = memory("VmRSS")
    while connection.recv():
        began = time.perf_counter()
        model(ids, labels=ids, use_cache=False, return_logits=False, **depth).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        connection.send(time.perf_counter() - began)
    connection.send(memory("VmHWM") - weights)


def count_memory_in_use() -> None:
    """For processes started from now on: large blocks come straight from the system and go back to it when freed."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"


def memory(name: str) -> float:
    """MiB of this process."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def measure(shape: str, turns: int) -> list[str]:
    count_memory_in_use()
    context = multiprocessing.get_context("spawn")
    workers: dict[str, Connection] = {}
    for method in METHODS:
        mine, theirs = context.Pipe()
        context.Process(target=work, args=(shape, method, theirs), daemon=True).start()
        workers[method] = mine
    taken = dict.fromkeys(METHODS, 0.0)
    for turn in range(turns + 1):  # the first is a warm-up: optimizer states are made in it
        for method, worker in workers.items():
            worker.send(True)
            seconds = worker.recv()
            taken[method] += seconds if turn else 0.0
    peak = {}
    for method, worker in workers.items():
        worker.send(None)
        peak[method] = worker.recv()
    config = loop_config(shape)
    cost, length = cost_of(config), SHAPES[shape][3]
    macs = {method: training_macs(cost, method, DEPTH, length / 2, config.block.start).total for method in METHODS}
    time_ratio, flops = taken["loop"] / taken["full"], macs["loop"] / macs["full"]
    return [
        shape, f"{taken['full'] / turns:.2f} s", f"{taken['loop'] / turns:.2f} s", f"{time_ratio:.3f}", f"{flops:.3f}",
        f"{peak['full']:,.0f} MiB", f"{peak['loop']:,.0f} MiB", f"{peak['loop'] / peak['full']:.3f}",
    ]  # fmt: skip


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--page", type=Path, help="put the table into this page, between its benchmark marks")
    arguments = parser.parse_args()
    header = ["shape", "full step", "stage-1 step", "time ratio", "FLOPs ratio", "full peak", "stage-1 peak", "ratio"]
    lines = [
        f"One step at depth {DEPTH} (the mean), float32, {torch.get_num_threads()} threads, {arguments.turns} turns; "
        "peak memory is beyond the weights (`python -m benchmarks.training_step`).",
        "",
        f"| {' | '.join(header)} |",
        "|---|" + "---:|" * (len(header) - 1),
        *(f"| {' | '.join(measure(shape, arguments.turns))} |" for shape in SHAPES),
    ]
    Console().print("\n".join(lines), markup=False)
    if arguments.page:
        write_between(arguments.page, "training benchmark", "\n".join(lines))


if __name__ == "__main__":
    main()
