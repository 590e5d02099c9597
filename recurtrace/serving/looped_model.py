"""The looped decoder on vLLM: the base as vLLM has it, its block repeated by RecurTrace's own loop modules.

Shapes: n tokens of all requests, one behind the other · d hidden size.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.utils import init_vllm_registered_model

from recurtrace.errors import RecurTraceError
from recurtrace.model.checkpoint import refuse_non_finite
from recurtrace.model.loop_modules import LoopModules
from recurtrace.model.loop_state import LoopState
from recurtrace.serving.checkpoint import base_of_adapter
from recurtrace.serving.depths import ServedDepths
from recurtrace.serving.forward_pass import ActiveTokens, ForwardPass
from recurtrace.serving.settings import ATTENTION_BACKENDS


class LoopedAttention(nn.Module):
    """A looped layer's attention: one of vLLM's, with keys and values of its own, for each loop."""

    def __init__(self, layer: nn.Module, prefixes: list[str], vllm_config: VllmConfig):
        super().__init__()
        first: Any = layer.attn
        further = [
            Attention(
                layer.num_heads,
                layer.head_dim,
                layer.scaling,
                num_kv_heads=layer.num_kv_heads,
                cache_config=vllm_config.cache_config,
                quant_config=vllm_config.quant_config,
                per_layer_sliding_window=first.sliding_window,
                prefix=prefix,
            )
            for prefix in prefixes
        ]
        self.loops = nn.ModuleList([first, *further])
        self.loop = 1  # the one that runs

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.loops[self.loop - 1](query, key, value)


@support_torch_compile(dynamic_arg_dims={"h": 0, "positions": 0})
class UniformPass(nn.Module):
    """A pass whose requests all run the same number of loops: nobody leaves, so it can be one graph."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", model: "LoopedModel", loops: int):
        super().__init__()
        self._model, self._loops = (model,), loops  # in a tuple: its parameters are not ours

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        model = self._model[0]
        e = model.encode(h, positions)
        state = LoopState.before(e, model.config.loop_num_layers, ActiveTokens(positions, positions))
        for t in range(1, self._loops + 1):
            model.loop_once(t, state)
        return model.decode(state.h, positions)


