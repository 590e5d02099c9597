"""Which bases can be looped, and where."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from recurtrace.errors import RecurTraceError

# Decoders of the Llama shape (embed_tokens, layers, norm, rotary_emb), by transformers' model_type.
FAMILIES = {
    "qwen3": "Qwen3",
    "qwen2": "Qwen2",
    "llama": "Llama and SmolLM",
    "mistral": "Mistral",
    "olmo2": "OLMo2",
}

PRESET_NUM_LAYERS = 3


@dataclass(frozen=True)
class Scale:
    """One of the paper's bases."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    tied: bool
    loop_start: int
    """First layer of the paper's block of three, 0-based."""

    def config(self, **fields: Any) -> Qwen3Config:
        """The base's config, with some fields changed."""
        own = {
            "vocab_size": 151936, "num_hidden_layers": self.layers, "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size, "num_attention_heads": self.heads, "num_key_value_heads": 8,
            "head_dim": 128, "tie_word_embeddings": self.tied,
        }  # fmt: skip
        return Qwen3Config(**{**own, **fields})


QWEN3 = {
    "0.6B": Scale(28, 1024, 3072, 16, tied=True, loop_start=12),
    "1.7B": Scale(28, 2048, 6144, 16, tied=True, loop_start=12),
    "4B": Scale(36, 2560, 9728, 32, tied=True, loop_start=15),
    "8B": Scale(36, 4096, 12288, 32, tied=False, loop_start=15),
}
_BLOCKS = {(scale.layers, scale.hidden_size): scale.loop_start for scale in QWEN3.values()}


def check_family(base_config: PreTrainedConfig) -> None:
    if base_config.model_type not in FAMILIES:
        supported = ", ".join(FAMILIES.values())
        raise RecurTraceError(
            f"models of type {base_config.model_type!r} cannot be looped yet; supported are {supported}."
        )
    if base_config.hidden_act not in ACT2FN:
        raise RecurTraceError(f"the base's hidden_act {base_config.hidden_act!r} is not known to this transformers.")
    rope = (base_config.rope_parameters or {}).get("rope_type", "default")
    if rope != "default" and rope not in ROPE_INIT_FUNCTIONS:
        raise RecurTraceError(f"the base's rope_type {rope!r} is not known to this transformers.")


HOW_TO_CHOOSE = (
    "pass loop_start (--loop-start), the first looped layer, or let `recurtrace probe` find it and pass --probe"
)


def choose_block(
    base_config: PreTrainedConfig,
    loop_start: int | None = None,
    loop_num_layers: int = PRESET_NUM_LAYERS,
    remedy: str = HOW_TO_CHOOSE,
) -> int:
    """The first looped layer: the one asked for, or the paper's for its four Qwen3 scales."""
    if loop_start is not None:
        return loop_start
    layers, hidden = base_config.num_hidden_layers, base_config.hidden_size
    known = _BLOCKS.get((layers, hidden)) if base_config.model_type == "qwen3" else None
    if known is None or loop_num_layers != PRESET_NUM_LAYERS:
        raise RecurTraceError(
            f"no block is known for a {layers}-layer {base_config.model_type} of width {hidden} with "
            f"{loop_num_layers} looped layers; {remedy}."
        )
    return known
