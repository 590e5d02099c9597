"""The base: reading its config, loading it, telling it from others."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from recurtrace.errors import RecurTraceError
from recurtrace.model.checkpoint import WeightReader, fingerprint, weight_files
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.families import check_family

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
    "trust_remote_code",
}
_HUB_OPTIONS = {"cache_dir", "force_download", "local_files_only", "revision", "token", "trust_remote_code"}


def hub_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in _HUB_OPTIONS}


def without_asking(options: dict[str, Any]) -> dict[str, Any]:
    """Options for transformers' Auto classes: a model's own code is run only if `trust_remote_code=True` was passed.

    Left to themselves these classes ask on standard input.
    """
    return {**options, "trust_remote_code": options.get("trust_remote_code") is True}


def read_config(name_or_path: str, **hub: Any) -> PreTrainedConfig:
    """Config of a folder or hub model, with a sentence instead of a traceback if there is none."""
    local = os.path.isdir(name_or_path)
    if local and not os.path.isfile(os.path.join(name_or_path, "config.json")):
        raise RecurTraceError(f"the folder {name_or_path!r} has no config.json, so it holds no model.")
    try:
        return AutoConfig.from_pretrained(name_or_path, **without_asking(hub))
    except RecurTraceError:
        raise
    except OSError as error:
        if local:
            raise RecurTraceError(f"{name_or_path}/config.json is not valid JSON; fetch or save it again.") from error
        raise RecurTraceError(
            f"no model found at {name_or_path!r}: it is not a folder here, nor a hub id that can be reached."
        ) from error
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise RecurTraceError(
                f"{name_or_path!r} wants to run code of its own, which is refused; pass trust_remote_code=True only if "
                "you trust its authors."
            ) from error
        raise RecurTraceError(f"the config.json of {name_or_path!r} cannot be used: {error}") from error


def read_base_config(name_or_path: str, **hub: Any) -> PreTrainedConfig:
    """Config of a base that can be looped."""
    base_config = read_config(name_or_path, **hub)
    if base_config.model_type == "recurtrace":
        raise RecurTraceError(f"{name_or_path!r} is a RecurTrace model already; load it with from_pretrained.")
    check_family(base_config)
    return base_config


def read_looped_config(name_or_path: str | Path, **hub: Any) -> RecurTraceConfig:
    """Config of a looped model; a `Path` is a folder, a text may be a hub id."""
    if isinstance(name_or_path, Path) and not name_or_path.is_dir():
        raise RecurTraceError(f"there is no model folder at {str(name_or_path)!r}.")
    config = read_config(str(name_or_path), **hub)
    if not isinstance(config, RecurTraceConfig):
        raise not_looped(str(name_or_path), config)
    return config


def not_looped(name_or_path: str, config: PreTrainedConfig) -> RecurTraceError:
    return RecurTraceError(
        f"{name_or_path!r} is a {config.model_type} model without loops; convert it with "
        "RecurTraceForCausalLM.from_base or `recurtrace convert`."
    )


def load_base(name_or_path: str, **options: Any) -> tuple[PreTrainedModel, str]:
    """The base as transformers loads it, and its fingerprint: safetensors only, no remote code, every weight there."""
    hub = hub_options(options)
    files = weight_files(name_or_path, **hub)
    with WeightReader(files):
        pass  # a truncated file is told apart before gigabytes are read
    base, found = AutoModelForCausalLM.from_pretrained(
        name_or_path, use_safetensors=True, output_loading_info=True, **without_asking(options)
    )
    if found["missing_keys"]:
        raise RecurTraceError(
            f"the weights at {name_or_path!r} lack {sorted(found['missing_keys'])[0]}; fetch or save the base again."
        )
    with WeightReader(files) as reader:
        return base, fingerprint(reader, [name for name in _own_weights(base) if name in reader], name_or_path)


def identify(base: PreTrainedModel) -> str:
    """Fingerprint of a base that is in memory: that of its files, if it still is what they hold (in any dtype)."""
    names, tensors = _own_weights(base), base.state_dict()
    try:
        files = weight_files(base.config.name_or_path) if base.config.name_or_path else []
    except (RecurTraceError, OSError):  # made in memory, or its files are gone
        files = []
    with WeightReader(files) as reader:
        if all(name in reader and _same(tensors[name], reader[name]) for name in names):
            return fingerprint(reader, names, base.config.name_or_path)
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


def refuse_other_base(config: Any, adapter: str, base: str | None, found: str) -> None:
    """An adapter belongs to the weights it was made on."""
    if config.base_fingerprint not in (None, found):
        raise RecurTraceError(
            f"the adapter {adapter!r} was made on a base with fingerprint {config.base_fingerprint}, but "
            f"{base or 'the base given'!r} has {found}; use the right base, or pass check_base=False (--no-check-base)."
        )
