"""One forward pass: whose tokens are whose, and who goes on to the next loop.

Shapes: n tokens of the active requests, request by request · d hidden size.
"""

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_world_size, get_tp_group
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.halting import HaltingHead
from recurtrace.serving.connector import DepthConnector


@dataclass(frozen=True)
class ActiveTokens:
    """What a layer is given beside the hidden state, for the tokens that are active."""

    positions: Tensor  # [n]
    places: Tensor  # [n] where they stand in the whole batch

    def keep(self, tokens: Tensor) -> "ActiveTokens":
        return ActiveTokens(self.positions.index_select(0, tokens), self.places.index_select(0, tokens))


class ForwardPass:
    """The requests of one forward pass. A request that has had its loops leaves; the others are gathered, and
    attention is told of them alone."""

    def __init__(self, context: ForwardContext, layers: Sequence[str], builder: Any, connector: DepthConnector):
        self._context, self._layers, self._builder, self._connector = context, layers, builder, connector
        self._metadata = context.attn_metadata[layers[0]]
        self._slots = context.slot_mapping[layers[0]]
        starts = self._metadata.query_start_loc.tolist()
        self._blocks = self._metadata.block_table[:, 0].tolist()
        self._lengths = [stop - start for start, stop in itertools.pairwise(starts)]
        self.rows = [row for row, length in enumerate(self._lengths) if length]
        self.tokens = starts[-1]
        self._depth = {row: connector.depth_of(self._blocks[row]) for row in self.rows}
        self._undecided = [row for row in self.rows if self._depth[row] is None]
        self._token_loops = 0
        self._active: ForwardContext | None = None  # None: all of them, as vLLM has it

    def attention(self) -> AbstractContextManager:
        """What the layers attend with."""
        return nullcontext() if self._active is None else override_forward_context(self._active)

    def after_loop(self, t: int, h: Tensor, head: HaltingHead, settings: HeadSettings | None) -> list[bool]:
        """Which of the active requests run another loop, with block output `h` [n, d] of loop `t` (Algorithm 1)."""
        served = self._connector.served
        self._token_loops += len(h)
        undecided = [row for row in self.rows if self._depth[row] is None]
        if undecided:
            rule = served.rule(settings)
            probs = self._continue_probs(h, undecided, head, settings.pooling) if settings and rule.asks(t) else None
            halts = torch.as_tensor(rule.halts(t, probs)).expand(len(undecided)).tolist()
            self._depth |= {row: t for row, halt in zip(undecided, halts, strict=True) if halt}
        return [(depth := self._depth[row]) is None or depth > t for row in self.rows]

    def _continue_probs(self, h: Tensor, rows: list[int], head: HaltingHead, pooling: str) -> Tensor:
        probs = head(self._pooled(h, rows, pooling))
        if get_tensor_model_parallel_world_size() > 1:  # one rank's word, should their sums differ in a bit
            probs = get_tp_group().broadcast(probs.contiguous(), src=0)
        return probs

    def _pooled(self, h: Tensor, rows: list[int], pooling: str) -> Tensor:
        """[requests, d] what the head reads of prompts, which came whole."""
        parts = dict(zip(self.rows, h.split([self._lengths[row] for row in self.rows]), strict=True))
        if pooling == "prompt_last":
            return torch.stack([parts[row][-1].float() for row in rows])
        return torch.stack([parts[row].sum(dim=0, dtype=torch.float32) / len(parts[row]) for row in rows])

    def keep(self, stay: list[bool], tokens: ActiveTokens) -> Tensor:
        """Go on with the requests that stay; returns their tokens' places among the active ones."""
        lengths = torch.tensor([self._lengths[row] for row in self.rows])
        staying = torch.tensor(stay).repeat_interleave(lengths).nonzero().squeeze(1).to(tokens.places.device)
        self.rows = [row for row, stays in zip(self.rows, stay, strict=True) if stays]
        self._active = self._context_of(tokens.places.index_select(0, staying))
        return staying

    def _context_of(self, places: Tensor) -> ForwardContext:
        device = places.device
        rows = torch.tensor(self.rows, device=device)
        lengths = torch.tensor([self._lengths[row] for row in self.rows], dtype=torch.int32)
        starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        seq_lens = self._metadata.seq_lens[rows].contiguous()
        slots = self._slots[places].contiguous()
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            seq_lens_cpu_upper_bound=seq_lens.cpu(),
            num_reqs=len(rows),
            num_actual_tokens=len(places),
            max_query_len=int(lengths.max()),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=self._metadata.block_table[rows].contiguous(),
            slot_mapping=slots,
            causal=True,
        )
        metadata = self._builder.build(0, common)
        return replace(
            self._context,
            attn_metadata=dict.fromkeys(self._layers, metadata),
            slot_mapping=dict.fromkeys(self._layers, slots),
        )

    def report(self) -> None:
        decided = {self._blocks[row]: depth for row in self._undecided if (depth := self._depth[row]) is not None}
        self._connector.report(decided, self.tokens, self._token_loops)
