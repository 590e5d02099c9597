"""Conversion: which bases can be looped, where, and how a base becomes a config and a model's two halves."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from recurtrace.errors import RecurTraceError
from recurtrace.model.checkpoint import WeightReader, fingerprint, weight_files

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

# What from_base and from_pretrained hand on to the loading of the base; everything else is a config field.
LOADING_OPTIONS = {
    "attn_implementation",
    "cache_dir",
    "device_map",
    "dtype",
    "force_download",
    "local_files_only",
    "max_memory",
    "offload_folder",
    "quantization_config",
    "revision",
    "token",
}
_HUB_OPTIONS = {"cache_dir", "force_download", "local_files_only", "revision", "token"}


def hub_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in _HUB_OPTIONS}


def check_family(base_config: PreTrainedConfig) -> None:
    if base_config.model_type not in FAMILIES:
        supported = ", ".join(FAMILIES.values())
        raise RecurTraceError(
            f"models of type {base_config.model_type!r} cannot be looped yet; supported are {supported}."
        )


def choose_block(base_config: PreTrainedConfig, loop_start: int | None, loop_num_layers: int) -> int:
    """The first looped layer: the one asked for, or the paper's for its four Qwen3 scales."""
    if loop_start is not None:
        return loop_start
    layers, hidden = base_config.num_hidden_layers, base_config.hidden_size
    known = QWEN3_BLOCKS.get((layers, hidden)) if base_config.model_type == "qwen3" else None
    if known is None or loop_num_layers != PRESET_NUM_LAYERS:
        raise RecurTraceError(
            f"no block is known for a {layers}-layer {base_config.model_type} of width {hidden} with "
            f"{loop_num_layers} looped layers; pass loop_start (--loop-start), the first looped layer, "
            "somewhere in the middle."
        )
    return known


def read_config(name_or_path: str, **hub: Any) -> PreTrainedConfig:
    """Config of a folder or hub model, with a sentence instead of a traceback if there is none."""
    if os.path.isdir(name_or_path) and not os.path.isfile(os.path.join(name_or_path, "config.json")):
        raise RecurTraceError(f"the folder {name_or_path!r} has no config.json, so it holds no model.")
    try:
        return AutoConfig.from_pretrained(name_or_path, **hub)
    except OSError as error:
        raise RecurTraceError(
            f"no model found at {name_or_path!r}: it is not a folder here, nor a hub id that can be reached."
        ) from error
    except RecurTraceError:
        raise
    except ValueError as error:
        raise RecurTraceError(f"the config.json of {name_or_path!r} cannot be used: {error}") from error


def read_base_config(name_or_path: str, **hub: Any) -> PreTrainedConfig:
    """Config of a base that can be looped."""
    base_config = read_config(name_or_path, **hub)
    if base_config.model_type == "recurtrace":
        raise RecurTraceError(f"{name_or_path!r} is a RecurTrace model already; load it with from_pretrained.")
    check_family(base_config)
    return base_config


def not_looped(name_or_path: str, config: PreTrainedConfig) -> RecurTraceError:
    return RecurTraceError(
        f"{name_or_path!r} is a {config.model_type} model without loops; convert it with "
        "RecurTraceForCausalLM.from_base or `recurtrace convert`."
    )


def load_base(name_or_path: str, **options: Any) -> PreTrainedModel:
    """The base as transformers loads it: safetensors only, no remote code, every weight present."""
    hub = hub_options(options)
    read_base_config(name_or_path, **hub)
    with WeightReader(weight_files(name_or_path, **hub)):
        pass  # a truncated file is told apart before gigabytes are read
    base, found = AutoModelForCausalLM.from_pretrained(
        name_or_path, use_safetensors=True, output_loading_info=True, **options
    )
    if found["missing_keys"]:
        raise RecurTraceError(
            f"the weights at {name_or_path!r} lack {sorted(found['missing_keys'])[0]}; fetch or save the base again."
        )
    return base


def base_fingerprint(base: PreTrainedModel, name_or_path: str | None, **hub: Any) -> str:
    """Fingerprint of the weights as stored, if that is what `base` holds (in whatever dtype), else as in memory."""
    names, tensors = _own_weights(base), base.state_dict()
    try:
        files = weight_files(name_or_path, **hub) if name_or_path else []
    except RecurTraceError:
        files = []
    with WeightReader(files) as reader:
        if all(name in reader and _same(tensors[name], reader[name]) for name in names):
            return fingerprint(reader, names, str(name_or_path))
    return fingerprint(tensors, names, "the base model")


def _same(tensor: Tensor, stored: Tensor) -> bool:
    return tensor.shape == stored.shape and torch.equal(tensor.cpu(), stored.to(tensor.dtype))


def _own_weights(base: PreTrainedModel) -> list[str]:
    """Names of the weights, each once: a tied head is the embedding under another name."""
    return [name for name in base.state_dict() if name not in base.all_tied_weights_keys]


def portable_name(name_or_path: str) -> str:
    """A folder is remembered by its full path, so that the adapter works from anywhere on this machine."""
    return str(Path(name_or_path).resolve()) if os.path.isdir(name_or_path) else name_or_path


def locate_base(name: str, adapter: str) -> str:
    """A base named by a relative path is looked for beside the adapter first."""
    beside = os.path.join(adapter, name)
    return beside if not os.path.isabs(name) and os.path.isdir(beside) else name