class LoopedModel(nn.Module):
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.served = ServedDepths.of(self.config)
        self.head_settings = self.config.head_settings(self.served.head) if self.served.adaptive else None
        base = init_vllm_registered_model(vllm_config, hf_config=self.config.get_text_config(), prefix=prefix)
        self.model, self.lm_head, self.logits_processor = base.model, base.lm_head, base.logits_processor
        self._load_base = base.load_weights
        self.loop = LoopModules(self.config)
        if adapter_base := base_of_adapter(
            vllm_config.model_config.model,
            self.config,
            revision=vllm_config.model_config.revision,
            cache_dir=vllm_config.load_config.download_dir,
        ):
            self.secondary_weights = [DefaultModelLoader.Source(*adapter_base, fall_back_to_pt=False)]

        self._attentions = self._attention_for_each_loop(vllm_config)
        every: list[Any] = [part for attention in self._attentions for part in attention.loops]
        self._attention_names = [attention.layer_name for attention in every]
        self._vllm_config, self._builder = vllm_config, None
        self._uniform = UniformPass(
            vllm_config=vllm_config, model=self, loops=self.served.default or self.served.maximum
        )
        backend = every[0].get_attn_backend().get_name()
        if backend not in ATTENTION_BACKENDS:
            raise RecurTraceError(
                f"requests of different depth need vLLM's attention backend {' or '.join(ATTENTION_BACKENDS)}, "
                f"not {backend}; pass --attention-backend."
            )

    def _attention_for_each_loop(self, vllm_config: VllmConfig) -> list[LoopedAttention]:
        made = []
        layers, k = self.config.get_text_config().num_hidden_layers, self.config.loop_num_layers
        for j, index in enumerate(self.config.block):
            layer = self.model.layers[index].self_attn
            name = layer.attn.layer_name
            # vLLM finds a layer's K/V by the one number in its name: those of later loops come behind the base's.
            numbers = [layers + (t - 2) * k + j for t in range(2, self.served.maximum + 1)]
            prefixes = [name.replace(f"layers.{index}.", f"layers.{number}.") for number in numbers]
            layer.attn = LoopedAttention(layer, prefixes, vllm_config)
            made.append(layer.attn)
        return made

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_input_ids(input_ids)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return self.logits_processor(self.lm_head, hidden_states)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        h = self.model.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        context = get_forward_context()
        connector = get_kv_transfer_group() if has_kv_transfer_group() else None  # none yet: memory is measured
        if context.attn_metadata is None or connector is None:
            return self._uniform(h, positions)
        if self.served.default is not None and connector.all_at(self.served.default):
            connector.report_all_at(self.served.default)
            return self._uniform(h, positions)
        requests = ForwardPass(context, self._attention_names, self._metadata_builder(h.device), connector)
        return self.decode(self._think(requests, self.encode(h, positions), positions), positions)

    def encode(self, h: Tensor, positions: Tensor) -> Tensor:
        return _summed(self._run_layers(range(self.config.block.start), h, positions))

    def decode(self, h: Tensor, positions: Tensor) -> Tensor:
        h, residual = self._run_layers(range(self.config.block.stop, len(self.model.layers)), h, positions)
        return self.model.norm(h) if residual is None else self.model.norm(h, residual)[0]

    def _run_layers(self, indices: range, h: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        residual = None
        for index in indices:
            h, residual = self.model.layers[index](positions, h, residual)
        return h, residual

    def _think(self, requests: ForwardPass, e: Tensor, positions: Tensor) -> Tensor:
        """Repeat the block until every request has had its loops (Algorithm 1, lines 2–10)."""
        n = requests.tokens  # vLLM may pad behind the last one
        tokens = ActiveTokens(positions[:n], torch.arange(n, device=e.device))
        state = LoopState.before(e[:n], self.config.loop_num_layers, tokens)
        result = torch.zeros_like(e)
        for t in count(1):
            with requests.attention():
                h = self.loop_once(t, state)
            stay = requests.after_loop(t, h, self.loop.head(self.served.head), self.head_settings)
            if all(stay):
                continue
            result.index_copy_(0, state.inputs.places, h)
            if not any(stay):
                break
            state.keep(requests.keep(stay, state.inputs))
        requests.report()
        return result

    def loop_once(self, t: int, state: LoopState) -> Tensor:
        for attention in self._attentions:
            attention.loop = t

        def layer(index: int, h: Tensor) -> Tensor:
            # A copy: vLLM's fused norms write into the residual they are given, and the memory reads `h` again.
            return _summed(self.model.layers[index](state.inputs.positions, h.clone(), None))

        return self.loop(t, state, layer)

    def _metadata_builder(self, device: torch.device) -> Any:
        if self._builder is None:
            attention: Any = self._attentions[0].loops[0]
            made = attention.get_attn_backend().get_builder_cls()
            spec = attention.get_kv_cache_spec(self._vllm_config)
            self._builder = made(spec, [attention.layer_name], self._vllm_config, device)
        return self._builder

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """The base's by its own loader; the loop's as they are, since their names would be taken for the base's."""
        own = dict(self.loop.named_parameters(prefix="loop"))
        loaded: set[str] = set()

        def base_weights() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                if not name.startswith("loop."):
                    yield name, tensor
                    continue
                if name not in own or own[name].shape != tensor.shape:
                    raise RecurTraceError(
                        f"{name} {list(tensor.shape)} is not of the model that config.json describes."
                    )
                refuse_non_finite(name, tensor, "the checkpoint")
                with torch.no_grad():  # not by `data`: a change must be seen, also in a server that runs
                    own[name].copy_(tensor)
                loaded.add(name)

        loaded |= self._load_base(base_weights())
        if missing := sorted(own.keys() - loaded):
            raise RecurTraceError(f"the checkpoint lacks {missing[0]}; it is not the one its config.json describes.")
        return loaded


def _summed(out: tuple[Tensor, Tensor | None]) -> Tensor:
    """vLLM's layers leave the residual to be added by the next."""
    h, residual = out
    return h if residual is None else h + residual
