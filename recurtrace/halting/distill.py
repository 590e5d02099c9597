"""Stage 2: a halting head trained on a cached sweep, everything else frozen. Seconds, and no model in memory.

Shapes: n examples · T depths · d hidden size.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from recurtrace.errors import RecurTraceError
from recurtrace.halting import objectives
from recurtrace.halting.oracle import continue_labels, target_depths
from recurtrace.halting.sweep_files import STATES, Sweep
from recurtrace.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]


class DistillRecipe(Recipe):
    """How a head is trained; the defaults are the paper's."""

    objective: Literal["oracle", "act", "pondernet", "loopus", "tah"] = "oracle"
    pooling: Literal["prompt_mean", "prompt_last"] = "prompt_mean"
    """Which pooled state the head reads."""
    probe_depths: list[PositiveInt] = [1, 2, 4, 6]
    """oracle, tah: depths with a label."""
    margin: float = Field(0.01, ge=0)
    """How much a deeper loop must lower the loss to count."""
    horizon: PositiveInt = 16
    """Deepest loop looked at."""
    depth_cost: float = Field(0.0, ge=0)
    """Price of an extra loop in the oracle's comparison."""
    positive_weight: bool = False
    """oracle, tah: let rare continue labels weigh as much as the others, depth by depth."""
    regularization: float = Field(0.01, ge=0)
    """act: price of a loop; pondernet: weight of the divergence."""
    prior: float = Field(0.2, gt=0, lt=1)
    """pondernet: parameter of the geometric prior."""
    monotonicity: float = Field(0.1, ge=0)
    """loopus: weight of the penalty on a continue probability that rises with depth."""
    steps: PositiveInt = 200
    batch_size: PositiveInt = 256
    learning_rate: PositiveFloat = 3e-4
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the steps before the learning rate is full; it falls as a cosine from there."""
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: PositiveFloat = 1.0
    state_scale: PositiveFloat = 32.0
    """Deviation that states are brought to. The learning rate is meant for a residual stream, not for unit variance:
    200 steps of 3e-4 move a weight by 0.03 at most."""
    seed: int = 0


def distill(sweep: Sweep, recipe: DistillRecipe) -> tuple[Tensor, Tensor, list[float]]:
    """Weight [1, d] and bias [1] of the trained head, and the loss of every step.

    States are standardised for training, and the scaling is folded back into the head. The bias begins at the log-odds
    of the labels, where there are some.
    """
    if sweep.manifest["split"] == "test":
        raise RecurTraceError("this sweep is of test items; a head is never trained on them, so sweep held-out ones.")
    if STATES[recipe.pooling] not in sweep.arrays:
        raise RecurTraceError("this sweep has no pooled states; sweep again with --states.")
    sweep.require_every_depth()
    states = torch.from_numpy(sweep[STATES[recipe.pooling]]).double()  # [n, T, d]
    loss_of, share = _objective(sweep, recipe)
    mean, deviation = states.mean(dim=(0, 1)), states.std(dim=(0, 1)).clamp(min=1e-6)
    states = ((states - mean) / deviation).float()
    prior = math.log(share / (1 - share))

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
        loss = loss_of(prior + recipe.state_scale * head(states[rows]).squeeze(-1), rows)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), recipe.max_grad_norm)
        optimizer.step()
        schedule.step()
        history.append(loss.item())
    if not math.isfinite(history[-1]):
        raise RecurTraceError("the head's loss is not finite; lower the learning rate (--set learning_rate=…).")
    weight = recipe.state_scale * head.weight.detach().double() / deviation
    bias = prior + recipe.state_scale * head.bias.detach().double() - (weight * mean).sum()
    return weight.float(), bias.float(), history


def _objective(sweep: Sweep, recipe: DistillRecipe) -> tuple[Loss, float]:
    """The loss of logits [b, T] for the examples `rows`, and the share of continue labels."""
    labels = continue_labels(sweep["loss"], recipe.margin, recipe.horizon, recipe.depth_cost)
    if recipe.objective in ("oracle", "tah"):
        if max(recipe.probe_depths) > len(sweep.depths):
            raise RecurTraceError(
                f"probe depth {max(recipe.probe_depths)} is beyond the sweep's {len(sweep.depths)}; sweep deeper."
            )
        wanted = torch.from_numpy(labels if recipe.objective == "oracle" else ~sweep["correct"])
        probes = list(recipe.probe_depths)
        share = 0.5 if recipe.positive_weight else _share(wanted[:, [depth - 1 for depth in probes]])
        return lambda logits, rows: objectives.supervised(logits, wanted[rows], probes, recipe.positive_weight), share
    if recipe.objective == "loopus":
        accuracy = torch.from_numpy(sweep["token_accuracy"])
        return lambda logits, rows: objectives.confidence(logits, accuracy[rows], recipe.monotonicity), _share(
            1 - accuracy
        )
    target = torch.from_numpy(target_depths(labels))
    if recipe.objective == "act":
        return lambda logits, rows: objectives.act(logits, target[rows], recipe.regularization), 0.5
    return lambda logits, rows: objectives.pondernet(logits, target[rows], recipe.regularization, recipe.prior), 0.5


def _share(labels: Tensor) -> float:
    """Of positive labels; never all or none, so that its log-odds are finite."""
    return float((labels.double().sum() + 0.5) / (labels.numel() + 1))


def _warm_cosine(recipe: DistillRecipe) -> Callable[[int], float]:
    warm = max(1, round(recipe.warmup * recipe.steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, recipe.steps - warm)))

    return factor
