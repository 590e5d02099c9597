"""A depth for each token: an extension (not in the paper), for research.

    cache = PerTokenCache(model.config)
    model.generate(ids, loops="adaptive", past_key_values=cache)     # or a policy
    cache.token_depths                                               # the prompt's depth, then one for each new token

A token that stops at depth t leaves its keys and values of loop t in the slots of all deeper loops, as if it had gone
on without changing. So every slot holds every token of every sequence, and a later token may go as deep as it likes. A
slot is made when a loop is first reached: until then it would be a copy of the one before.
"""

from typing import Any

import torch
from torch import Tensor

from recurtrace.errors import RecurTraceError
from recurtrace.model.cache import RecurTraceCache


class PerTokenCache(RecurTraceCache):
    """A cache whose sequences are free to choose again with every forward."""

    def __init__(self, config: Any):
        self.token_depths: list[list[int]] = []
        """For each forward so far, the depth of each sequence."""
        super().__init__(config)
        if any(layer.is_sliding for layer in self.layers):
            raise RecurTraceError("a depth for each token needs full attention; this base has sliding windows.")

    @property  # type: ignore[override]
    def depths(self) -> None:
        """None: no depth is kept for the tokens to come."""
        return None

    @depths.setter
    def depths(self, chosen: list[int] | None) -> None:
        """Called when a forward has gone through its loops: slots deeper than these get the tokens as they stopped."""
        if chosen is None:
            return
        self.token_depths.append(chosen)
        for t in range(max(chosen) + 1, self._loops() + 1):
            for j in range(len(self._block)):
                before, slot = self._slot(t - 1, j), self._slot(t, j)
                new = before.get_seq_length() - slot.get_seq_length()
                slot.update(before.keys[..., -new:, :], before.values[..., -new:, :])

    def at_loop(self, t: int, rows: list[int] | None = None) -> Any:
        return self if t == 1 else _PerTokenSlots(self, t, rows)

    @property
    def batch_size(self) -> int:
        return len(self.token_depths[-1]) if self.token_depths else -1

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.token_depths:
            chosen = torch.arange(self.batch_size)[indices.cpu()].tolist()
            self.token_depths = [[depths[row] for row in chosen] for depths in self.token_depths]
            for layer in self.layers:
                layer.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.token_depths:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def reset(self) -> None:
        self.token_depths = []
        super().reset()

    def _loops(self) -> int:
        return 1 + (len(self.layers) - self._base_slots) // len(self._block)

    def _slot(self, t: int, j: int) -> Any:
        place = self._block.start + j if t == 1 else self._base_slots + (t - 2) * len(self._block) + j
        return self.layers[place]


class _PerTokenSlots:
    """Sends a looped layer's update to its loop, with the tokens of the sequences that have stopped filled in."""

    def __init__(self, cache: PerTokenCache, t: int, rows: list[int] | None):
        self.cache, self.t, self.rows = cache, t, rows

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cache, j, new = self.cache, layer_idx - self.cache._block.start, keys.shape[-2]
        before = cache._slot(self.t - 1, j)
        if self.t > cache._loops():
            cache.layers += cache._fresh_slots()[cache._block.start : cache._block.stop]
        slot = cache._slot(self.t, j)
        if slot.get_seq_length() == 0 and before.get_seq_length() > new:
            slot.update(before.keys[..., :-new, :], before.values[..., :-new, :])
        if self.rows is not None:
            stopped = [before.keys[..., -new:, :].clone(), before.values[..., -new:, :].clone()]
            for whole, part in zip(stopped, (keys, values), strict=True):
                whole[self.rows] = part
            keys, values = stopped
        keys, values = slot.update(keys, values)
        return (keys, values) if self.rows is None else (keys[self.rows], values[self.rows])
