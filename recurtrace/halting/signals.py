"""What a stopping rule can read after each loop: one table for live models and for sweeps.

Shapes: b rows · d hidden size · v vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from recurtrace.halting.rule import Direction, StoppingRule

Formula = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Signal:
    """A number after each loop, by which the loop ends or goes on."""

    name: str
    """Also the name of its array in a sweep, where it reads the decoded token."""
    says: str
    stops: Direction
    """Whether a low or a high value ends the loop."""
    reads: Literal["head", "decoded", "state"]
    """The halting head, the next token's distribution (which costs a decoder pass at every depth), or the pooled
    state of the block."""
    formula: Formula | None = None
    """Value of what it reads, [b, v] log-probabilities or […, d] states, and of the same one loop earlier (None after
    the first loop). The head is its own formula."""
    probability: bool = False
    """Lies between 0 and 1, so thresholds are tried in hundredths."""
    ours: bool = False
    """An extension, not in the paper's comparison."""

    def rule(self, threshold: float, min_depth: int = 1, max_depth: int = 16) -> StoppingRule:
        return StoppingRule(threshold, min_depth, max_depth, self.stops)


def top_prob(log_probs: Tensor, before: Tensor | None) -> Tensor:
    return log_probs.exp().amax(dim=-1)


def margin(log_probs: Tensor, before: Tensor | None) -> Tensor:
    first, second = log_probs.exp().topk(2, dim=-1).values.unbind(-1)
    return first - second


def entropy(log_probs: Tensor, before: Tensor | None) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


def divergence(log_probs: Tensor, before: Tensor | None) -> Tensor:
    if before is None:
        return _not_settled(log_probs)
    return (log_probs.exp() * (log_probs - before)).sum(-1)


def state_change(state: Tensor, before: Tensor | None) -> Tensor:
    return _not_settled(state) if before is None else (state - before).norm(dim=-1) / before.norm(dim=-1)


def state_angle(state: Tensor, before: Tensor | None) -> Tensor:
    if before is None:
        return _not_settled(state)
    return torch.acos(F.cosine_similarity(state, before, dim=-1).clamp(-1, 1)) / torch.pi


def _not_settled(values: Tensor) -> Tensor:
    """After the first loop there is nothing to compare with, so nothing has settled."""
    return torch.full(values.shape[:-1], torch.inf, device=values.device)


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("head", "the halting head's probability of continuing", "below", "head", probability=True),
        Signal(
            "top_prob", "CALM: probability of the likeliest next token", "above", "decoded", top_prob, probability=True
        ),
        Signal("margin", "CALM: its lead over the second", "above", "decoded", margin, probability=True),
        Signal("entropy", "entropy of the next token, in nats", "below", "decoded", entropy, ours=True),
        Signal("kl", "change of the next token's distribution, in nats", "below", "decoded", divergence, ours=True),
        Signal("state_l2", "change of the pooled state, by its norm", "below", "state", state_change, ours=True),
        Signal("state_angle", "turn of the pooled state, in half turns", "below", "state", state_angle, ours=True),
    )
}
DECODED = [signal for signal in SIGNALS.values() if signal.reads == "decoded"]


def next_token(logits: Tensor) -> Tensor:
    """[b, v] what the decoded signals read."""
    return F.log_softmax(logits.float(), dim=-1)
