"""The halting head, and what it reads.

Shapes: b rows · s positions · d hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from recurtrace.errors import RecurTraceError


class HaltingHead(nn.Linear):
    """p_t = σ(w·z_t + b), the probability that another loop is worth it. Computed in float32 whatever the model."""

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size, 1)

    def reset_parameters(self) -> None:
        init.zeros_(self.weight)
        init.zeros_(self.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(pooled.float(), self.weight.float(), self.bias.float())).squeeze(-1)  # [b]


def pool_prompt(h: Tensor, prompt_mask: Tensor, pooling: str) -> Tensor:
    """z_t: the raw block output [b, s, d] over the prompt's positions, as [b, d] in float32."""
    if pooling == "prompt_last":
        return at_last_position(h, prompt_mask).float()
    # `where`, not a product: a padded position may hold anything, NaN included.
    prompt = torch.where(prompt_mask[..., None], h, 0)
    return prompt.sum(dim=1, dtype=torch.float32) / prompt_mask.sum(dim=1, keepdim=True)


def at_last_position(h: Tensor, prompt_mask: Tensor) -> Tensor:
    """[b, d] the state that predicts what follows the prompt."""
    positions = torch.arange(h.shape[1], device=h.device)
    last = torch.where(prompt_mask, positions, -1).amax(dim=1)
    return h[torch.arange(len(h), device=h.device), last]


def prompt_positions(
    h: Tensor, attention_mask: Tensor | None, prompt_mask: Tensor | None, labels: Tensor | None
) -> Tensor:
    """[b, s] True where the halting head may read.

    That is `prompt_mask` without padding; by default everything, and with `labels` what comes before the first label.
    """
    positions = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        positions &= attention_mask[:, -h.shape[1] :].to(h.device).bool()
    if prompt_mask is not None:
        if prompt_mask.ndim != 2 or len(prompt_mask) != len(h) or prompt_mask.shape[1] > h.shape[1]:
            raise RecurTraceError(
                f"prompt_mask has shape {list(prompt_mask.shape)} for inputs of shape {list(h.shape[:2])}; "
                "give one row per sequence, no longer than the input."
            )
        positions[:, prompt_mask.shape[1] :] = False  # what came after the prompt
        positions[:, : prompt_mask.shape[1]] &= prompt_mask.to(h.device).bool()
    elif labels is not None:
        positions &= ((labels != -100).cumsum(dim=1) == 0).to(h.device)
    return positions


def refuse_promptless(has_prompt: list[bool]) -> None:
    if not all(has_prompt):
        row = has_prompt.index(False)
        raise RecurTraceError(f"sequence {row} has no prompt position to decide its depth from; pass prompt_mask.")
