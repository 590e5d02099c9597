"""What the loop's small operations cost in decoding: as modules one by one, fused, and compiled.

At the embedded base's shape, where they weigh most, float32. Every variant decodes the same tokens in every turn, in
turns within one process; times are per token, and each variant's fastest turn counts, since all of them do equal work
and the machine can only add to it.

    python -m benchmarks.small_operations [--turns 5] [--compiled] [--page docs/performance.md]
"""

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CompileConfig

from benchmarks.common import random_base, write_between
from benchmarks.training_step import loop_config
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.loop_state import LoopState

DEPTH, PROMPT, NEW = 4, 16, 32
ROWS = (1, 4)


class Operations(TorchDispatchMode):
    """Counts what is dispatched, views left out."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not (operation.is_view or operation is torch.ops.aten._unsafe_view.default)
        return operation(*args, **(kwargs or {}))


def per_loop(model: RecurTraceForCausalLM) -> int:
    """Operations of the loop modules in one loop with a full window."""
    state = LoopState.before(torch.randn(1, 1, model.config.get_text_config().hidden_size), 3, None)
    for t in range(1, 6):
        with Operations() as operations:
            model.loop(t, state, lambda index, h: h)
    return operations.count


def variants(model: RecurTraceForCausalLM, compile_step: bool) -> dict[str, Callable[[Tensor], Tensor]]:
    watched = copy.deepcopy(model)  # a hook that looks on makes the memories run one by one
    watched.loop.memory[0].register_forward_hook(lambda *_: None)
    how = {"loops": DEPTH, "max_new_tokens": NEW, "do_sample": False}
    compiled = CompileConfig(fullgraph=True, mode=None)
    compiled._compile_all_devices = True
    ways = {
        "layer by layer": lambda ids: watched.generate(ids, **how),
        "all layers at once": lambda ids: model.generate(ids, **how),
        "static cache": lambda ids: model.generate(ids, **how, cache_implementation="static", disable_compile=True),
    }
    if compile_step:
        ways["static cache, compiled step"] = lambda ids: model.generate(
            ids, **how, cache_implementation="static", compile_config=compiled
        )
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compiled", action="store_true", help="with a compiled step, which takes minutes to compile")
    parser.add_argument("--page", type=Path, help="put the table into this page, between its benchmark marks")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    config = loop_config("embedded")
    model = RecurTraceForCausalLM(config, random_base(config.get_text_config())).eval()
    ways = variants(model, arguments.compiled)
    fastest = {(name, rows): float("inf") for name in ways for rows in ROWS}
    for rows in ROWS:
        ids = torch.randint(0, 400, (rows, PROMPT))
        expected = model.generate(ids, loops=DEPTH, max_new_tokens=NEW, do_sample=False)
        for turn in range(arguments.turns + 1):
            for name, run in ways.items():
                began = time.perf_counter()
                found = run(ids)
                if turn:  # the first compiles
                    fastest[name, rows] = min(fastest[name, rows], (time.perf_counter() - began) / NEW)
                assert torch.equal(found, expected), name
    counts = {"all layers at once": per_loop(model)}
    watched = copy.deepcopy(model)
    watched.loop.memory[0].register_forward_hook(lambda *_: None)
    counts["layer by layer"] = per_loop(watched)
    lines = [
        f"Greedy decoding of {NEW} tokens at depth {DEPTH}, embedded shape, random weights, float32, "
        f"{torch.get_num_threads()} threads, fastest of {arguments.turns} turns; equal tokens in every cell "
        "(`python -m benchmarks.small_operations`).",
        "",
        "| memories | operations per loop | " + " | ".join(f"batch of {rows}" for rows in ROWS) + " |",
        "|---|---:|" + "---:|" * len(ROWS),
    ]
    for name in ways:
        times = [f"{fastest[name, rows] / fastest['layer by layer', rows]:.2f}×" for rows in ROWS]
        lines.append(f"| {name} | {counts.get(name, '')} | {' | '.join(times)} |")
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if arguments.page:
        write_between(arguments.page, "small operations benchmark", "\n".join(lines))


if __name__ == "__main__":
    main()
