"""Every way to choose a depth, on the embedded base, over the training seeds of studies.tiny.

For each seed's stage-1 model: sweeps of training, held-out and test items, a head for every objective (and for every
strength of ACT's and PonderNet's penalty) from the first, thresholds and floors from the second, and all methods on the
third.

    python -m studies.halting [--seeds 0 1 2] [--runs runs/tiny-study] [--out runs/tiny-halting]
"""

import argparse
import json
import shutil
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from recurtrace import RecurTraceForCausalLM
from recurtrace.data.mixture import gather
from recurtrace.data.sampling import stratified
from recurtrace.data.synthetic import TRAIN_STEPS
from recurtrace.evaluation.statistics import transitions
from recurtrace.files import writing
from recurtrace.halting.comparison import Result, compare
from recurtrace.halting.distill import DistillRecipe, distill
from recurtrace.halting.methods import HEADS
from recurtrace.halting.sweep import sweep
from recurtrace.halting.sweep_files import Sweep, read_sweep
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.heads import read_head, read_looped_config, write_head

MIXTURE = "runs/tiny-mixture"
STRENGTHS = (0.001, 0.01, 0.1)
COUNTS = {"train": 600, "heldout": 600, "test": 900}


def measured(model: Path, out: Path, split: str, count: int) -> Sweep:
    if not (out / "manifest.json").is_file() or not json.loads((out / "manifest.json").read_text())["complete"]:
        examples = stratified(gather(MIXTURE, None, split=split), count)
        tokenizer = AutoTokenizer.from_pretrained("recurtrace/assets/tiny-base")
        looped = RecurTraceForCausalLM.from_pretrained(model)
        sweep(looped, tokenizer, examples, out, split, MIXTURE, batch_size=64, max_length=512)
    return read_sweep(out)


def study(seed: int, runs: Path, out: Path) -> dict[str, list[dict]]:
    """The methods' rows for one training seed: on problems as long as stage 1 saw, and on all of them."""
    file = out / f"results-{seed}.json"
    if file.is_file():
        return json.loads(file.read_text())
    model = out / f"model-{seed}"
    if not model.exists():
        shutil.copytree(runs / f"loop-{seed}" / "model", model)
        config = json.loads((model / "config.json").read_text())
        config["base_model_name_or_path"] = str(Path("recurtrace/assets/tiny-base").resolve())
        (model / "config.json").write_text(json.dumps(config, indent=2))
    train, heldout, test = (measured(model, out / f"{split}-{seed}", split, count) for split, count in COUNTS.items())
    wanted = [(None if objective == "oracle" else objective, {"objective": objective}) for objective in HEADS]
    wanted += [
        (f"{objective}-{str(strength).replace('.', '_')}", {"objective": objective, "regularization": strength})
        for objective in ("act", "pondernet")
        for strength in STRENGTHS
    ]
    for name, fields in wanted:
        weight, bias, _ = distill(train, DistillRecipe.check({**fields, "seed": seed}, "study"))
        write_head(model, name, weight, bias, HeadSettings(fields["objective"]))
    names = [None, *(read_looped_config(model).loop_halting_heads or {})]
    heads = {name: read_head(model, name) for name in names}
    trained_range = np.array([int(item["bucket"].removeprefix("k=")) <= max(TRAIN_STEPS) for item in test.items])
    parts = {"k = 2 to 8, the range of stage 1": test.keep(trained_range), "k = 2 to 16": test}
    found = {title: rows_of(compare(heldout, part, heads)) for title, part in parts.items()}
    with writing(file) as temporary:
        temporary.write_text(json.dumps(found, indent=1))
    return found


def rows_of(results: list[Result]) -> list[dict]:
    best = max((r for r in results if r.method.signal == "fixed"), key=lambda r: r.accuracy)
    shown = [r for r in results if r.method.signal != "fixed" or r.floor in (1, 2, 4, 8, 16) or r is best]
    return [
        {
            "title": result.method.title,
            "accuracy": result.accuracy,
            "mean_depth": result.mean_depth,
            "nll": float(result.nll.mean()),
            "net": transitions(best.correct, result.correct).net,
            "p": transitions(best.correct, result.correct).p_value,
        }
        for result in shown
    ]


def table(by_seed: list[list[dict]]) -> str:
    """Mean over training seeds, with the standard deviation behind it."""
    found = defaultdict(list)
    for rows in by_seed:
        for row in rows:
            found[row["title"]].append(row)

    def spread(values: list[float], form: str) -> str:
        deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
        return f"{statistics.mean(values):{form}}{deviation}"

    lines = [
        "| method | accuracy, % | mean loops | NLL | right more than the best fixed | p, seed by seed |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for title, rows in found.items():
        accuracy = spread([100 * row["accuracy"] for row in rows], ".2f")
        loops, nll = spread([row["mean_depth"] for row in rows], ".2f"), spread([row["nll"] for row in rows], ".3f")
        ps = ", ".join(f"{row['p']:.2g}" for row in rows)
        lines.append(
            f"| {title} | {accuracy} | {loops} | {nll} | {spread([row['net'] for row in rows], '.0f')} | {ps} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/tiny-study"))
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-halting"))
    arguments = parser.parse_args()
    found = [study(seed, arguments.runs, arguments.out) for seed in arguments.seeds]
    text = "\n\n".join(f"{title}:\n\n{table([one[title] for one in found])}" for title in found[0])
    with writing(arguments.out / "table.md") as temporary:
        temporary.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
