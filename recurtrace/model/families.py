"""Which bases can be looped, and where."""

from transformers import PreTrainedConfig

from recurtrace.errors import RecurTraceError

# Decoders of the Llama shape (embed_tokens, layers, norm, rotary_emb), by transformers' model_type.
FAMILIES = {
    "qwen3": "Qwen3",
    "qwen2": "Qwen2",
    "llama": "Llama and SmolLM",
    "mistral": "Mistral",
    "olmo2": "OLMo2",
}

# The paper's blocks of three layers, by (layers, hidden size) of the Qwen3 base; first layer, 0-based.
QWEN3_BLOCKS = {(28, 1024): 12, (28, 2048): 12, (36, 2560): 15, (36, 4096): 15}
PRESET_NUM_LAYERS = 3


def check_family(base_config: PreTrainedConfig) -> None:
    if base_config.model_type not in FAMILIES:
        supported = ", ".join(FAMILIES.values())
        raise RecurTraceError(
            f"models of type {base_config.model_type!r} cannot be looped yet; supported are {supported}."
        )


def choose_block(
    base_config: PreTrainedConfig, loop_start: int | None = None, loop_num_layers: int = PRESET_NUM_LAYERS
) -> int:
    """The first looped layer: the one asked for, or the paper's for its four Qwen3 scales."""
    if loop_start is not None:
        return loop_start
    layers, hidden = base_config.num_hidden_layers, base_config.hidden_size
    known = QWEN3_BLOCKS.get((layers, hidden)) if base_config.model_type == "qwen3" else None
    if known is None or loop_num_layers != PRESET_NUM_LAYERS:
        raise RecurTraceError(
            f"no block is known for a {layers}-layer {base_config.model_type} of width {hidden} with "
            f"{loop_num_layers} looped layers; pass loop_start (--loop-start), the first looped layer, "
            "or let `recurtrace probe` find it and pass --probe."
        )
    return known
