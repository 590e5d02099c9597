"""Loop Memory Attention (Eq. 4–5): a looped layer reads its own states of earlier loops, position by position.

Shapes: b rows · s positions · d hidden size · H heads · c head width · m ≤ W remembered loops.

Everything the attention needs of a past state is linear in its normed state. So a state is projected once, in the
loop after it was written, and its projections are kept for W loops; an extra loop costs exactly the block's layers
plus the parameters below. Nothing is kept from one token to the next, since a position reads only itself.
"""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from recurtrace.model.configuration_recurtrace import RecurTraceConfig


class PastState(NamedTuple):
    """What is kept of one state of an earlier loop."""

    key: Tensor  # [b, s, H, c]
    value: Tensor  # [b, s, H, c]
    gate: Tensor  # [b, s, d], its share of the gate's logit as a part of the memory

    def keep(self, rows: Tensor) -> "PastState":
        return PastState(*(part.index_select(0, rows) for part in self))


Window = tuple[PastState, ...]  # newest first, at most W


class Reading(NamedTuple):
    """What a layer reads in its memory, before its scalar gate γ lets it into the residual stream."""

    weights: Tensor  # [b, s, H, m] attention over the window, in float32
    gate: Tensor  # [b, s, d] the token-wise gate
    value: Tensor  # [b, s, d]
    window: Window  # with the newest state inside


class RMSNorm(nn.RMSNorm):
    """Computes in the type of its input, also where its weight is kept in float32 for training."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class LoopMemoryAttention(nn.Module):
    """The memory of one looped layer."""

    def __init__(self, config: RecurTraceConfig):
        super().__init__()
        base = config.get_text_config()
        heads, width, hidden = config.loop_attn_num_heads, config.loop_attn_head_dim, base.hidden_size
        self.config = config
        self.norm = RMSNorm(hidden, eps=base.rms_norm_eps)
        self.q_proj = nn.Linear(hidden, heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, heads * width, bias=False)
        self.o_proj = nn.Linear(heads * width, hidden, bias=False)
        if config.loop_qk_norm:
            self.q_norm: nn.Module = RMSNorm(width, eps=base.rms_norm_eps)
            self.k_norm: nn.Module = RMSNorm(width, eps=base.rms_norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()
        self.slope = nn.Parameter(torch.empty(heads), requires_grad=not config.loop_slope_frozen)
        self.gate = nn.Linear(2 * hidden, hidden)
        self.scale = nn.Parameter(torch.empty(()))
        self.recency: Tensor  # -(t - t_j), newest first
        self.register_buffer("recency", -torch.arange(1, config.loop_memory_window + 1), persistent=False)

    def reset_parameters(self) -> None:
        """Values at initialisation: the memory path is there and gets gradients, but is almost closed."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            init.normal_(projection.weight, std=0.02)
        heads = self.slope.numel()
        init.copy_(self.slope, torch.tensor([2 ** (-8 * (head + 1) / heads) for head in range(heads)]))
        bias = self.config.loop_gate_init_bias
        init.zeros_(self.gate.weight)
        init.constant_(self.gate.bias, -bias if self.config.loop_gates_open else bias)
        init.constant_(self.scale, self.config.loop_gate_init)
        init.copy_(self.recency, -torch.arange(1, self.config.loop_memory_window + 1))

    def forward(self, h: Tensor, state: Tensor, window: Window) -> tuple[Tensor, Window]:
        """Eq. 2: `h` plus what the memory says to `state`, the layer's output of the loop before.

        `state` is also the newest memory; the window is returned with it inside.
        """
        found = self.read(state, window)
        # Trained in float32 beside a base in bfloat16, the memory must not widen the base's states.
        return torch.addcmul(h, self.scale * found.gate, found.value).to(h.dtype), found.window

    def read(self, state: Tensor, window: Window) -> Reading:
        """Eq. 4–5 without γ."""
        query, gate_query, newest = self._project(state)
        window = (newest, *window)[: self.config.loop_memory_window]
        bias = self.slope.float()[:, None] * self.recency
        weights, read, gate = recall(query, gate_query + self.gate.bias, window, bias)
        return Reading(weights, gate, self.o_proj(read.flatten(-2)), window)

    def _project(self, state: Tensor) -> tuple[Tensor, Tensor, PastState]:
        x = self.norm(state)
        per_head = (self.config.loop_attn_num_heads, self.config.loop_attn_head_dim)
        query = self.q_norm(self.q_proj(x).unflatten(-1, per_head))
        key = self.k_norm(self.k_proj(x).unflatten(-1, per_head))
        value = self.v_proj(x).unflatten(-1, per_head)
        # The gate reads [query, mean of the memory]; row i of its weight is [for the query | for the memory], so
        # the same numbers seen as 2d rows give both halves of a state's share in one product.
        halves = F.linear(x, self.gate.weight.view(-1, x.shape[-1])).unflatten(-1, (-1, 2))  # [b, s, d, 2]
        gate_query, gate_memory = halves.unbind(-1)
        return query, gate_query, PastState(key, value, gate_memory)


def recall(query: Tensor, gate: Tensor, window: Window, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How a query weighs the states of its window, what it reads from them (Eq. 4), how far the gate opens (Eq. 5).

    Args:
        query: [..., H, c]
        gate: [..., d] the query's share of the gate's logit, with its bias.
        window: the memory, in shapes to match.
        bias: [..., H, W] of each head for each distance in loops.
    """
    m = len(window)
    scores = torch.stack([torch.linalg.vecdot(query, past.key) for past in window], dim=-1)  # [..., H, m]
    weights = torch.add(bias[..., :m], scores.float(), alpha=query.shape[-1] ** -0.5).softmax(-1)
    first, *others = weights.to(query.dtype).unsqueeze(-2).unbind(-1)  # slot by slot: none is copied beside another
    read = first * window[0].value  # [..., H, c]
    for weight, past in zip(others, window[1:], strict=True):
        read = torch.addcmul(read, weight, past.value)
    memory = reduce(torch.add, [past.gate for past in window])
    return weights, read, torch.sigmoid(torch.add(gate, memory, alpha=1 / m))


class InputInjection(nn.Module):
    """Eq. 1: the block's input, normed, comes back at the start of each loop after the first."""

    def __init__(self, config: RecurTraceConfig):
        super().__init__()
        self.config = config
        self.eps = config.get_text_config().rms_norm_eps
        self.alpha = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        init.constant_(self.alpha, self.config.loop_injection_init)

    def anchor(self, e: Tensor) -> Tensor:
        """RMSNorm(e), without a weight: the same in every loop, so taken once."""
        return F.rms_norm(e, e.shape[-1:], eps=self.eps)

    def forward(self, h: Tensor, anchor: Tensor) -> Tensor:
        return torch.addcmul(h, self.alpha, anchor).to(h.dtype)
