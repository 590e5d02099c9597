"""Would a scheduler that holds deep requests back pay? Simulated under a memory-bound cost model, and tried on vLLM.

Held back, the requests deeper than a bound run in every n-th step only, together: the steps between are shorter, and a
deep request waits for at most n - 1 of them.

Simulated: a step reads the base's weights once, the block's once for every further loop that any of its requests runs,
and each request's keys and values. Requests arrive at random, and slots are limited. Time is in steps of the base with
an empty context. Measured: a scheduler that does it, on vLLM for the CPU at the shape of Qwen3-0.6B, random weights.

    python -m benchmarks.depth_aware_serving [--measure] [--page docs/serving.md]
"""

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks.common import write_between
from recurtrace.errors import told
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.cost import cost_of
from recurtrace.model.families import QWEN3

SCALE, CONTEXT, BYTES = "0.6B", 512, 2
TOKENS = 32  # mean length of an answer
REQUESTS, MEASURED = 1500, 40
FEW_DEEP = {2: 7, 6: 1}  # depth: share of the requests
POLICIES = {"every 2nd step": 2, "every 3rd step": 3}  # when deep requests run


@dataclass
class Request:
    arrived: float
    depth: int
    left: int
    last: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """In units of the base's weights, read once."""

    loop: float
    """The weights of the block and of its memories."""
    row: float
    """Keys and values of one request in the base's layers."""
    row_loop: float
    """The same for each further loop."""

    @classmethod
    def of(cls, scale: str) -> "StepCost":
        base = QWEN3[scale].config()
        cost = cost_of(RecurTraceConfig(text_config=base, loop_start=QWEN3[scale].loop_start))
        weights = cost.macs(1, 0)  # one multiply-add for every weight that is read
        kv = [CONTEXT * cost.kv_bytes(t, BYTES) / BYTES for t in (1, 2)]
        return cls((cost.macs(2, 0) - weights) / weights, kv[0] / weights, (kv[1] - kv[0]) / weights)

    def step(self, depths: list[int]) -> float:
        rows = sum(self.row + self.row_loop * (depth - 1) for depth in depths)
        return 1 + self.loop * (max(depths) - 1) + rows


def arrivals(mix: dict[int, int], gap: float) -> Iterator[Request]:
    chance, now = random.Random(0), 0.0
    for _ in range(REQUESTS):
        now += chance.expovariate(1 / gap) if gap else 0.0
        (depth,) = chance.choices(list(mix), list(mix.values()))
        yield Request(now, depth, max(1, round(chance.expovariate(1 / TOKENS))), now)


def simulate(cost: StepCost, mix: dict[int, int], slots: int, gap: float, bound: int, every: int) -> dict[str, float]:
    """Tokens per unit of time, 99th percentile and mean of the time between tokens, mean time of a request."""
    waiting, running = list(arrivals(mix, gap))[::-1], []
    now, step, between, whole, tokens = 0.0, 0, [], [], 0
    while waiting or running:
        while waiting and len(running) < slots and waiting[-1].arrived <= now:
            running.append(waiting.pop())
            running[-1].last = now
        if not running:
            now = waiting[-1].arrived
            continue
        step += 1
        chosen = [r for r in running if r.depth <= bound or step % every == 0]
        if not chosen:  # only deep ones: nobody is waited for
            chosen = running
        now += cost.step([r.depth for r in chosen])
        for request in chosen:
            between.append(now - request.last)
            request.last, request.left = now, request.left - 1
            tokens += 1
            if not request.left:
                whole.append(now - request.arrived)
        running = [r for r in running if r.left]
    return summary(tokens, now, between, whole)


def summary(tokens: int, duration: float, between: list[float], whole: list[float]) -> dict[str, float]:
    """Throughput, the time between two tokens of a request, and the time of a request."""
    return {
        "throughput": tokens / duration,
        "p99": sorted(between)[int(0.99 * len(between))],
        "mean": fmean(between),
        "request": fmean(whole),
    }


def bound_of(mix: dict[int, int]) -> int:
    """The depth that 85 % of the requests do not exceed."""
    total, so_far = sum(mix.values()), 0
    for depth, share in sorted(mix.items()):
        so_far += share
        if so_far >= 0.85 * total:
            return depth
    return max(mix)


def of_embedded_head() -> dict[int, int]:
    """Depths that the embedded model's head gives to test questions."""
    from recurtrace import stages

    asked = {"model": "embedded/loop", "data": "where_thing,where_left,who_has,where_person", "count": 200}
    with tempfile.TemporaryDirectory() as place:
        records = stages.evaluate(**asked, loops="adaptive", batch_size=50, out=Path(place) / "out").records
    return Counter(record.at("adaptive").depth for record in records)


