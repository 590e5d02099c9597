"""What depth costs: time against the plain base and the FLOPs that `recurtrace info` states, and peak memory.

At the shape of Qwen3-0.6B with random weights, float32, on this machine's CPU. Every number is a ratio within one
run: all variants are timed in every turn, in a new random order, and the ratio of their total times is reported; not
of their medians, since what else happens on the machine hits a long run more often than a short one.

    python -m benchmarks.depth_cost [--turns 20] [--page docs/performance.md]
"""

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from transformers import DynamicCache, PreTrainedModel
from transformers import __version__ as transformers_version

from benchmarks.common import qwen3_06b, random_base, write_between
from recurtrace.errors import told
from recurtrace.evaluation.runtime import time_ratios
from recurtrace.model import RecurTraceCache, RecurTraceForCausalLM
from recurtrace.model.cost import Cost, cost_of

DEPTHS = (1, 2, 4, 8)
PROMPT = 64  # short, since many short turns ride out a noisy machine better than a few long ones
CONTEXT = 512  # what `recurtrace info` states its FLOPs for
MIXED = [1] * 4 + [2] * 4 + [4] * 4 + [8] * 4
MIXED_PROMPT = 16
MEMORY_ROWS, MEMORY_CONTEXT = 2, 2048


def build() -> tuple[PreTrainedModel, RecurTraceForCausalLM]:
    """The base and a looped model that shares its modules."""
    torch.manual_seed(0)
    base = random_base(qwen3_06b()).eval()
    return base, RecurTraceForCausalLM.from_base(base)


