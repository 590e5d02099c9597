"""The LM head at labelled positions only against logits at every position: time and peak memory of a training step.

Forward and backward at the shape of Qwen3-0.6B with random weights, float32; the optimizer's step is the same in both.
Each method lives in a process of its own, with the variants taking turns in it, so that a row's times are of one run.
The peak is what a step adds to the weights: gradients, what is kept for backward, and logits.

    python -m benchmarks.labelled_loss [--turns 2] [--page docs/performance.md]
"""

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.common import qwen3_06b, random_base, write_between
from benchmarks.training_step import DEPTH, count_memory_in_use, memory
from recurtrace.errors import told
from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.model.labelled_loss import accept_return_logits
from recurtrace.training.methods import freeze_for_stage_1

ROWS, LENGTH = 2, 512
CASES = ((False, 0.03), (False, 1.0), (True, 0.03))  # gradient checkpointing, share of labels
METHODS = {"loop": f"stage 1, depth {DEPTH}", "full": "full"}
Variant = tuple[bool, float, bool]  # gradient checkpointing, share of labels, logits everywhere


def work(method: str, threads: int, connection: Connection) -> None:
    """Answers every variant with the seconds of one step and the peak beyond the weights, in MiB; None ends it."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = random_base(qwen3_06b())
    depth = {}
    if method == "loop":
        model = RecurTraceForCausalLM(RecurTraceConfig(text_config=model.config, loop_start=12), model)
        freeze_for_stage_1(model)
        depth = {"loops": DEPTH}
    else:
        accept_return_logits(model)
    model.train()
    ids = torch.randint(0, 400, (ROWS, LENGTH))
    weights = memory("VmRSS")
    while (variant := connection.recv()) is not None:
        checkpointing, share, everywhere = variant
        model.gradient_checkpointing_enable() if checkpointing else model.gradient_checkpointing_disable()
        labels = ids.clone()
        labels[:, : LENGTH - round(share * LENGTH)] = -100
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        began = time.perf_counter()
        model(ids, labels=labels, use_cache=False, return_logits=everywhere, **depth).loss.backward()
        connection.send((time.perf_counter() - began, memory("VmHWM") - weights))
        model.zero_grad()


def measure(method: str, turns: int, threads: int) -> dict[Variant, list[float]]:
    """Mean seconds and largest peak of every variant."""
    count_memory_in_use()
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    context.Process(target=work, args=(method, threads, theirs), daemon=True).start()
    found: dict[Variant, list[float]] = {v: [0.0, 0.0] for case in CASES for v in ((*case, True), (*case, False))}
    connection.send((*CASES[0], False))  # a warm-up
    connection.recv()
    for _ in range(turns):
        for variant, so_far in found.items():
            connection.send(variant)
            seconds, peak = connection.recv()
            so_far[0] += seconds / turns
            so_far[1] = max(so_far[1], peak)
    connection.send(None)
    return found


def table(turns: int, threads: int) -> list[str]:
    lines = []
    for method, name in METHODS.items():
        found = measure(method, turns, threads)
        for checkpointing, share in CASES:
            before, after = found[checkpointing, share, True], found[checkpointing, share, False]
            cells = [
                name, "yes" if checkpointing else "no", f"{share:.0%}", f"{before[0]:.2f} s", f"{after[0]:.2f} s",
                f"{before[0] / after[0]:.2f}×", f"{before[1]:,.0f} MiB", f"{after[1]:,.0f} MiB",
                f"{after[1] / before[1]:.2f}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    header = [
        "method", "gradient checkpointing", "labelled", "time, all logits", "labelled only", "faster",
        "peak, all logits", "labelled only", "ratio",
    ]  # fmt: skip
    lines = [
        f"Forward and backward of {ROWS} × {LENGTH} tokens, Qwen3-0.6B shape, random weights, float32, "
        f"{arguments.threads} threads, {arguments.turns} turns; peak memory is beyond the weights, gradients included "
        "(`python -m benchmarks.labelled_loss`).",
        "",
        f"| {' | '.join(header)} |",
        "|---|---|" + "---:|" * (len(header) - 2),
        *table(arguments.turns, arguments.threads),
    ]
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if arguments.page:
        write_between(arguments.page, "labelled loss benchmark", "\n".join(lines))


if __name__ == "__main__":
    main()
