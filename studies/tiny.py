"""Memory against plain looping and the other baselines on the embedded base, over seeds.

Trains every method on every seed (each run goes on where it was), measures exact-match accuracy by task and k at
several depths on fresh test items, and writes a table with the spread over seeds.

    python -m studies.tiny [--seeds 0 1 2] [--methods loop plain-loop full adapter] [--out runs/tiny-study]
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from recurtrace import RecurTraceForCausalLM
from recurtrace.data.collate import Encoder, collate_padded, padding_id
from recurtrace.data.mixture import MixtureRecipe, build
from recurtrace.data.synthetic import TEST_STEPS, evaluation_items
from recurtrace.files import writing
from recurtrace.training.recipe import TrainRecipe
from recurtrace.training.run import train

RECIPES = Path("recurtrace/recipes/embedded")
DEPTHS = (1, 2, 4, 8, 16)
PER_BUCKET = 200
TASKS = ("p_hop", "symbolic", "arithmetic")


@torch.inference_mode()
def accuracy(model: torch.nn.Module, tokenizer, sizes, depths) -> dict[str, float]:
    """`{task k depth: share of answers right}`; an answer is right if every token of it is the likeliest."""
    model.eval()
    encoder = Encoder(tokenizer, 512)
    found = {}
    for task in TASKS:
        examples = list(evaluation_items(task, seed=0, per_bucket=PER_BUCKET, sizes=sizes))
        for k in TEST_STEPS:
            items = encoder([example for example in examples if example.bucket == f"k={k}"])
            batch = collate_padded(items, padding_id(tokenizer))
            labels, inputs = batch["labels"][:, 1:], {key: batch[key] for key in ("input_ids", "attention_mask")}
            for depth in depths:
                loops = {"loops": depth} if isinstance(model, RecurTraceForCausalLM) else {}
                likeliest = model(**inputs, use_cache=False, **loops).logits[:, :-1].argmax(-1)
                right = ((likeliest == labels) | (labels == -100)).all(-1)
                found[f"{task} {k} {depth}"] = right.double().mean().item()
    return found


def load(folder: Path, method: str) -> torch.nn.Module:
    if method in ("loop", "plain-loop"):
        return RecurTraceForCausalLM.from_pretrained(folder)
    if method == "adapter":
        from peft import AutoPeftModelForCausalLM

        return AutoPeftModelForCausalLM.from_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def study(methods: list[str], seeds: list[int], out: Path, changes: list[str]) -> list[dict]:
    data = MixtureRecipe.read(RECIPES / "tiny-mixture.yaml")
    build(data, Path("runs/tiny-mixture"))
    results = []
    for seed in seeds:
        for method in methods:
            name = f"{method}-{seed}"
            file = out / f"{name}.json"
            if not file.is_file():
                fields = [f"out={out / name}", f"seed={seed}", *changes]
                recipe = TrainRecipe.read_with(RECIPES / f"tiny-{method}.yaml", fields)
                folder = train(recipe)
                tokenizer = AutoTokenizer.from_pretrained(recipe.model)
                depths = DEPTHS if method in ("loop", "plain-loop") else (1,)
                measured = accuracy(load(folder, method), tokenizer, data.sizes, depths)
                budget = json.loads((recipe.out / "budget.json").read_text())
                with writing(file) as temporary:
                    temporary.write_text(
                        json.dumps(
                            {"method": method, "seed": seed, "changes": changes, "accuracy": measured, "budget": budget}
                        )
                    )
            results.append(json.loads(file.read_text()))
            if results[-1]["changes"] != changes:
                raise SystemExit(f"{file} was measured with {results[-1]['changes']}; choose another --out.")
    return results


def table(results: list[dict]) -> str:
    """Mean over seeds, with the standard deviation behind it, in percent."""
    lines = [
        f"| task | method | depth | {' | '.join(f'k={k}' for k in TEST_STEPS)} | all |",
        "|---|---|---:|" + "---:|" * 9,
    ]
    methods = dict.fromkeys(result["method"] for result in results)
    for task in TASKS:
        for method in methods:
            runs = [result["accuracy"] for result in results if result["method"] == method]
            for depth in [depth for depth in DEPTHS if f"{task} 2 {depth}" in runs[0]]:
                cells = []
                for ks in [*([k] for k in TEST_STEPS), list(TEST_STEPS)]:
                    values = [100 * statistics.mean(run[f"{task} {k} {depth}"] for k in ks) for run in runs]
                    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
                    cells.append(f"{statistics.mean(values):.1f}{spread}")
                lines.append(f"| {task} | {method} | {depth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["loop", "plain-loop", "full", "adapter"])
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-study"))
    parser.add_argument("--set", dest="changes", action="append", default=[], help="change a field of every recipe")
    arguments = parser.parse_args()
    tqdm.monitor_interval = 0
    results = study(arguments.methods, arguments.seeds, arguments.out, arguments.changes)
    text = table(results)
    with writing(arguments.out / "table.md") as temporary:
        temporary.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
