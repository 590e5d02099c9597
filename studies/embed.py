"""Put a trained base, and the loop modules trained on it, into the package.

    recurtrace pretrain embedded/rhymes
    recurtrace pretrain embedded/base
    python -m studies.embed base runs/embedded-base
    recurtrace data build --recipe embedded/mixture --out runs/embedded-mixture
    recurtrace train embedded/loop
    recurtrace sweep runs/embedded-loop/model --data runs/embedded-mixture --split train --count 800 \
        --out runs/sweeps/train
    recurtrace sweep runs/embedded-loop/model --data runs/embedded-mixture --split heldout --count 400 \
        --out runs/sweeps/heldout
    recurtrace distill runs/embedded-loop/model --sweep runs/sweeps/train --set pooling=prompt_last --set steps=1000 \
        --out runs/looped
    recurtrace calibrate runs/looped --sweep runs/sweeps/heldout --min-depth 2
    python -m studies.embed loop runs/embedded-loop --model runs/looped

Beside the weights stand the recipe, the budget and the losses of the run that made them.
"""

import argparse
import json
import shutil
from pathlib import Path

from recurtrace.assets import TINY_BASE, TINY_LOOP
from recurtrace.errors import told

_LOGGED = ("step", "loss", "learning_rate", "depth", "grad_norm")


def embed(kind: str, run: Path, model: Path | None = None) -> Path:
    """`model` is the run's with a halting head; by default, the run's own."""
    target = TINY_BASE if kind == "base" else TINY_LOOP
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(model or run / "model", target, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(run / "budget.json", target / "budget.json")
    shutil.copy(run / "recipe.json", target / "recipe.json")
    history = json.loads((run / "history.json").read_text())["log_history"]
    kept = [
        {key: value for key, value in entry.items() if key in _LOGGED or key.startswith("eval_nll")}
        for entry in history
        if "loss" in entry or any(key.startswith("eval_nll") for key in entry)
    ]
    (target / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in kept))
    if kind == "loop":  # found beside it, wherever the package is installed
        config = json.loads((target / "config.json").read_text())
        config["base_model_name_or_path"] = config["text_config"]["_name_or_path"] = f"../{TINY_BASE.name}"
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return target


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["base", "loop"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", type=Path, help="the run's model with a halting head")
    arguments = parser.parse_args()
    target = embed(arguments.kind, arguments.run, arguments.model)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
