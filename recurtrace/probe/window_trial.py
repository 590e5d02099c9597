"""The probe's second stage: candidate windows compared by the held-out loss after a short stage-1 run each."""

import json
from dataclasses import replace

from recurtrace.errors import RecurTraceError
from recurtrace.records import BlockProbe, Window
from recurtrace.training.recipe import TrainRecipe
from recurtrace.training.train import train

LOOPS = 2


def try_windows(probe: BlockProbe, recipe: TrainRecipe, count: int) -> BlockProbe:
    """Train the probe's first `count` windows by the recipe; the probe with these alone, the best of them first.

    Each run is a folder `window-<start>` of the recipe's, so that an interrupted comparison resumes.
    """
    if recipe.method not in ("loop", "plain_loop"):
        raise RecurTraceError(
            f"windows are compared by training looped models, but the recipe's method is {recipe.method}; use loop or "
            "plain_loop."
        )
    tried = []
    for window in probe.windows[:count]:
        loop = {**recipe.loop, "loop_start": window.start, "loop_num_layers": probe.loop_num_layers}
        fields = {"loop": loop, "out": recipe.out / f"window-{window.start}", "evaluate_depths": [1, LOOPS]}
        made = recipe.model_copy(update=fields)
        train(made)
        history = json.loads((made.out / "history.json").read_text(encoding="utf-8"))["log_history"]
        last = next(entry for entry in reversed(history) if f"eval_nll_{LOOPS}" in entry)
        tried.append(Window(window.start, window.mean_distance, last[f"eval_nll_{LOOPS}"]))
        compared_on = json.loads((made.out / "packed" / "heldout.json").read_text(encoding="utf-8"))["kept"]
    return replace(
        probe,
        windows=sorted(tried, key=lambda window: window.nll or 0.0),
        base_nll=last["eval_nll_1"],
        compared_on=compared_on,
        compared_by="training",
    )
