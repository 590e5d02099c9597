"""Everything that is added to a base, and one loop over its block; transformers and vLLM models share it."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.fused_memory import FusedMemory, can_fuse, stamp
from recurtrace.model.halting import HaltingHead
from recurtrace.model.loop_memory import InputInjection, LoopMemoryAttention
from recurtrace.model.loop_state import LoopState


class LoopModules(nn.Module):
    """Everything that is added to the base."""

    def __init__(self, config: RecurTraceConfig):
        super().__init__()
        self.config = config
        memories = config.loop_num_layers if config.loop_memory else 0
        self.memory = nn.ModuleList(LoopMemoryAttention(config) for _ in range(memories))
        self.injection = InputInjection(config)
        hidden_size = config.get_text_config().hidden_size
        self.halting = HaltingHead(hidden_size)
        self.heads = nn.ModuleDict({name: HaltingHead(hidden_size) for name in config.loop_halting_heads or {}})
        self._fused: FusedMemory | None = None

    def train(self, mode: bool = True) -> Self:
        self._fused = None
        return super().train(mode)

    def head(self, name: str | None) -> HaltingHead:
        """The model's own halting head, or a named one."""
        return self.halting if name is None else self.heads[name]  # type: ignore[return-value]

    def reshape_scalars(self, *shape: int) -> None:
        """γ and α have no dimension, which sharded training (DeepSpeed, FSDP) refuses; files hold them without one."""
        for module, name in [(self.injection, "alpha"), *((memory, "scale") for memory in self.memory)]:
            scalar = getattr(module, name)
            setattr(module, name, nn.Parameter(scalar.data.reshape(shape), requires_grad=scalar.requires_grad))

    def forward(self, t: int, state: LoopState, layer: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Loop t over the block (Eq. 1–3); `layer(index, h)` is the base's own layer, given what it needs besides."""
        h = state.h
        if t == 2:
            state.anchor = self.injection.anchor(state.anchor)
            state.fused = self._fused_memory(h)
        if t > 1:
            h = self.injection(h, state.anchor)
        said = None
        if state.fused is not None:
            said, state.windows[0] = state.fused(state.outputs, state.windows[0])
        for j, index in enumerate(self.config.block):
            if said is not None:
                h = torch.addcmul(h, *said[j])
            elif t > 1 and self.config.loop_memory:
                h, state.windows[j] = self.memory[j](h, state.outputs[j], state.windows[j])
            h = layer(index, h)
            state.outputs[j] = h
        state.h = h
        return h

    def _fused_memory(self, h: Tensor) -> FusedMemory | None:
        """The memories in one where that is right for a state like `h`: made once, and again after their weights have
        changed."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._fused = None  # trained without `train()`, by an optimizer that may hide its changes
        if self.training or not self.memory or not can_fuse(self.memory, h):
            return None
        if self._fused is None or self._fused.stamp != stamp(self.memory):
            self._fused = FusedMemory(self.memory)
        return self._fused
