"""The key/value cache of a looped model: one slot for each (looped layer, loop).

The first L slots are the base's own; loop 1 writes there. Loop t ≥ 2 of the j-th looped layer has slot
L + (t-2)·k + j, made when a loop first runs. A slot holds rows only for the sequences that reached its loop: the sets
are nested, so row order is batch order among the sequences with `depth >= t`.

Loop memory needs nothing here: it reads only its own position, and is made anew with each token.

Slots grow by a few tokens at a time: a step then writes its token where a `DynamicCache` would copy every key and value
of every slot, which a looped model has more of.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.loop_state import RowIndices


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` whose keys and values lie in buffers with room for the tokens to come."""

    room = 32  # tokens

    def __init__(self) -> None:
        super().__init__()
        self.keys: Any
        self.values: Any
        self._buffers: dict[str, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # The prompt is kept as it comes; for gradients and in a compiled graph nothing is written in place.
        if self.get_seq_length() == 0 or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys = self._append("keys", self.keys, key_states)
        self.values = self._append("values", self.values, value_states)
        return self.keys, self.values

    def _append(self, name: str, held: Tensor, new: Tensor) -> Tensor:
        """`held` and `new` along the tokens, in place if there is room behind `held`."""
        length = held.shape[-2] + new.shape[-2]
        buffer = self._buffers.get(name)
        if buffer is None or length > buffer.shape[-2] or not self._is_front(held, buffer):
            buffer = held.new_empty(*held.shape[:-2], length + self.room, held.shape[-1])
            buffer[..., : held.shape[-2], :] = held
            self._buffers[name] = buffer
        buffer[..., held.shape[-2] : length, :] = new
        return buffer[..., :length, :]

    @staticmethod
    def _is_front(held: Tensor, buffer: Tensor) -> bool:
        """`held` lies in `buffer` still (cropping leaves it there, reordering does not), and it may be written to."""
        writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
        return writable and held.data_ptr() == buffer.data_ptr()

    def reset(self) -> None:
        self._buffers.clear()
        super().reset()


class RecurTraceCache(DynamicCache):
    """A `DynamicCache` that knows the depth of each sequence, which is chosen once and kept."""

    def __init__(self, config: RecurTraceConfig):
        self._base_config = config.get_text_config()
        super().__init__(config=self._base_config)
        self.layers = self._fresh_slots()
        self._block = config.block
        self._base_slots = len(self.layers)
        self._records_past = False
        self.depths: list[int] | None = None
        """Loops each sequence runs; None until the first forward has decided."""
        self.indices = RowIndices()

    def at_loop(self, t: int, rows: list[int] | None = None) -> "RecurTraceCache | LoopSlots":
        """The cache as the looped layers of the active rows (None: all) must see it in loop `t`."""
        if t == 1:
            return self
        start = self._base_slots + (t - 2) * len(self._block)
        if len(self.layers) <= start:
            self.layers.extend(self._fresh_slots()[self._block.start : self._block.stop])
            if self._records_past:
                super().activate_past_recording()
        return LoopSlots(self.layers[start : start + len(self._block)], self._block.start)

    def fork(self, depth: int) -> "RecurTraceCache":
        """What a run of `depth` loops has in common with this deeper one: all but the decoder's keys and values."""
        fork = copy.copy(self)
        fork.layers = [_fork(layer) for layer in self.layers[: self._base_slots + (depth - 1) * len(self._block)]]
        fork.depths = [depth] * self.layers[0].keys.shape[0]
        return fork

    def scratch(self) -> DynamicCache:
        """The base's slots as they are, to try a token on: nothing that is written there is kept."""
        scratch = DynamicCache()
        scratch.layers = [_fork(layer) for layer in self.layers[: self._base_slots]]
        return scratch

    def _fresh_slots(self) -> list[CacheLayerMixin]:
        """One for each layer of the base, of the kind the base has there (sliding windows are bounded already)."""
        kinds = DynamicCache(config=self._base_config).layers
        return [GrowingLayer() if type(kind) is DynamicLayer else kind for kind in kinds]

    @property
    def batch_size(self) -> int:
        return len(self.depths) if self.depths is not None else -1

    def activate_past_recording(self) -> None:
        """Slots made later record their past too."""
        self._records_past = True
        super().activate_past_recording()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.depths is not None:
            self.batch_select_indices(torch.arange(len(self.depths)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep, repeat or reorder sequences; each slot follows with the rows it has of them."""
        if self.depths is None:
            return
        if indices.dtype == torch.bool:
            indices = indices.nonzero().squeeze(-1)
        if len(set(self.depths)) == 1:  # every slot has every row, so the device need not be asked for the indices
            self.depths = self.depths[:1] * len(indices)
            for layer in self.layers:
                layer.reorder_cache(indices)
            return
        chosen = torch.arange(len(self.depths))[indices.cpu()].tolist()
        for slot, layer in enumerate(self.layers):
            t = 1 if slot < self._base_slots else 2 + (slot - self._base_slots) // len(self._block)
            place = {row: i for i, row in enumerate(r for r, depth in enumerate(self.depths) if depth >= t)}
            layer.reorder_cache(torch.tensor([place[row] for row in chosen if row in place], dtype=torch.long))
        self.depths = [self.depths[row] for row in chosen]
        deepest = max(self.depths, default=1)
        del self.layers[self._base_slots + (deepest - 1) * len(self._block) :]

    def reset(self) -> None:
        del self.layers[self._base_slots :]
        self.depths = None
        super().reset()


class StaticRecurTraceCache(RecurTraceCache):
    """Slots of a fixed length, so that a decoding step can be compiled: `generate(cache_implementation="static")`.

    They are made with the prompt, like the others: a compiled step finds as many as its depth needs.
    """

    def __init__(self, config: RecurTraceConfig, max_cache_len: int):
        self._max_cache_len = max_cache_len
        super().__init__(config)

    def _fresh_slots(self) -> list[Any]:
        return StaticCache(config=self._base_config, max_cache_len=self._max_cache_len).layers


def _fork(layer: CacheLayerMixin) -> CacheLayerMixin:
    """The same keys and values; what either is given from now on, the other does not see."""
    fork = copy.copy(layer)
    if isinstance(fork, GrowingLayer):
        fork._buffers = {}
    return fork


class LoopSlots:
    """Sends a looped layer's update to the slot of its loop; the layer itself knows only its own index.

    Which loop it is does not show, so that all loops can share a compiled graph.
    """

    def __init__(self, slots: list[Any], first: int):
        self.slots, self.first = slots, first

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.slots[layer_idx - self.first].update(keys, values, *args, **kwargs)
