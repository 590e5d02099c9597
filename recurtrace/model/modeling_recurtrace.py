"""The looped decoder (Eq. 1–3, Algorithm 1) around an untouched Hugging Face base.

Shapes: b rows · s positions · d hidden size · k looped layers.

`model` and `lm_head` are the base's own modules under its own names; `loop` holds everything that is added. A
sequence that has halted leaves the batch: later loops compute, and cache, the others only.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils.generic import can_return_tuple

from recurtrace.errors import RecurTraceError
from recurtrace.halting.rule import StoppingRule
from recurtrace.model.cache import RecurTraceCache, StaticRecurTraceCache
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.depth import (
    DepthRule,
    FixedDepth,
    HeadHalting,
    Loops,
    Policy,
    Prompt,
    VisitedDepths,
    check_limit,
    check_loops,
    check_request,
    depth_rule,
    kept_depths,
    refuse_depth_like,
)
from recurtrace.model.halting import HaltingHead, at_last_position, prompt_positions, refuse_promptless
from recurtrace.model.labelled_loss import labelled_loss
from recurtrace.model.loop_memory import InputInjection, LoopMemoryAttention
from recurtrace.model.loop_modules import LoopModules
from recurtrace.model.loop_state import LayerInputs, LoopState, RowIndices
from recurtrace.model.pretrained import PretrainedMixin


@dataclass
class RecurTraceOutput(CausalLMOutputWithPast):
    """The usual causal-LM output, and the depth each sequence was given."""

    depths: Tensor | None = None
    """[b] loops run."""
    continue_probs: Tensor | None = None
    """[b, loops run] p_t, where the head ran; NaN where a sequence had halted already."""


class RecurTraceForCausalLM(PretrainedMixin, PreTrainedModel, GenerationMixin):
    """A causal LM whose block of middle layers repeats, reads its own past loops, and stops when it has enough."""

    config: RecurTraceConfig
    config_class = RecurTraceConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _skip_keys_device_placement = ["past_key_values"]

    def __init__(self, config: RecurTraceConfig, base: PreTrainedModel | None = None):
        super().__init__(config)
        if base is None:
            base = MODEL_FOR_CAUSAL_LM_MAPPING[type(config.get_text_config())](config.get_text_config())
        else:
            for module in base.modules():
                module._is_hf_initialized = True  # its weights stay as they are
        self.model = base.model
        self.lm_head = base.lm_head
        self.loop = LoopModules(config)
        self._base_vocabulary = self.model.embed_tokens.weight.shape[0]
        self.post_init()
        self.freeze_base()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LoopMemoryAttention | InputInjection | HaltingHead):
            module.reset_parameters()

    def loop_modules(self) -> list[nn.Module]:
        """The modules that are added to the base."""
        return [self.loop]

    def freeze_base(self) -> None:
        """Leave gradients to the modules that are added, and among them to those the config does not freeze."""
        self.requires_grad_(False)
        for module in self.loop_modules():
            module.requires_grad_(True)
        for memory in self.loop.memory:
            memory.slope.requires_grad_(not self.config.loop_slope_frozen)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: RecurTraceCache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool = True,
        output_hidden_states: bool | None = None,
        loops: Loops = None,
        head: str | None = None,
        min_depth: int | None = None,
        max_depth: int | None = None,
        threshold: float | None = None,
        prompt_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> RecurTraceOutput:
        """The base's forward, with the block run `loops` times.

        One loop is the frozen base alone, so its loss has a gradient of zero.

        Args:
            return_logits: False leaves `logits` None; with `labels` the LM head then runs at labelled positions only,
                in chunks of bounded size, and the loss is the same up to the order of its sums. Training does so.
            loops: depth of every sequence, one depth for each, "adaptive", or a `Policy`; None is the model's default.
                With a cache that holds tokens already, the depth chosen with its first tokens stands.
            head: name of the halting head that decides an adaptive depth; None is the model's own.
            min_depth, max_depth, threshold: the adaptive rule's T_min, T_max and τ; None is the head's value.
            prompt_mask: [b, ≤ s] the positions the halting head may read; by default all that are not padding, and
                with `labels` only those before the first label, so that the head never sees the answer.
        """
        refuse_depth_like(kwargs)
        if kwargs.pop("output_attentions", None):
            raise RecurTraceError("output_attentions is not available for looped models; leave it out.")
        if (input_ids is None) == (inputs_embeds is None):
            raise RecurTraceError("pass exactly one of input_ids and inputs_embeds.")
        h = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if h.shape[1] == 0:
            raise RecurTraceError("the prompt is empty; give at least one token.")

        inputs = self._layer_inputs(h, attention_mask, position_ids, past_key_values, kwargs)
        cache = self._cache(past_key_values, use_cache)
        bounds = {"min_depth": min_depth, "max_depth": max_depth, "threshold": threshold}
        rule = self._depth_rule(
            loops, head, bounds, cache, h, inputs, attention_mask, position_ids, prompt_mask, labels
        )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        trace = [h] if output_hidden_states else None

        h = self._encode(h, inputs, cache, trace)
        h, depths = self._think(h, inputs, cache, rule, trace)
        h = self.model.norm(self._decode(h, inputs, cache, trace))
        if trace is not None:
            trace[-1] = h  # as in the base: the last state is the normed one

        logits = loss = None
        if return_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(h[:, kept, :])
        if labels is not None:
            if logits is not None:
                vocab_size = self.config.get_text_config().vocab_size
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)
            else:
                divided = {name: kwargs.get(name) for name in ("num_items_in_batch", "shift_labels")}
                loss = labelled_loss(self.lm_head, h, labels, **divided)
            alone = isinstance(rule, FixedDepth) and rule.loops == 1  # nothing of the loop had a part in it
            if self.training and torch.is_grad_enabled() and (alone or not loss.requires_grad):
                loss = loss + self._zero()
        return RecurTraceOutput(
            loss=loss,
            logits=logits,
            past_key_values=cache,
            hidden_states=tuple(trace) if trace is not None else None,
            depths=depths,
            continue_probs=rule.continue_probs if isinstance(rule, HeadHalting) else None,
        )

    def _zero(self) -> Tensor:
        """Zero, with a gradient of zero for everything that is trained: data parallelism waits for each of them."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return sum((0.0 * parameter.float().sum() for parameter in trained), torch.zeros((), device=self.device))

    def _think(
        self,
        e: Tensor,
        inputs: LayerInputs,
        cache: RecurTraceCache | None,
        rule: DepthRule,
        trace: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Repeat the block until the rule has let every sequence go (Algorithm 1, lines 2–10)."""
        k = self.config.loop_num_layers
        indices = cache.indices if cache is not None else RowIndices()
        state = LoopState.before(e, k, inputs, indices)
        gone: list[tuple[list[int], Tensor, int]] = []  # sequences that have halted, their output, their depth
        for t in range(1, self.config.depth_limit + 1):
            slots = cache.at_loop(t, state.rows) if cache is not None else None

            def layer(index: int, h: Tensor, slots: Any = slots) -> Tensor:
                h = self.model.layers[index](h, past_key_values=slots, **state.inputs.of(index))
                if trace is not None:  # a halted sequence keeps the state of its last loop
                    trace.append(h if state.rows is None else trace[-k].index_copy(0, indices(state.rows, h), h))
                return h

            h = self.loop(t, state, layer)
            stay = rule.continues(t, h, state.rows)
            if isinstance(stay, list):
                if any(stay) and not all(stay):
                    gone.append((*state.split(stay), t))
                stay = any(stay)
            if not stay:
                break
        else:
            raise RecurTraceError(
                f"the policy asks for more than the limit of {self.config.depth_limit} loops; give it a smaller "
                "max_depth, or set loop_depth_limit."
            )

        if state.rows is None:  # no sequence left before the others
            if cache is not None:
                cache.depths = [t] * len(e)
            return state.h, torch.full((len(e),), t, device=e.device)
        gone.append((state.rows, state.h, t))
        depth_of = {row: depth for rows, _, depth in gone for row in rows}
        ordered = [depth_of[row] for row in range(len(e))]
        if cache is not None:
            cache.depths = ordered
        place = {row: i for i, row in enumerate(row for rows, _, _ in gone for row in rows)}
        back = indices([place[row] for row in range(len(e))], e)
        return torch.cat([h for _, h, _ in gone]).index_select(0, back), indices(ordered, e).clone()

    @torch.no_grad()
    def unroll(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        loops: int,
        cache: RecurTraceCache,
        visit: Callable[[int, Tensor, Callable[[RecurTraceCache], Tensor]], bool],
    ) -> None:
        """Look at every depth in one pass: the encoder runs once, and each loop once.

        After loop t comes `visit(t, h, decode)` with the block's output; `decode(cache)` runs the decoder on it and
        gives the normed states, ready for `lm_head`, with its keys and values in a cache of the visitor's. A visit that
        returns False is the last.
        """
        check_limit(loops, self.config)
        h = self.model.embed_tokens(input_ids)
        inputs = self._layer_inputs(h, attention_mask, position_ids, None, {})

        def after_loop(t: int, h: Tensor) -> bool:
            return visit(t, h, lambda slots: self.model.norm(self._decode(h, inputs, slots)))

        self._think(self._encode(h, inputs, cache), inputs, cache, VisitedDepths(loops, after_loop))

    def _encode(
        self, h: Tensor, inputs: LayerInputs, cache: RecurTraceCache | None, trace: list[Tensor] | None = None
    ) -> Tensor:
        return self._run_layers(range(self.config.block.start), h, inputs, cache, trace)

    def _decode(
        self, h: Tensor, inputs: LayerInputs, cache: RecurTraceCache | None, trace: list[Tensor] | None = None
    ) -> Tensor:
        return self._run_layers(range(self.config.block.stop, len(self.model.layers)), h, inputs, cache, trace)

    def _run_layers(
        self,
        indices: range,
        h: Tensor,
        inputs: LayerInputs,
        cache: RecurTraceCache | None,
        trace: list[Tensor] | None,
    ) -> Tensor:
        for index in indices:
            h = self.model.layers[index](h, past_key_values=cache, **inputs.of(index))
            if trace is not None:
                trace.append(h)
        return h

    def _layer_inputs(self, h: Tensor, attention_mask: Any, position_ids: Any, cache: Any, shared: Any) -> LayerInputs:
        config, rotary = self.config.get_text_config(), self.model.rotary_emb
        return LayerInputs.made(config, rotary, h, attention_mask, position_ids, cache, shared)

    def _cache(self, given: RecurTraceCache | None, use_cache: bool | None) -> RecurTraceCache | None:
        if given is not None:
            if not isinstance(given, RecurTraceCache):
                raise RecurTraceError(
                    f"a looped model needs a cache with a slot for each loop, got {type(given).__name__}; "
                    "pass RecurTraceCache(model.config), or none."
                )
            return given
        use_cache = self.config.use_cache if use_cache is None else use_cache
        checkpointing = self.training and self.is_gradient_checkpointing
        return RecurTraceCache(self.config) if use_cache and not checkpointing else None

    def _depth_rule(
        self,
        loops: Loops,
        head: str | None,
        bounds: dict[str, Any],
        cache: RecurTraceCache | None,
        h: Tensor,
        inputs: LayerInputs,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        prompt_mask: Tensor | None,
        labels: Tensor | None,
    ) -> DepthRule:
        kept = cache.depths if cache is not None else None
        loops, bounds = check_request(kept if loops is None else loops, head, bounds, self.config, len(h))
        if kept is not None:
            return depth_rule(kept_depths(kept, loops, len(h)))
        if isinstance(loops, int | list):
            return depth_rule(loops if isinstance(loops, list) else [loops])
        inputs.refuse_packed(attention_mask, position_ids)
        if cache is not None and cache.get_seq_length():
            prompt_mask = None  # a new token is asked by itself
        mask = prompt_positions(h, attention_mask, prompt_mask, labels)
        if isinstance(loops, Policy):
            refuse_promptless(mask.any(dim=1).tolist())
            return loops.rule(Prompt(mask, partial(self._next_token_logits, inputs, mask, cache)))
        return HeadHalting(self.loop.head(head), self.config.head_settings(head).pooling, mask, StoppingRule(**bounds))

    def _next_token_logits(
        self, inputs: LayerInputs, mask: Tensor, cache: RecurTraceCache | None, h: Tensor, rows: list[int] | None
    ) -> Tensor:
        """[b, vocabulary] what would follow the prompt if the loop ended with `h`; the cache stays as it is."""
        slots = cache.scratch() if cache is not None and cache.get_seq_length() else None
        if rows is not None:
            active = torch.tensor(rows, device=h.device)
            inputs, mask = inputs.keep(active), mask[active]
            if slots is not None:
                slots.reorder_cache(active)
        return self.lm_head(self.model.norm(at_last_position(self._decode(h, inputs, slots), mask)))

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """The ordinary `generate`, with `loops`, `head`, `min_depth`, `max_depth` and `threshold` as in `forward`.

        Depth is decided once, from the prompt, and kept for every new token. The chosen depths are
        `generate(..., return_dict_in_generate=True).past_key_values.depths`.
        """
        refuse_depth_like(kwargs.keys() - inspect.signature(self.forward).parameters)
        prompt = next(
            (x for x in (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None), None
        )
        if prompt is None or prompt.shape[1] == 0:
            raise RecurTraceError("the prompt is empty; give at least one token.")
        given = args[0] if args else kwargs.get("generation_config")

        def setting(name: str) -> Any:  # as transformers resolves it: the call, the config given, the model's own
            values = (kwargs.get(name), getattr(given, name, None), getattr(self.generation_config, name, None))
            return next((value for value in values if value is not None), None)

        if kwargs.get("assistant_model") is not None:
            raise RecurTraceError(
                "an assistant model does not support loops; use prompt_lookup_num_tokens, or leave both out."
            )
        cache = kwargs.get("past_key_values")
        if kwargs.get("loops") is None and isinstance(cache, RecurTraceCache) and cache.depths is not None:
            kwargs["loops"] = cache.depths
        loops = check_loops(kwargs.get("loops"), self.config, len(prompt), kwargs.get("head"))
        decided_here = isinstance(loops, str | Policy)
        implementation = setting("cache_implementation")
        if implementation not in (None, "dynamic", "static"):
            raise RecurTraceError(f"cache_implementation={implementation!r} has no slots for loops; leave it out.")
        if implementation == "static" and (not isinstance(loops, int) or setting("prefill_chunk_size") is not None):
            raise RecurTraceError(
                'cache_implementation="static" needs one depth for all rows and the prompt in one piece; '
                "pass loops as a number and leave out prefill_chunk_size."
            )
        if decided_here and setting("prefill_chunk_size") is not None:
            raise RecurTraceError(
                "adaptive depth is decided from the whole prompt; leave out prefill_chunk_size or fix the depth."
            )
        kwargs["loops"] = torch.tensor(loops) if isinstance(loops, list) else loops  # tensors follow beams
        if decided_here and kwargs.get("prompt_mask") is None:
            mask = kwargs.get("attention_mask")
            kwargs["prompt_mask"] = mask if mask is not None else torch.ones(prompt.shape[:2], device=prompt.device)
        if cache is None and implementation != "static" and setting("use_cache") is not False:
            kwargs["past_key_values"] = RecurTraceCache(self.config)
        return super().generate(inputs, *args, **kwargs)

    def _prepare_static_cache(self, **asked: Any) -> StaticRecurTraceCache:
        """Called by `generate`, which keeps the length of an earlier call if it was larger: less is compiled again."""
        return StaticRecurTraceCache(self.config, super()._prepare_static_cache(**asked).get_max_length())
