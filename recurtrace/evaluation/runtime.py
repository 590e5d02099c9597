"""What depth costs on this machine: time against the unlooped base, in one run, beside FLOPs and cache bytes.

All depths are timed in every turn, in a new random order, and the ratio of their total times is taken: what else
happens on the machine hits each of them alike.
"""

import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.cost import cost_of
from recurtrace.records import CostAtDepth, CostReport

DEPTHS = (1, 2, 4, 8, 16)


def time_ratios(
    reference: Callable[[], object], variants: Mapping[Any, Callable[[], object]], turns: int, seed: int = 0
) -> dict[Any, float]:
    """A variant's time over all turns by the reference's."""
    runs = {None: reference, **variants}
    taken: dict[Any, float] = dict.fromkeys(runs, 0.0)
    rng = random.Random(seed)
    for run in runs.values():
        run()
    for _ in tqdm(range(turns), desc="timing", unit="turn", leave=False):
        for name in rng.sample(list(runs), k=len(runs)):
            began = time.perf_counter()
            runs[name]()
            _wait()
            taken[name] += time.perf_counter() - began
    return {name: taken[name] / taken[None] for name in variants}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@torch.inference_mode()
def measure_cost(
    model: RecurTraceForCausalLM,
    tokens: int = 128,
    batch_size: int = 1,
    turns: int = 20,
    depths: Sequence[int] = DEPTHS,
) -> CostReport:
    """Forward passes at every depth, against the base's own modules, in two settings.

    Logits at the last position only, as in reading a prompt; and at every position, as in teacher forcing.
    """
    ids = torch.randint(model.config.get_text_config().vocab_size, (batch_size, tokens), device=model.device)

    def measured(keep: int) -> dict[int, float]:
        """Time ratios with logits at so many positions from the end; 0 is all of them."""

        def base() -> object:
            return model.lm_head(model.model(ids, use_cache=False).last_hidden_state[:, -keep:])

        def looped(loops: int) -> Callable[[], object]:
            return lambda: model(ids, loops=loops, use_cache=False, logits_to_keep=keep)

        return time_ratios(base, {loops: looped(loops) for loops in depths}, turns)

    last, every = measured(1), measured(0)
    cost, itemsize = cost_of(model.config), next(model.parameters()).element_size()
    return CostReport(
        base_parameters=cost.parameters.base,
        added_parameters=cost.parameters.added,
        depths=[
            CostAtDepth(
                loops=loops,
                layer_passes=cost.layer_passes(loops),
                flops_ratio=cost.prefill_ratio(loops, tokens),
                time_ratio=last[loops],
                kv_bytes_per_token=cost.kv_bytes(loops, itemsize),
                all_logits_flops_ratio=cost.forward_ratio(loops, tokens),
                all_logits_time_ratio=every[loops],
            )
            for loops in depths
        ],
        note=(
            f"{batch_size} × {tokens} tokens, {turns} turns, {model.dtype}, {torch.get_num_threads()} threads of "
            f"{platform.machine()}, {model.device.type}; against the unlooped base in the same run."
        ),
    )
