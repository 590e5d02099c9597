"""The active sequences of a batch: what they carry from layer to layer and from loop to loop.

Shapes: b active rows · s positions · d hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.masking_utils import create_masks_for_generate, find_packed_sequence_indices

from recurtrace.errors import RecurTraceError
from recurtrace.model.fused_memory import FusedMemory
from recurtrace.model.loop_memory import Window


@dataclass(frozen=True)
class LayerInputs:
    """What a decoder layer is given beside the hidden state, for the sequences that are active."""

    masks: Any  # one for each layer type, or one for all layers
    layer_types: list[str]  # of every layer, where the base has several
    position_ids: Tensor  # [b or 1, s]
    position_embeddings: tuple[Tensor, ...]  # [b or 1, s, head width] each
    shared: dict[str, Any]

    @classmethod
    def made(
        cls,
        base: PreTrainedConfig,
        rotary: nn.Module,
        h: Tensor,
        attention_mask: Tensor | dict[str, Tensor] | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        shared: dict[str, Any],
    ) -> "LayerInputs":
        """Positions and masks, as the base makes them.

        Masks are made before a fresh cache is, since transformers looks for packed samples only without one.
        """
        given = position_ids  # our own never restart, so nobody need look whether they do
        if position_ids is None:
            past = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(h.shape[1], device=h.device).unsqueeze(0) + past
        flash = "flash" in str(base._attn_implementation) and attention_mask is None and len(h) > 1
        if flash and _restarts(given):
            raise RecurTraceError(
                "flash attention keeps packed samples apart only in a batch of one row; concatenate the rows."
            )
        masks = attention_mask
        if not isinstance(attention_mask, dict):
            masks = create_masks_for_generate(base, h, attention_mask, cache, given)
        return cls(
            masks=masks,
            layer_types=getattr(base, "layer_types", []),
            position_ids=position_ids,
            position_embeddings=rotary(h, position_ids=position_ids),
            shared=shared,
        )

    def refuse_packed(self, attention_mask: Tensor | None, position_ids: Tensor | None) -> None:
        """Where a depth is chosen for each row."""
        if (attention_mask is None and _restarts(position_ids)) or "cu_seq_lens_q" in self.shared:
            raise RecurTraceError("adaptive depth is chosen for a row, so a row cannot hold several packed samples.")

    def of(self, layer: int) -> dict[str, Any]:
        mask = self.masks[self.layer_types[layer]] if isinstance(self.masks, dict) else self.masks
        positions = {"position_ids": self.position_ids, "position_embeddings": self.position_embeddings}
        return {"attention_mask": mask, **positions, **self.shared}

    def keep(self, rows: Tensor) -> "LayerInputs":
        masks = self.masks
        return replace(
            self,
            masks={kind: _keep(mask, rows) for kind, mask in masks.items()}
            if isinstance(masks, dict)
            else _keep(masks, rows),
            position_ids=_keep(self.position_ids, rows),
            position_embeddings=tuple(_keep(part, rows) for part in self.position_embeddings),
        )


class RowIndices:
    """Numbers of rows as tensors on the device, each made once: decoding asks for the same ones in every step."""

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}

    def __call__(self, rows: Sequence[int], like: Tensor) -> Tensor:
        key = (tuple(rows), like.device)
        if key not in self._made:
            with torch.inference_mode(False):  # a later forward may be one with gradients
                self._made[key] = torch.tensor(rows, device=like.device)
        return self._made[key]


@dataclass
class LoopState:
    """What one loop hands to the next, for the sequences that are active."""

    h: Tensor  # [b, s, d]
    anchor: Tensor  # [b, s, d] the block's input; normed once a second loop asks for it
    outputs: list[Tensor]  # per looped layer: its output of the loop before, [b, s, d]
    windows: list[Window]  # per looped layer: its memory; the first holds that of all where it is fused
    inputs: Any  # what the layers are given beside it: LayerInputs here, another in serving; has `keep`
    indices: RowIndices
    rows: list[int] | None = None  # which sequences of the batch; None: all
    fused: FusedMemory | None = None  # from the second loop on, where the memories of all layers are asked at once

    @classmethod
    def before(cls, e: Tensor, layers: int, inputs: Any, indices: RowIndices | None = None) -> "LoopState":
        """The first loop's, from the encoder's output."""
        return cls(e, e, [e] * layers, [()] * layers, inputs, indices or RowIndices())

    def split(self, stay: list[bool]) -> tuple[list[int], Tensor]:
        """Drop the sequences that do not stay; returns them with their block output."""
        rows = self.rows if self.rows is not None else list(range(len(stay)))
        leaving = self.indices([i for i, stays in enumerate(stay) if not stays], self.h)
        staying = self.indices([i for i, stays in enumerate(stay) if stays], self.h)
        left = [row for row, stays in zip(rows, stay, strict=True) if not stays], self.h.index_select(0, leaving)
        self.rows = [row for row, stays in zip(rows, stay, strict=True) if stays]
        self.keep(staying)
        return left

    def keep(self, staying: Tensor) -> None:
        """Go on with these places along the first dimension."""
        self.h, self.anchor = self.h.index_select(0, staying), self.anchor.index_select(0, staying)
        self.outputs = [output.index_select(0, staying) for output in self.outputs]
        self.windows = [tuple(past.keep(staying) for past in window) for window in self.windows]
        self.inputs = self.inputs.keep(staying)


def _restarts(position_ids: Tensor | None) -> bool:
    """Whether a row holds several packed samples."""
    return position_ids is not None and find_packed_sequence_indices(position_ids) is not None


def _keep(part: Any, rows: Tensor) -> Any:
    """Rows of a mask or of positions; one that stands for all rows (or is not there) stays."""
    if part is None or (isinstance(part, Tensor) and part.shape[0] == 1):
        return part
    if not isinstance(part, Tensor):
        raise RecurTraceError(
            "sequences of different depth need attention_implementation sdpa, eager or flash attention; "
            "flex attention runs at one fixed depth."
        )
    return part.index_select(0, rows)
