"""Loop Memory Attention of all looped layers at once, for inference.

What the memory says to a layer depends on the loop before alone. So when a loop begins it can be asked for all k layers
together, with their weights stacked: a third of the operations, which on an accelerator cost their launch and not their
arithmetic. Training, compiled graphs and modules that someone has hooked or replaced go layer by layer.

Shapes: k looped layers · n tokens of all rows · d hidden size · H heads · c head width.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recurtrace.model.loop_memory import LoopMemoryAttention, PastState, RMSNorm, Window, recall

_PLAIN = {LoopMemoryAttention, RMSNorm, nn.Linear, nn.Identity}


class FusedMemory:
    """A copy of the memories' weights, stacked; good for as long as `stamp` is that of the memories."""

    def __init__(self, memories: nn.ModuleList):
        layers = cast(list[LoopMemoryAttention], list(memories))
        self.config = layers[0].config
        self.stamp = stamp(layers)
        self.eps = layers[0].norm.eps
        halves = [layer.gate.weight.chunk(2, dim=1) for layer in layers]  # the gate reads [query, mean of the memory]
        rows = list(zip(layers, halves, strict=True))
        self.norm = torch.stack([layer.norm.weight for layer in layers])[:, None]  # [k, 1, d]
        self.ask = torch.stack([torch.cat([m.q_proj.weight, query]) for m, (query, _) in rows])  # [k, H·c + d, d]
        self.keep = torch.stack([torch.cat([m.k_proj.weight, m.v_proj.weight, memory]) for m, (_, memory) in rows])
        self.out = torch.stack([layer.o_proj.weight for layer in layers])  # [k, d, H·c]
        self.gate_bias = torch.stack([layer.gate.bias for layer in layers])  # [k, d]
        self.scale = torch.stack([layer.scale.reshape(1) for layer in layers])  # [k, 1]
        self.recency = torch.stack([layer.slope.float()[:, None] * layer.recency for layer in layers])  # [k, H, W]
        self.qk_norms = [
            torch.stack([norm.get_parameter("weight") for norm in norms])[:, None]  # [k, 1, c]
            for norms in ([layer.q_norm for layer in layers], [layer.k_norm for layer in layers])
            if self.config.loop_qk_norm
        ]

    def __call__(self, states: list[Tensor], window: Window) -> tuple[list[tuple[Tensor, Tensor]], Window]:
        """For each looped layer its gate and what it lets through, from the layers' outputs of the loop before.

        The window holds all layers: [..., k, H, c] and [..., k, d].
        """
        width = self.config.loop_attn_num_heads * self.config.loop_attn_head_dim
        x = self._rms(torch.stack(states).flatten(1, -2), self.norm)  # [k, n, d]
        query, gate_query = self._product(x, self.ask, states[0]).tensor_split([width], dim=-1)
        key, value, gate_memory = self._product(x, self.keep, states[0]).tensor_split([width, 2 * width], dim=-1)
        query, key, value = (part.unflatten(-1, (self.config.loop_attn_num_heads, -1)) for part in (query, key, value))
        if self.qk_norms:
            query, key = (self._rms(part, norm) for part, norm in zip((query, key), self.qk_norms, strict=True))
        window = (PastState(key, value, gate_memory), *window)[: self.config.loop_memory_window]
        _, read, gate = recall(query, gate_query + self.gate_bias, window, self.recency)
        said = torch.bmm(read.flatten(-2).movedim(-2, 0).flatten(1, -2), self.out.mT)  # [k, n, d]
        return list(zip((self.scale * gate).unbind(-2), said.view(-1, *states[0].shape), strict=True)), window

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps) * weight

    @staticmethod
    def _product(x: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """[..., k, rows of the weight], where a row of the batch can be selected by its first dimension."""
        return torch.bmm(x, weight.mT).unflatten(1, like.shape[:-1]).movedim(0, -2)


def stamp(memories: Iterable[nn.Module]) -> list[tuple[int, int]]:
    """Changes with every weight that is replaced, or changed in place."""
    weights = (weight for memory in memories for weight in memory.parameters())
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def can_fuse(memories: nn.ModuleList, h: Tensor) -> bool:
    """Nothing is lost: no gradients are wanted, and every module is our own, here, and unobserved."""
    device = h.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or autocast:
        return False
    ours = all(
        type(module) in _PLAIN and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        for memory in memories
        for module in memory.modules()
    )
    return ours and all((p.device, p.dtype) == (h.device, h.dtype) and p.numel() for p in memories.parameters())
