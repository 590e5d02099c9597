"""Stage 2: a halting head trained on a cached sweep, everything else frozen. Seconds, and no model in memory.

Shapes: n examples · T depths · d hidden size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recurtrace.errors import RecurTraceError
from recurtrace.halting.objectives import OBJECTIVES, DistillRecipe
from recurtrace.halting.sweep_files import STATES, Sweep
from recurtrace.model.configuration_recurtrace import HeadSettings, RecurTraceConfig
from recurtrace.model.heads import Head


@dataclass(frozen=True)
class Distilled:
    head: Head
    """With what it was trained on; threshold and floor come with calibration."""
    history: list[float]
    """The loss of every step."""


def distill(sweep: Sweep, recipe: DistillRecipe) -> Distilled:
    """Train a head.

    Unless the recipe says otherwise, states are standardised for training, and the scaling is folded back into the
    head; the bias begins at the log-odds of the labels, where they say something of continuing.
    """
    if sweep.split == "test":
        raise RecurTraceError(
            "this is a sweep of test items, and a head is never trained on them; sweep with --split train."
        )
    if STATES[recipe.pooling] not in sweep.arrays:
        raise RecurTraceError("this sweep has no pooled states; sweep again with --states.")
    sweep.require_every_depth()
    states = torch.from_numpy(sweep[STATES[recipe.pooling]]).double()  # [n, T, d]
    objective = OBJECTIVES[recipe.objective]
    labels = objective.labels(sweep, recipe)
    prior, factor = _log_odds(objective.share(labels, recipe)), recipe.state_scale
    mean, deviation = states.mean(dim=(0, 1)), states.std(dim=(0, 1)).clamp(min=1e-6)
    if not recipe.standardize:
        prior, factor, mean, deviation = 0.0, 1.0, torch.zeros_like(mean), torch.ones_like(deviation)
    states = ((states - mean) / deviation).float()

    generator = torch.Generator().manual_seed(recipe.seed)
    head = nn.Linear(states.shape[-1], 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_cosine(recipe))
    history = []
    order = torch.empty(0, dtype=torch.long)
    for _ in range(recipe.steps):
        if len(order) < min(recipe.batch_size, len(states)):
            order = torch.randperm(len(states), generator=generator)
        rows, order = order[: recipe.batch_size], order[recipe.batch_size :]
        logits = prior + factor * head(states[rows]).squeeze(-1)  # [b, T]
        loss = objective.loss(logits, labels[rows], recipe)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), recipe.max_grad_norm)
        optimizer.step()
        schedule.step()
        history.append(loss.item())
    if not math.isfinite(history[-1]):
        raise RecurTraceError("the head's loss is not finite; lower the learning rate (--set learning_rate=…).")
    weight = factor * head.weight.detach().double() / deviation
    bias = prior + factor * head.bias.detach().double() - (weight * mean).sum()
    settings = HeadSettings(recipe.objective, recipe.pooling, trained_on=trained_on(sweep, recipe))
    return Distilled(Head(weight.float(), bias.float(), settings), history)


def trained_on(sweep: Sweep, recipe: DistillRecipe) -> dict[str, Any]:
    """What later stages read of a head's training: its settings, and which examples."""
    examples = {
        "data": sweep.manifest.data,
        "split": sweep.split,
        "tasks": sorted({item.task for item in sweep.items}),
        "examples": len(sweep),
        "examples_sha256": sweep.manifest.examples_sha256,
    }
    return {"recipe": recipe.model_dump(mode="json"), "sweep": examples}


def training_of(head: Head, config: RecurTraceConfig) -> DistillRecipe:
    """The settings a head was trained with; the config's for one that was made before they were kept."""
    known = (head.settings.trained_on or {}).get("recipe")
    return DistillRecipe.check(known or default_settings(config), "the settings kept with the head")


def default_settings(config: RecurTraceConfig) -> dict[str, Any]:
    """Settings that a model's config has a say in."""
    return {
        "pooling": config.loop_halting_pooling,
        "probe_depths": config.loop_halting_aux_depths,
        "margin": config.loop_halting_aux_margin,
        "horizon": config.loop_halting_oracle_max,
        "depth_cost": config.loop_halting_depth_cost,
    }


def _log_odds(continues: Tensor | None) -> float:
    """Of what the labels say of continuing; never infinite, though all or none of them may say so."""
    if continues is None:
        return 0.0
    share = float((continues.double().sum() + 0.5) / (continues.numel() + 1))
    return math.log(share / (1 - share))


def _warm_cosine(recipe: DistillRecipe) -> Callable[[int], float]:
    warm = max(1, round(recipe.warmup * recipe.steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, recipe.steps - warm)))

    return factor
