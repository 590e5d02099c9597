"""What depth costs, counted from the modules of the model a config describes (on the meta device, at any scale)."""

from dataclasses import dataclass

import torch
from torch import nn

from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM
from recurtrace.model.parameters import ParameterCount, count_parameters


@dataclass(frozen=True)
class Cost:
    """Unit costs of a looped model. Multiply-adds are per token."""

    parameters: ParameterCount
    layers: int
    looped_layers: int
    layer_macs: int
    """Weights that a token is multiplied with in one decoder layer."""
    added_macs: int
    """Weights that a token is multiplied with in the loop modules, in each loop after the first."""
    head_macs: int
    """Weights of the LM head."""
    attention_width: int
    """Query heads times head width: multiply-adds per attended position, for scores and again for values."""
    kv_values: int
    """Numbers that one layer caches for a token."""

    def layer_passes(self, loops: int) -> int:
        return self.layers + (loops - 1) * self.looped_layers

    def macs(self, loops: int, context: float, head_share: float = 1.0) -> float:
        """Multiply-adds of one token that attends to `context` positions.

        `head_share` is the part of the tokens whose logits are computed: 1 in decoding, 1/n in the prefill of n.
        """
        layer = self.layer_macs + 2 * self.attention_width * context
        return self.layer_passes(loops) * layer + (loops - 1) * self.added_macs + head_share * self.head_macs

    def decode_ratio(self, loops: int, context: int) -> float:
        """FLOPs of one new token after `context` others, against the base's."""
        return self.macs(loops, context + 1) / self.macs(1, context + 1)

    def prefill_ratio(self, loops: int, length: int) -> float:
        """FLOPs of reading a prompt up to its first next token, against the base's."""
        mean_context = (length + 1) / 2
        return self.macs(loops, mean_context, 1 / length) / self.macs(1, mean_context, 1 / length)

    def forward_ratio(self, loops: int, length: int) -> float:
        """FLOPs of a forward pass with logits at every position (as in training), against the base's."""
        mean_context = (length + 1) / 2
        return self.macs(loops, mean_context) / self.macs(1, mean_context)

    def kv_bytes(self, loops: int, bytes_per_value: int) -> int:
        """Key/value bytes cached for one token of a sequence at this depth."""
        return self.layer_passes(loops) * self.kv_values * bytes_per_value


def cost_of(config: RecurTraceConfig) -> Cost:
    with torch.device("meta"):
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
