"""`evaluate` and `sweep --no-states` on vLLM against torch: time for each further item.

At the shape of Qwen3-0.6B with random weights, float32, on this machine's CPU, with questions about stories. Each stage
runs on each engine twice, with few items and with more, and the difference counts: starting vLLM and reading weights
are left out. Random weights do not end their answers, so every answer is as long as its task allows.

    python -m benchmarks.engines [--page docs/serving.md]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoTokenizer

from benchmarks.common import qwen3_06b, random_base, write_between
from recurtrace import stages
from recurtrace.assets import TINY_BASE
from recurtrace.errors import told
from recurtrace.model import RecurTraceForCausalLM

FEW, MORE = 4, 12
ENGINES = ("torch", "vllm")
DATA: dict[str, Any] = {"data": "where_thing", "dtype": "float32", "max_length": 256, "batch_size": 8}
STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "`evaluate`, 1 depth": ("evaluate", {"loops": "2"}),
    "`evaluate`, 4 depths": ("evaluate", {"loops": "1,2,4,8"}),
    "`sweep --no-states`, 8 depths": ("sweep", {"split": "test", "depths": "1-8", "states": False}),
}


def seconds(stage: str, asked: dict[str, Any], count: int) -> float:
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        getattr(stages, stage)(**asked, count=count, out=Path(place) / "out")
        return time.perf_counter() - began


def measure(folder: Path) -> list[str]:
    torch.manual_seed(0)
    random_base(qwen3_06b()).save_pretrained(folder / "base")
    model = RecurTraceForCausalLM.from_base(str(folder / "base"))
    model.save_pretrained(folder / "looped", merge_base=True)
    AutoTokenizer.from_pretrained(TINY_BASE).save_pretrained(folder / "looped")
    del model
    for engine in ENGINES:  # imports, and files that are not in memory yet
        seconds("evaluate", {"model": str(folder / "looped"), **DATA, "loops": "1", "engine": engine}, 1)
    lines = [
        f"Qwen3-0.6B shape, random weights, float32, {torch.get_num_threads()} threads, one run; time of {MORE - FEW} "
        "further items, without the start (`make bench-serve`).",
        "",
        "| stage | vLLM ÷ torch |",
        "|---|---:|",
    ]
    for name, (stage, settings) in STAGES.items():
        asked = {"model": str(folder / "looped"), **DATA, **settings}
        taken = {}
        for engine in ENGINES:
            one = {**asked, "engine": engine}
            few = seconds(stage, one, FEW)
            taken[engine] = seconds(stage, one, MORE) - few
        lines.append(f"| {name} | {taken['vllm'] / taken['torch']:.2f}× |")
        Console(stderr=True).print(lines[-1], markup=False)
    return lines


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="put the table into this page, between its marks")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as place:
        lines = measure(Path(place))
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if arguments.page:
        write_between(arguments.page, "engines benchmark", "\n".join(lines))


if __name__ == "__main__":
    main()
