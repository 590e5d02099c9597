"""What trains a halting head: five losses over its continue logits at every depth.

Shapes: n examples · T depths.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


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
