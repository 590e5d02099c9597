"""What the loop's small operations cost: as modules one by one, fused, and compiled; in decoding and in scoring.

At the embedded base's shape, where they weigh most, float32. Every variant decodes (or scores) the same tokens in every
turn, in turns within one process; each variant's fastest turn counts, since all of them do equal work and the machine
can only add to it.

    python -m benchmarks.small_operations [--turns 5] [--compiled] [--page docs/performance.md]
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CompileConfig

from benchmarks.common import random_base, write_between
from benchmarks.training_step import loop_config
from recurtrace.errors import told
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.loop_state import LoopState

DEPTH, PROMPT, NEW = 4, 16, 32
ROWS = (1, 4)
SCORED = (4, 128)


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


def fastest(ways: dict[str, Callable[[], Tensor]], turns: int, equal: Callable[[Tensor, Tensor], bool]) -> list[str]:
    """Each way's fastest turn, as a ratio to that of the first; all of them give what the first gives."""
    best = dict.fromkeys(ways, float("inf"))
    expected = next(iter(ways.values()))()
    for turn in range(turns + 1):
        for name, run in ways.items():
            began = time.perf_counter()
            found = run()
            if turn:  # the first compiles
                best[name] = min(best[name], time.perf_counter() - began)
            assert equal(found, expected), name
    return [f"{best[name] / next(iter(best.values())):.2f}×" for name in ways]


def table(first: list[str], columns: dict[str, list[str]]) -> list[str]:
    """A row for each name of the first column."""
    heads = ["", *columns]
    rows = [[name, *(column[i] for column in columns.values())] for i, name in enumerate(first)]
    return [f"| {' | '.join(row)} |" for row in (heads, ["---", *(["---:"] * len(columns))], *rows)]


def decoding(model: RecurTraceForCausalLM, compiled: bool, turns: int) -> list[str]:
    ways = variants(model, compiled)
    watched = copy.deepcopy(model)
    watched.loop.memory[0].register_forward_hook(lambda *_: None)
    counts = {"layer by layer": per_loop(watched), "all layers at once": per_loop(model)}
    columns = {"operations per loop": [str(counts.get(name, "")) for name in ways]}
    for rows in ROWS:
        ids = torch.randint(0, 400, (rows, PROMPT))
        columns[f"batch of {rows}"] = fastest(
            {name: partial(run, ids) for name, run in ways.items()}, turns, torch.equal
        )
    return [
        f"Greedy decoding of {NEW} tokens at depth {DEPTH}, embedded shape, random weights, float32, "
        f"{torch.get_num_threads()} threads, time against the first row, fastest of {turns} turns; equal tokens in "
        "every cell (`python -m benchmarks.small_operations --compiled`).",
        "",
        *table(list(ways), columns),
    ]


def scoring(model: RecurTraceForCausalLM, turns: int) -> list[str]:
    """A forward pass without a cache at several depths, the loop's body compiled once for all of them."""
    compiled = copy.deepcopy(model)
    compiled.loop.compile()
    columns = {}
    for loops in (2, 4, 8):
        ids = torch.randint(0, 400, SCORED)
        ways = {
            "eager": lambda loops=loops, ids=ids: model(ids, loops=loops, use_cache=False).logits,
            "`model.loop.compile()`": lambda loops=loops, ids=ids: compiled(ids, loops=loops, use_cache=False).logits,
        }
        columns[f"{loops} loops"] = fastest(ways, turns, partial(torch.allclose, atol=1e-3))
    return [
        f"A forward pass over {SCORED[0]} × {SCORED[1]} tokens, in the same run; logits within 1e-3 of each other:",
        "",
        *table(list(ways), columns),
    ]


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compiled variants too; needs a C++ compiler",
    )
    parser.add_argument("--page", type=Path, help="put the table into this page, between its benchmark marks")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    config = loop_config("embedded")
    model = RecurTraceForCausalLM(config, random_base(config.get_text_config())).eval()
    lines = decoding(model, arguments.compiled, arguments.turns)
    if arguments.compiled:
        lines += ["", *scoring(model, arguments.turns)]
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if arguments.page:
        write_between(arguments.page, "small operations benchmark", "\n".join(lines))


if __name__ == "__main__":
    main()
