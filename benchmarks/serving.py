"""What depth costs on vLLM: time against vLLM's own base model, and against the FLOPs that `recurtrace info` states.

At the shape of Qwen3-0.6B with random weights, float32, on this machine's CPU. Two engines are up at once, the base
and one looped server whose requests ask for 1, 2 and 4 loops, leave it to the head, or ask for 1 and 4 by turns; the
processes of the one that is not measured are stopped meanwhile, since an idle worker of vLLM's spins.
Every number is a ratio within one run: all variants are timed in every turn, in a new random order.

    python -m benchmarks.serving [--turns 4] [--page docs/serving.md]
"""

import argparse
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.common import qwen3_06b, random_base, write_between
from recurtrace.errors import told
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.cost import Cost, cost_of

MOST = 4
REQUESTS, PROMPT, NEW = 16, 32, 16
VARIANTS: dict[str, list[int | str]] = {
    "1 loop": [1],
    "2 loops": [2],
    "4 loops": [4],
    "adaptive": ["adaptive"],
    "1 and 4 by turns": [1, 4],
}


def build(folder: Path, prompts: list[list[int]]) -> Cost:
    """A base and a looped model on it, with a head that gives different prompts different depths."""
    torch.manual_seed(0)
    base = random_base(qwen3_06b()).eval()
    base.save_pretrained(folder / "base")
    model = RecurTraceForCausalLM.from_base(str(folder / "base"))
    model.config.override({"loop_halting_trained": True, "loop_halting_min_depth": 1, "loop_halting_max_depth": MOST})
    with torch.no_grad():
        torch.nn.init.normal_(model.loop.halting.weight)
        seen = model(torch.tensor(prompts), loops="adaptive", threshold=0.0).continue_probs
        model.loop.halting.bias -= torch.logit(seen, eps=1e-6)[:, :-1].median()
    model.save_pretrained(folder / "looped", merge_base=True)
    return cost_of(model.config)


def flops(cost: Cost, depths: list[int]) -> float:
    """Multiply-adds of all requests: the prompt read, then one token after another."""
    prefill = [PROMPT * cost.macs(depth, (PROMPT + 1) / 2, 1 / PROMPT) for depth in depths]
    decode = [cost.macs(depth, PROMPT + i) for depth in depths for i in range(1, NEW)]
    return sum(prefill) + sum(decode)


class Engine:
    """A vLLM engine whose processes can be stopped and let go on."""

    def __init__(self, model: str):
        from vllm import LLM

        before = set(psutil.Process().children(recursive=True))
        self.llm = LLM(
            model=model, dtype="float32", max_model_len=256, skip_tokenizer_init=True, enforce_eager=True,
            enable_prefix_caching=False, max_num_seqs=REQUESTS,
        )  # fmt: skip
        self.processes = set(psutil.Process().children(recursive=True)) - before
        self.stop()

    def stop(self) -> None:
        for process in self.processes:
            process.suspend()

    def go_on(self) -> None:
        for process in self.processes:
            process.resume()

    def __enter__(self) -> Any:
        self.go_on()
        return self.llm

    def __exit__(self, *exc: object) -> None:
        self.stop()


def run(llm: Any, prompts: list[list[int]], loops: list[int | str] | None) -> tuple[float, list[int]]:
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False,
            extra_args=None if loops is None else {"loops": loops[i % len(loops)]},
        )
        for i in range(len(prompts))
    ]  # fmt: skip
    began = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return seconds, [(out.kv_transfer_params or {"loops": 1})["loops"] for out in outputs]


def measure(turns: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 100_000, (REQUESTS, PROMPT), generator=generator).tolist()
    with tempfile.TemporaryDirectory() as place:
        cost = build(Path(place), prompts)
        engines = {name: Engine(f"{place}/{name}") for name in ("base", "looped")}
        variants: dict[str, list[int | str] | None] = {"base": None, **VARIANTS}
        taken, depths = dict.fromkeys(variants, 0.0), {}
        for turn in range(turns + 1):
            for name in random.Random(turn).sample(list(variants), len(variants)):
                with engines["base" if name == "base" else "looped"] as llm:
                    seconds, depths[name] = run(llm, prompts, variants[name])
                if turn:  # the first warms up
                    taken[name] += seconds
        for engine in engines.values():
            engine.go_on()
            engine.llm.llm_engine.engine_core.shutdown()
    base, tokens = taken["base"], REQUESTS * NEW * turns
    lines = [
        f"Qwen3-0.6B shape, random weights, float32, {torch.get_num_threads()} threads, vLLM 0.32 on the CPU, eager; "
        f"{REQUESTS} requests at once, {PROMPT} tokens in and {NEW} out, {turns} turns (`make bench-serve`). The base "
        f"wrote {tokens / base:.1f} tokens a second.",
        "",
        "| requests | mean loops | time ÷ base | FLOPs ÷ base | time ÷ FLOPs |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in VARIANTS:
        mean = sum(depths[name]) / len(depths[name])
        stated = flops(cost, depths[name]) / flops(cost, [1] * REQUESTS)
        lines.append(
            f"| {name} | {mean:.2f} | {taken[name] / base:.3f}× | {stated:.3f}× | {taken[name] / base / stated:.3f} |"
        )
    apart = (taken["1 loop"] + taken["4 loops"]) / 2
    lines += [
        "",
        f"A batch of requests at 1 and 4 loops takes {taken['1 and 4 by turns'] / apart:.3f} of what the same requests "
        "take in batches of one depth each, equally full.",
    ]
    return lines


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--page", type=Path, help="put the table into this page, between its benchmark marks")
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # Left to itself vLLM keeps a core from one engine's worker and not from the other's.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    lines = measure(asked.turns)
    print("\n".join(lines))
    if asked.page:
        write_between(asked.page, "serving benchmark", "\n".join(lines))


if __name__ == "__main__":
    main()
