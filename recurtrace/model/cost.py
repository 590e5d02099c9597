"""What depth costs, counted from the modules of the model a config describes (on the meta device, at any scale)."""

import torch
from torch import nn

from recurtrace.model.base import loading_told
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM
from recurtrace.model.parameters import count_parameters
from recurtrace.shape import Cost, Shape


def shape_of(config: RecurTraceConfig) -> Shape:
    base = config.get_text_config()
    dtype = config.dtype or base.dtype or torch.float32
    return Shape(
        base=config.base_model_name_or_path,
        family=base.model_type,
        hidden_size=base.hidden_size,
        first_looped=config.loop_start,
        memory_window=config.loop_memory_window if config.loop_memory else 0,
        halting_head=config.loop_halting_objective if config.loop_halting_trained else None,
        named_heads={name: head["objective"] for name, head in (config.loop_halting_heads or {}).items()},
        default_loops=config.default_loops,
        dtype=str(dtype).removeprefix("torch."),
        cost=cost_of(config),
    )


def cost_of(config: RecurTraceConfig) -> Cost:
    with loading_told(config.base_model_name_or_path or config.get_text_config().name_or_path), torch.device("meta"):
        model = RecurTraceForCausalLM(config)
    layer = model.model.layers[config.loop_start]
    attention = layer.self_attn
    return Cost(
        parameters=count_parameters(model),
        layers=len(model.model.layers),
        looped_layers=config.loop_num_layers,
        layer_macs=_linear_weights(layer),
        added_macs=_linear_weights(model.loop.memory),
        head_macs=_linear_weights(model.lm_head),
        attention_width=attention.q_proj.out_features,
        kv_values=attention.k_proj.out_features + attention.v_proj.out_features,
    )


def _linear_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))