def table(slots: tuple[int, ...] = (8, 64)) -> list[str]:
    cost = StepCost.of(SCALE)
    mixes = {"7 of 8 at 2, 1 of 8 at 6": FEW_DEEP, "the embedded model's head": of_embedded_head()}
    lines = [
        "| depths | slots | load | deep requests run | throughput | 99th percentile of a token | mean | a request |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for name, mix in mixes.items():
        for most in slots:
            full = simulate(cost, mix, most, 0.0, max(mix), 1)
            for load, gap in (("full", 0.0), ("0.8", TOKENS / (0.8 * full["throughput"]))):
                today = simulate(cost, mix, most, gap, max(mix), 1)
                for policy, every in POLICIES.items():
                    found = simulate(cost, mix, most, gap, bound_of(mix), every)
                    ratios = [f"{found[key] / today[key]:.2f}×" for key in ("throughput", "p99", "mean", "request")]
                    lines.append(f"| {name} | {most} | {load} | {policy} | {' | '.join(ratios)} |")
    return lines


def holding(every: int, bound: int) -> type:
    """A scheduler class that leaves requests deeper than `bound` out of all but every n-th step."""
    from recurtrace.serving.scheduler import DepthScheduler

    class HoldingScheduler(DepthScheduler):
        steps = 0

        def schedule(self, *arguments: Any) -> Any:
            self.steps += 1
            deep = [one for one in self.running if (self.connector.depth(one.request_id) or 0) > bound]
            held = deep if self.steps % every and len(deep) < len(self.running) else []
            self.running = [one for one in self.running if one not in held]
            self.max_num_active_reqs -= len(held)
            try:
                return super().schedule(*arguments)
            finally:
                self.max_num_active_reqs += len(held)
                self.running += held

    return HoldingScheduler


def served(folder: str, mix: dict[int, int], slots: int, every: int) -> dict[str, float]:
    """The same numbers as of a simulation, in seconds, of requests that are all there at once."""
    from vllm import EngineArgs, LLMEngine, SamplingParams

    from recurtrace.serving import scheduler

    chance, own = random.Random(0), scheduler.DepthScheduler
    scheduler.DepthScheduler = holding(every, bound_of(mix)) if every > 1 else own
    try:
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder, dtype="float32", max_model_len=256, skip_tokenizer_init=True, enforce_eager=True,
                enable_prefix_caching=False, max_num_seqs=slots, hf_overrides={"loops": max(mix)},
            )
        )  # fmt: skip
    finally:
        scheduler.DepthScheduler = own
    last, whole, between, tokens = {}, [], [], 0
    for number in range(MEASURED):
        (depth,) = chance.choices(list(mix), list(mix.values()))
        params = SamplingParams(
            temperature=0, max_tokens=max(1, round(chance.expovariate(1 / TOKENS))), ignore_eos=True, detokenize=False,
            extra_args={"loops": depth},
        )  # fmt: skip
        engine.add_request(str(number), {"prompt_token_ids": [chance.randrange(100_000) for _ in range(16)]}, params)
    began = time.perf_counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            now = time.perf_counter()
            if output.request_id in last:
                between.append(now - last[output.request_id])
            last[output.request_id], tokens = now, tokens + 1
            if output.finished:
                whole.append(now - began)
    seconds = time.perf_counter() - began
    engine.engine_core.shutdown()
    return summary(tokens, seconds, between, whole)


def measured(slots: int = 8, turns: int = 2) -> list[str]:
    """Each way in every turn, against today's of the same turn."""
    # One process, whose scheduler can be another; and vLLM must not keep a core from it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import torch

    from benchmarks.common import random_base
    from recurtrace.model import RecurTraceForCausalLM

    ratios: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory() as place:
        torch.manual_seed(0)
        random_base(QWEN3[SCALE].config()).save_pretrained(f"{place}/base")
        RecurTraceForCausalLM.from_base(f"{place}/base").save_pretrained(f"{place}/looped", merge_base=True)
        for _ in range(turns):
            today = served(f"{place}/looped", FEW_DEEP, slots, 1)
            for policy, every in POLICIES.items():
                found = served(f"{place}/looped", FEW_DEEP, slots, every)
                ratios[policy].append({key: found[key] / today[key] for key in today})
    lines = [
        f"Measured: vLLM on the CPU, float32, Qwen3-{SCALE} shape, random weights, 7 of 8 requests at 2 loops and 1 at "
        f"6, {MEASURED} requests of {TOKENS} tokens on average in {slots} slots, mean of {turns} turns "
        "(`make bench-serve`).",
        "",
        "| deep requests run | throughput | 99th percentile of a token | mean | a request |",
        "|---|---:|---:|---:|---:|",
    ]
    for policy, turned in ratios.items():
        means = [f"{sum(one[key] for one in turned) / turns:.2f}×" for key in ("throughput", "p99", "mean", "request")]
        lines.append(f"| {policy} | {' | '.join(means)} |")
    return lines


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="on vLLM, instead of simulating")
    parser.add_argument("--page", type=Path, help="put the table into this page, between its marks")
    arguments = parser.parse_args()
    lines = measured() if arguments.measure else simulated()
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if arguments.page:
        mark = "depth-aware serving" if arguments.measure else "depth-aware simulation"
        write_between(arguments.page, mark, "\n".join(lines))


def simulated() -> list[str]:
    return [
        f"Simulated: Qwen3-{SCALE} in bfloat16 at a context of {CONTEXT}, {REQUESTS:,} requests of {TOKENS} tokens on "
        "average, against all requests in every step (`python -m benchmarks.depth_aware_serving`).",
        "",
        *table(),
    ]


if __name__ == "__main__":
    main()
