"""What trains a halting head: its settings, and one row for each objective with its labels and its loss.

Shapes: n examples · T depths · b examples of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt, field_validator
from torch import Tensor
from torch.nn import functional as F

from recurtrace.errors import RecurTraceError
from recurtrace.halting.methods import OBJECTIVES as NAMES
from recurtrace.halting.methods import OWN_OBJECTIVE
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.sweep_files import Sweep
from recurtrace.recipe import Recipe, Seed


class DistillRecipe(Recipe):
    """How a head is trained; the defaults are the paper's."""

    objective: str = OWN_OBJECTIVE
    """What the head is trained on."""
    pooling: Literal["prompt_mean", "prompt_last"] = "prompt_mean"
    """Which pooled state the head reads."""
    probe_depths: Annotated[list[PositiveInt], Field(min_length=1)] = [1, 2, 4, 6]
    """oracle, tah: depths with a label."""
    margin: float = Field(0.01, ge=0)
    """δ: by how much a deeper loop must lower the loss to count (Eq. 6)."""
    horizon: PositiveInt = 16
    """Deepest loop the oracle looks at."""
    depth_cost: float = Field(0.0, ge=0)
    """Price of an extra loop in the oracle's comparison of losses."""
    positive_weight: bool = False
    """oracle, tah: at each depth, weigh rare continue labels as much as the others."""
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
    standardize: bool = True
    """Train on standardised states, from a bias at the log-odds of the labels. Off: plain AdamW from zero on the states
    as they are, as the paper has it."""
    state_scale: PositiveFloat = 32.0
    """Deviation that standardised states are brought to. The learning rate is meant for a residual stream, not for unit
    variance: 200 steps of 3e-4 move a weight by 0.03 at most."""
    seed: Seed = 0

    @field_validator("objective")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in NAMES:
            raise ValueError(f"must be one of {', '.join(NAMES)}")
        return name


@dataclass(frozen=True)
class Objective:
    """A way to train a head."""

    name: str
    label: str
    """What an example is compared with, in words."""
    labels: Callable[[Sweep, DistillRecipe], Tensor]
    """The same from a sweep: [n, T] for every depth, or [n]."""
    loss: Callable[[Tensor, Tensor, DistillRecipe], Tensor]
    """Of continue logits [b, T] against the labels of the same examples."""
    share: Callable[[Tensor, DistillRecipe], Tensor | None] = lambda labels, recipe: None
    """What the labels say of continuing, in 0..1: the bias begins at its log-odds. None: it begins at zero."""


def supervised(logits: Tensor, labels: Tensor, depths: list[int], positive_weight: bool = False) -> Tensor:
    """Binary cross-entropy against continue labels at the probe depths (the oracle's, or TaH's mismatches).

    With `positive_weight` a depth's positive labels count as much as its negative ones, however rare they are.
    """
    columns = torch.tensor(depths, device=logits.device) - 1
    logits, labels = logits[:, columns], labels[:, columns].to(logits)
    weight = None
    if positive_weight:
        positive = labels.mean(dim=0)
        weight = ((1 - positive) / positive.clamp(min=1 / len(labels))).clamp(min=1)
    return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weight)


def confidence(logits: Tensor, accuracy: Tensor, monotonicity: float = 0.1) -> Tensor:
    """LoopUS-Conf: 1 - p_t is the confidence in the answer so far, and p_t should fall with depth.

    `accuracy` [n, T] is the share of answer tokens that are right at each depth: no look at deeper losses.
    """
    fit = F.binary_cross_entropy_with_logits(logits, 1 - accuracy)
    rises = (logits[:, 1:].sigmoid() - logits[:, :-1].sigmoid()).clamp(min=0)
    return fit + monotonicity * rises.mean()


def halting_distribution(logits: Tensor) -> Tensor:
    """[n, T] log-probability of stopping at each depth; the last takes what is left."""
    go_on = F.logsigmoid(logits).cumsum(dim=1)
    reached = F.pad(go_on[:, :-1], (1, 0))
    stops = F.logsigmoid(-logits[:, :-1])
    return torch.cat([reached[:, :-1] + stops, reached[:, -1:]], dim=1)


def act(logits: Tensor, target: Tensor, ponder_cost: float = 0.01) -> Tensor:
    """ACT: expected distance to the oracle's target depth [n], and a price on the expected depth."""
    probs = halting_distribution(logits).exp()
    depths = torch.arange(1, logits.shape[1] + 1, device=logits.device)
    return _quality(probs, target) + ponder_cost * (probs * depths).sum(dim=1).mean()


def pondernet(logits: Tensor, target: Tensor, weight: float = 0.01, prior: float = 0.2) -> Tensor:
    """PonderNet: the same distance, and the divergence from a geometric prior over the depths there are."""
    log_probs = halting_distribution(logits)
    steps = torch.arange(logits.shape[1], device=logits.device)
    log_prior = torch.log_softmax(steps * torch.log1p(torch.tensor(-prior)), dim=0)
    divergence = (log_probs.exp() * (log_probs - log_prior)).sum(dim=1).mean()
    return _quality(log_probs.exp(), target) + weight * divergence


def _quality(probs: Tensor, target: Tensor) -> Tensor:
    depths = torch.arange(1, probs.shape[1] + 1, device=probs.device)
    return (probs * (depths - target[:, None]).abs()).sum(dim=1).mean()


def _oracle(sweep: Sweep, recipe: DistillRecipe) -> Tensor:
    """[n, T] whether some deeper loop lowers the loss (Eq. 6)."""
    return torch.from_numpy(Oracle.of(recipe).labels(sweep["loss"]))


def _oracle_depth(sweep: Sweep, recipe: DistillRecipe) -> Tensor:
    """[n] the first depth from which no deeper one is worth it."""
    return torch.from_numpy(Oracle.of(recipe).depths(sweep["loss"]))


def _at_probe_depths(labels: Tensor, recipe: DistillRecipe) -> Tensor | None:
    if max(recipe.probe_depths) > labels.shape[1]:
        raise RecurTraceError(
            f"probe depth {max(recipe.probe_depths)} is beyond the sweep's {labels.shape[1]}; sweep deeper."
        )
    return None if recipe.positive_weight else labels[:, [depth - 1 for depth in recipe.probe_depths]]


def _supervised(logits: Tensor, labels: Tensor, recipe: DistillRecipe) -> Tensor:
    return supervised(logits, labels, recipe.probe_depths, recipe.positive_weight)


OBJECTIVES = {
    row.name: row
    for row in (
        Objective("oracle", "some deeper loop lowers the loss by more than δ", _oracle, _supervised, _at_probe_depths),
        Objective(
            "act",
            "distance to the oracle's depth, and a price on every loop",
            _oracle_depth,
            lambda logits, depth, recipe: act(logits, depth, recipe.regularization),
        ),
        Objective(
            "pondernet",
            "distance to the oracle's depth, and to a geometric prior",
            _oracle_depth,
            lambda logits, depth, recipe: pondernet(logits, depth, recipe.regularization, recipe.prior),
        ),
        Objective(
            "loopus",
            "share of answer tokens that are wrong at this depth",
            lambda sweep, recipe: torch.from_numpy(sweep["token_accuracy"]),
            lambda logits, accuracy, recipe: confidence(logits, accuracy, recipe.monotonicity),
            lambda accuracy, recipe: 1 - accuracy,
        ),
        Objective(
            "tah",
            "the greedy answer is wrong at this depth",
            lambda sweep, recipe: torch.from_numpy(~sweep["correct"]),
            _supervised,
            _at_probe_depths,
        ),
    )
}
