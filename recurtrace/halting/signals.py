"""What a halting rule can read after each loop, and when it stops: one table for the live rules and for sweeps.

Shapes: b rows · d hidden size · v vocabulary.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Signal:
    """A number after each loop; the loop ends once it is below (or not below) a threshold."""

    name: str
    says: str
    stops: Literal["below", "above"]
    reads: Literal["head", "decoded", "state"]
    """The halting head, the decoded next token (which costs a decoder pass at every depth), or the pooled state."""
    ours: bool = False
    """A training-free rule beyond the paper's comparison."""

    def halts(self, value: Tensor, threshold: float) -> Tensor:
        return value < threshold if self.stops == "below" else value >= threshold


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("head", "the halting head's probability of continuing", "below", "head"),
        Signal("top_prob", "CALM: probability of the likeliest next token", "above", "decoded"),
        Signal("margin", "CALM: its lead over the second", "above", "decoded"),
        Signal("entropy", "entropy of the next token, in nats", "below", "decoded", ours=True),
        Signal("kl", "how far the next token's distribution moved, in nats", "below", "decoded", ours=True),
        Signal("state_l2", "how far the pooled state moved, by its length", "below", "state", ours=True),
        Signal("state_angle", "how far the pooled state turned, in half turns", "below", "state", ours=True),
    )
}
DECODED = [signal.name for signal in SIGNALS.values() if signal.reads == "decoded"]


def decoded_signals(logits: Tensor, before: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
    """Each signal [b] of next-token logits [b, v], and the log-probabilities to compare with after the next loop.

    `before` are those of the loop before; after the first there is nothing to compare with, so nothing has settled.
    """
    log_probs = F.log_softmax(logits.float(), dim=-1)
    probs = log_probs.exp()
    first, second = probs.topk(2, dim=-1).values.unbind(-1)
    moved = torch.full_like(first, torch.inf)
    if before is not None:
        moved = (probs * (log_probs - before)).sum(-1)
    entropy = -(probs * log_probs).sum(-1)
    return {"top_prob": first, "margin": first - second, "entropy": entropy, "kl": moved}, log_probs


def state_signal(name: str, pooled: Tensor, before: Tensor | None) -> Tensor:
    """[…] how far a pooled state […, d] moved since the loop before."""
    if before is None:
        return torch.full(pooled.shape[:-1], torch.inf, device=pooled.device)
    if name == "state_l2":
        return (pooled - before).norm(dim=-1) / before.norm(dim=-1)
    return torch.acos(F.cosine_similarity(pooled, before, dim=-1).clamp(-1, 1)) / torch.pi
