"""What the paper leaves open about halting, or words otherwise than we do it, measured on a study's sweeps.

    python -m studies.choices [--study runs/study] [--page docs/choices.md]

Minutes: heads are trained on the sweeps of the first training seed. Thresholds are chosen on held-out items.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.common import write_between
from recurtrace.errors import told
from recurtrace.halting.calibrate import best_fixed
from recurtrace.halting.comparison import Result, compare
from recurtrace.halting.distill import distill
from recurtrace.halting.objectives import DistillRecipe
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.policies import signal_values
from recurtrace.halting.sweep_files import Sweep, read_sweep
from recurtrace.model.heads import Head
from recurtrace.pipeline import PipelineRecipe
from recurtrace.report.render import markdown_table
from recurtrace.report.table import Table, spread

SEEDS = range(3)  # of the heads
_RECIPE = PipelineRecipe.read("embedded/study")
BOUNDS: dict[str, Any] = {"floor": _RECIPE.floor, "max_depth": _RECIPE.max_depth}
STUDY = _RECIPE.distill
PROBED = (2, 4, 6)
HEADS: dict[str, dict[str, Any]] = {
    "the study's: prompt last, 1,000 steps, states scaled to 32": STUDY,
    "… scaled to 1": {**STUDY, "state_scale": 1},
    "… scaled to 8": {**STUDY, "state_scale": 8},
    "… scaled to 128": {**STUDY, "state_scale": 128},
    "… as the paper words it: states as they are, from zero": {**STUDY, "standardize": False},
    "prompt last, 200 steps (the paper's number), scaled to 32": {"pooling": "prompt_last"},
    "… 200 steps as the paper words it": {"pooling": "prompt_last", "standardize": False},
    "prompt mean (the paper's default), 200 steps, scaled to 32": {},
    "prompt mean, 200 steps as the paper words it": {"standardize": False},
}


class Sweeps:
    """Of one model: training, held-out and test items."""

    def __init__(self, folder: Path):
        self.train, self.heldout, self.test = (read_sweep(folder / split) for split in ("train", "heldout", "test"))

    def heads(self, **settings: Any) -> list[Head]:
        """One for each seed."""
        recipes = [DistillRecipe.check({**settings, "seed": seed}, "distill") for seed in SEEDS]
        return [distill(self.train, recipe).head for recipe in recipes]

    def results(self, heads: Mapping[str | None, Head], **settings: Any) -> dict[str, Result]:
        found = compare(self.heldout, self.test, heads, **{**BOUNDS, **settings})
        return {result.method.name: result for result in found}


def ranking(sweep: Sweep, head: Head) -> list[float]:
    """AUROC of continuing against the oracle, at each of the probed depths."""
    labels, probs = Oracle().labels(sweep["loss"]), signal_values(sweep, "head", head)
    return [float(roc_auc_score(labels[:, t - 1], probs[:, t - 1])) for t in PROBED]


def point(results: Iterable[Result]) -> list[str]:
    """Accuracy, loops and likelihood, over heads of several seeds."""
    found = list(results)
    return [
        spread((one.accuracy for one in found), ".1f", 100),
        spread(one.mean_depth for one in found),
        spread((float(one.nll.mean()) for one in found), ".3f"),
    ]


POINT = ["Accuracy, %", "Loops", "NLL"]


def training(sweeps: Sweeps) -> Table:
    rows = []
    for name, settings in HEADS.items():
        heads = sweeps.heads(**settings)
        ranked = np.mean([ranking(sweeps.heldout, head) for head in heads], axis=0)
        found = [sweeps.results({None: head})["recurtrace"] for head in heads]
        rows.append([name, " / ".join(f"{value:.2f}" for value in ranked), *point(found)])
    columns = ["RecurTrace's head", f"Held-out AUROC at {' / '.join(map(str, PROBED))}", *POINT]
    return Table("training", "How a head is trained", columns, rows)


def thresholds(sweeps: Sweeps) -> Table:
    """ACT and PonderNet at 0.5 and selected; CALM with the floor and without."""
    rows = []
    for objective, title in (("act", "ACT"), ("pondernet", "PonderNet")):
        heads = sweeps.heads(objective=objective, **STUDY)
        for every, how in ((False, "0.5"), (True, "selected on held-out items")):
            found = [sweeps.results({objective: head}, every_threshold=every) for head in heads]
            rows.append([title, how, *point(one[objective] for one in found)])
            rows.append([f"{title} + floor", how, *point(one[f"{objective}-floor"] for one in found)])
    for floor, how in ((2, "selected"), (1, "selected, without the floor")):
        results = sweeps.results({}, floor=floor)
        for name, title in (("calm-top-prob", "CALM (top-prob)"), ("calm-margin", "CALM (margin)")):
            rows.append([title, how, *point([results[name]])])
    return Table("thresholds", "Thresholds and floors", ["Method", "Threshold", *POINT], rows)


def monotonicity(sweeps: Sweeps) -> Table:
    rows = []
    for weight in (0.0, 0.1, 1.0):
        heads = sweeps.heads(objective="loopus", monotonicity=weight, **STUDY)
        rows.append([f"{weight:g}", *point(sweeps.results({"loopus": head})["loopus"] for head in heads)])
    return Table("monotonicity", "LoopUS-Conf: weight of the monotonicity term", ["Weight", *POINT], rows)


TABLES: tuple[Callable[[Sweeps], Table], ...] = (training, thresholds, monotonicity)


def page(sweeps: Sweeps, command: str) -> str:
    best = best_fixed(sweeps.heldout["loss"])
    begin = (
        f"The embedded model's first training seed: {len(sweeps.train):,} training examples for heads, "
        f"{len(sweeps.heldout):,} held-out items for thresholds, {len(sweeps.test):,} test items, {len(SEEDS)} seeds "
        f"of each head, floor {BOUNDS['floor']}, at most {BOUNDS['max_depth']} loops. The fixed depth of lowest "
        f"held-out loss ({best}) has {100 * sweeps.test['correct'][:, best - 1].mean():.1f} % (`{command}`)."
    )
    parts = [begin]
    for make in TABLES:
        table = make(sweeps)
        parts += [f"**{table.title}**", markdown_table(table)]
    return "\n\n".join(parts)


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", type=Path, default=Path("runs/study"), help="folder of the study (make study)")
    parser.add_argument("--page", type=Path, help="page to write the tables into")
    arguments = parser.parse_args()
    text = page(Sweeps(arguments.study / "sweeps" / "seed-0"), "python -m studies.choices")
    print(text)
    if arguments.page is not None:
        write_between(arguments.page, "choices", text)


if __name__ == "__main__":
    main()