def depth_table(base: PreTrainedModel, model: RecurTraceForCausalLM, cost: Cost, turns: int) -> list[str]:
    context = torch.randint(0, 1000, (1, CONTEXT))
    prompt = context[:, :PROMPT]

    def prefill(loops: int) -> Callable[[], None]:
        return lambda: model(prompt, loops=loops, use_cache=True, logits_to_keep=1) and None

    def decode(loops: int) -> Callable[[], None]:
        cache = RecurTraceCache(model.config)
        model(context, loops=loops, past_key_values=cache, logits_to_keep=1)

        def run() -> None:
            model(context[:, :1], loops=loops, past_key_values=cache)
            cache.crop(-1)

        return run

    base_cache = DynamicCache(config=base.config)
    base(context, past_key_values=base_cache, logits_to_keep=1)

    def base_decode() -> None:
        base(context[:, :1], past_key_values=base_cache)
        base_cache.crop(-1)

    read = time_ratios(
        lambda: base(prompt, use_cache=True, logits_to_keep=1), {t: prefill(t) for t in DEPTHS}, 4 * turns
    )
    write = time_ratios(base_decode, {t: decode(t) for t in DEPTHS}, 8 * turns)
    lines = [
        f"| loops | prefill of {PROMPT} | FLOPs | time ÷ FLOPs | decode after {CONTEXT} | FLOPs | time ÷ FLOPs |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for t in DEPTHS:
        cells = []
        for measured, stated in ((read[t], cost.prefill_ratio(t, PROMPT)), (write[t], cost.decode_ratio(t, CONTEXT))):
            cells += [f"{measured:.3f}×", f"{stated:.3f}×", f"{measured / stated:.3f}"]
        lines.append(f"| {t} | " + " | ".join(cells) + " |")
    return lines


def mixed_batch(model: RecurTraceForCausalLM, turns: int) -> list[str]:
    """One batch of 16 at mixed depths against its parts: the rows of each depth as a batch of their own."""
    prompts = torch.randint(0, 1000, (len(MIXED), MIXED_PROMPT))
    groups = {t: [row for row, depth in enumerate(MIXED) if depth == t] for t in sorted(set(MIXED))}

    def prefill(rows: list[int], loops: int | list[int]) -> Callable[[], None]:
        return lambda: model(prompts[rows], loops=loops, use_cache=True, logits_to_keep=1) and None

    def decode(rows: list[int], loops: int | list[int]) -> Callable[[], None]:
        cache = RecurTraceCache(model.config)
        model(prompts[rows], loops=loops, past_key_values=cache, logits_to_keep=1)

        def run() -> None:
            model(prompts[rows, :1], loops=loops, past_key_values=cache)
            cache.crop(-1)

        return run

    lines = ["| batch of 16, depths 1, 2, 4, 8 | together ÷ sum of its parts |", "|---|---:|"]
    for name, make in (("prefill", prefill), ("decode", decode)):
        parts = [make(rows, loops) for loops, rows in groups.items()]
        whole = make(list(range(len(MIXED))), MIXED)
        ratio = time_ratios(lambda parts=parts: [run() for run in parts] and None, {"whole": whole}, turns)["whole"]
        lines.append(f"| {name} | {ratio:.3f} |")
    return lines


def peak_of_decoding(loops: int | None) -> int:
    """Peak resident bytes of this process while decoding at a depth (None: the plain base)."""
    base, model = build()
    if loops is None:
        runner, cache, depth = base, DynamicCache(config=base.config), {}
    else:
        runner, cache, depth = model, RecurTraceCache(model.config), {"loops": loops}
    short = 8
    token = torch.randint(0, 1000, (MEMORY_ROWS, short))
    with torch.no_grad():
        model(token, loops=2)  # the loop modules and their stacked copy are in both processes
        runner(token, past_key_values=cache, logits_to_keep=1, **depth)
        for layer in cache.layers:  # a long context without the hour it takes to read one
            layer.keys = layer.keys.repeat(1, 1, MEMORY_CONTEXT // short, 1)
            layer.values = layer.values.repeat(1, 1, MEMORY_CONTEXT // short, 1)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        for _ in range(3):
            runner(token[:, :1], past_key_values=cache, **depth)
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def memory(cost: Cost) -> list[str]:
    def measured(loops: str) -> int:
        command = [sys.executable, "-m", "benchmarks.depth_cost", "--peak", loops]
        # Large blocks straight from the system and back to it, so that resident memory is what is in use.
        environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "PATH": "/usr/bin:/bin"}
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    base, deep = measured("base"), measured("8")
    tokens = MEMORY_ROWS * (MEMORY_CONTEXT + 3)
    stated = tokens * (cost.kv_bytes(8, 4) - cost.kv_bytes(1, 4))
    mib = 2**20
    return [
        f"| decoding {MEMORY_ROWS} × {MEMORY_CONTEXT} tokens at 8 loops | MiB |",
        "|---|---:|",
        f"| peak beyond the base model's own | {(deep - base) / mib:.0f} |",
        f"| key/value bytes of the extra loops, as stated | {stated / mib:.0f} |",
        f"| measured ÷ stated | {(deep - base) / stated:.3f} |",
    ]


def report(turns: int) -> str:
    torch.set_grad_enabled(False)
    base, model = build()
    cost = cost_of(model.config)
    parts = [
        [
            "Qwen3-0.6B shape, random weights, float32, "
            f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}, "
            f"torch {torch.__version__.split('+')[0]}, transformers {transformers_version}, batch of 1; "
            f"{4 * turns} turns of prefill and {8 * turns} of decoding (`make bench`).",
        ],
        depth_table(base, model, cost, turns),
        mixed_batch(model, turns),
    ]
    del base, model
    parts.append(memory(cost))
    return "\n\n".join("\n".join(lines) for lines in parts)


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--page", type=Path, help="put the tables into this page, between its benchmark marks")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(peak_of_decoding(None if arguments.peak == "base" else int(arguments.peak)))
        return
    text = report(arguments.turns)
    Console().print(text, markup=False)
    if arguments.page:
        write_between(arguments.page, "benchmark", text)


if __name__ == "__main__":
    main()
