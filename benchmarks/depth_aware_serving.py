"""Would a scheduler that holds deep requests back pay? A simulation of decoding under a memory-bound cost model.

A step reads the base's weights once, the block's once for every further loop that any of its requests runs, and each
request's keys and values. Held back, the requests deeper than a bound run in every n-th step only, together: the steps
between are shorter, and a deep request waits for at most n - 1 of them. Requests arrive at random, and slots are
limited. Time is in steps of the base with an empty context.

    python -m benchmarks.depth_aware_serving [--page docs/serving.md]
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.common import write_between
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.cost import cost_of
from recurtrace.model.families import QWEN3

SCALE, CONTEXT, BYTES = "0.6B", 512, 2
TOKENS = 32  # mean length of an answer
REQUESTS = 1500
DEPTHS = {  # name: share of the requests at each depth
    "7 of 8 at 2, 1 of 8 at 6": {2: 7, 6: 1},
    "the embedded model's head": {3: 20, 5: 3, 6: 4, 7: 2, 12: 1, 14: 2, 16: 4},  # 36 prompts of its test mixture
}
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
    between.sort()
    return {
        "throughput": tokens / now,
        "p99": between[int(0.99 * len(between))],
        "mean": sum(between) / len(between),
        "request": sum(whole) / len(whole),
    }


def bound_of(mix: dict[int, int]) -> int:
    """The depth that 85 % of the requests do not exceed."""
    total, so_far = sum(mix.values()), 0
    for depth, share in sorted(mix.items()):
        so_far += share
        if so_far >= 0.85 * total:
            return depth
    return max(mix)


def table(slots: tuple[int, ...] = (8, 64)) -> list[str]:
    cost = StepCost.of(SCALE)
    lines = [
        "| depths | slots | load | deep requests run | throughput | 99th percentile of a token | mean | a request |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for name, mix in DEPTHS.items():
        for most in slots:
            full = simulate(cost, mix, most, 0.0, max(mix), 1)
            for load, gap in (("full", 0.0), ("0.8", TOKENS / (0.8 * full["throughput"]))):
                today = simulate(cost, mix, most, gap, max(mix), 1)
                for policy, every in POLICIES.items():
                    found = simulate(cost, mix, most, gap, bound_of(mix), every)
                    ratios = [f"{found[key] / today[key]:.2f}×" for key in ("throughput", "p99", "mean", "request")]
                    lines.append(f"| {name} | {most} | {load} | {policy} | {' | '.join(ratios)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="put the table into this page, between its marks")
    arguments = parser.parse_args()
    lines = [
        f"Simulated: Qwen3-{SCALE} in bfloat16 at a context of {CONTEXT}, {REQUESTS:,} requests of {TOKENS} tokens on "
        "average, against all requests in every step (`python -m benchmarks.depth_aware_serving`).",
        "",
        *table(),
    ]
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if arguments.page:
        write_between(arguments.page, "depth-aware simulation", "\n".join(lines))


if __name__ == "__main__":
    main()
