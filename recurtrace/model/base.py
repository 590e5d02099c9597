"""The base: reading its config, loading it, telling it from others."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from recurtrace.assets import EMBEDDED
from recurtrace.config_file import check_attention, check_given_sizes, check_sizes, read_config_file
from recurtrace.errors import RecurTraceError, brief
from recurtrace.files import is_half_moved
from recurtrace.hub import hub_is_unreachable
from recurtrace.model.checkpoint import (
    ADAPTER_FILE,
    INDEX_FILE,
    WEIGHTS_FILE,
    WeightReader,
    find_file,
    fingerprint,
    weight_files,
)
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.families import FAMILIES, check_family

logger = logging.getLogger(__name__)

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


_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_UNUSABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, StrictDataclassError)
"""What transformers raises for a config.json that it can make nothing of."""
_UNLOADABLE = (*_UNUSABLE, ImportError, NotImplementedError, OSError, RuntimeError)
"""The same for weights: sizes that do not fit, a quantization whose library is not there."""


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
        file = None if not local and _is_out_of_reach(name_or_path) else find_file(name_or_path, "config.json", **hub)
    except OSError as error:
        raise _not_found(name_or_path) from error
    if file is None:
        raise _not_found(name_or_path)
    fields = read_config_file(Path(file), name_or_path, hub.get("trust_remote_code") is True)
    base_fields = fields["text_config"] if fields["model_type"] == "recurtrace" else fields
    if str(base_fields.get("model_type")) in FAMILIES:
        check_given_sizes(base_fields, name_or_path)
    try:
        config = AutoConfig.from_pretrained(name_or_path, **without_asking(hub))
    except RecurTraceError:
        raise
    except OSError as error:
        raise _not_found(name_or_path) from error
    except _UNUSABLE as error:
        if "trust_remote_code" in str(error):
            raise wants_code(name_or_path) from error
        raise RecurTraceError(f"the config.json of {name_or_path!r} cannot be used: {brief(error)}") from error
    if config.get_text_config().model_type in FAMILIES:
        check_sizes(config.get_text_config(), name_or_path)
    return config


def _not_found(name_or_path: str) -> RecurTraceError:
    return RecurTraceError(
        f"no model found at {name_or_path!r}: it is not a folder here, nor a hub id that can be reached."
    )


def _is_out_of_reach(name: str) -> bool:
    """Whether a model would have to come from the hub and the hub does not answer."""
    cached = isinstance(try_to_load_from_cache(name, "config.json"), str) if _HUB_ID.fullmatch(name) else False
    return not cached and hub_is_unreachable()


def wants_code(name_or_path: str) -> RecurTraceError:
    return RecurTraceError(
        f"{name_or_path!r} wants to run code of its own, which is refused; pass trust_remote_code=True "
        "(--trust-remote-code) only if you trust its authors."
    )


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
    if is_half_moved(Path(name_or_path)):
        raise RecurTraceError(
            f"{str(name_or_path)!r} was being written when its process was killed; run the command that wrote it again."
        )
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
    check_attention(options.get("attn_implementation"), "the attention", options.get("trust_remote_code") is True)
    config = read_config(name_or_path, **hub)
    files = weight_files(name_or_path, **hub)
    with WeightReader(files) as reader:  # a truncated file is told apart before gigabytes are read
        if getattr(config, "quantization_config", None) is None:
            reader.require_floats()
    with loading_told(name_or_path):
        base, found = AutoModelForCausalLM.from_pretrained(
            name_or_path, use_safetensors=True, output_loading_info=True, **without_asking(options)
        )
    if found["missing_keys"]:
        raise RecurTraceError(
            f"the weights at {name_or_path!r} lack {sorted(found['missing_keys'])[0]}; fetch or save the base again."
        )
    with WeightReader(files) as reader:
        return base, fingerprint(reader, [name for name in _own_weights(base) if name in reader], name_or_path)


@contextmanager
def loading_told(name_or_path: str) -> Iterator[None]:
    """One sentence for all that transformers raises where it cannot build or fill a model."""
    try:
        yield
    except RecurTraceError:
        raise
    except _UNLOADABLE as error:
        raise RecurTraceError(
            f"{name_or_path!r} cannot be loaded; its config.json and its weights must fit together and this machine: "
            f"{brief(error) or type(error).__name__}"
        ) from error


def stored_fingerprint(name_or_path: str, **hub: Any) -> str:
    """That of a base's files, without loading it."""
    config = read_base_config(name_or_path, **hub)
    with loading_told(name_or_path), torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config, trust_remote_code=without_asking(hub)["trust_remote_code"])
    with WeightReader(weight_files(name_or_path, **hub)) as reader:
        return fingerprint(reader, [name for name in _own_weights(base) if name in reader], name_or_path)


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


def announced_base(name: str, adapter: str) -> str:
    """Where the base is that an adapter names; said before it is loaded if it is a folder elsewhere."""
    base = locate_base(name, adapter)
    place = Path(base).resolve()
    if place.is_dir() and not place.is_relative_to(Path(adapter).resolve()) and place not in EMBEDDED.values():
        _announce(os.path.realpath(base), adapter)
    return base


@cache
def _announce(base: str, adapter: str) -> None:
    logger.warning("Loading the base %s, which the adapter %s names.", base, adapter)


def refuse_other_base(
    made_on: str | None,
    adapter: str,
    base: str | None,
    found: str,
    remedy: str = "load it with check_base=False (`recurtrace generate --no-check-base`)",
) -> None:
    """An adapter belongs to the weights it was made on."""
    if made_on not in (None, found):
        raise RecurTraceError(
            f"the adapter {adapter!r} was made on a base with fingerprint {made_on}, but "
            f"{base or 'the base given'!r} has {found}; use the right base, or {remedy}."
        )


def refuse_other_kind(folder: Path, merge_base: bool) -> None:
    """One folder holds one kind of checkpoint; a base must never be overwritten by its adapter's config."""
    if folder.is_file():
        raise RecurTraceError(f"{str(folder)!r} is a file; name a folder to save to.")
    full = (folder / WEIGHTS_FILE).exists() or (folder / INDEX_FILE).exists()
    if full and not merge_base:
        raise RecurTraceError(f"{str(folder)!r} holds a full checkpoint; save the adapter to a folder of its own.")
    if full and read_config(str(folder)).model_type != "recurtrace":
        raise RecurTraceError(f"{str(folder)!r} holds another model; save to a folder of its own.")
    if merge_base and (folder / ADAPTER_FILE).exists():
        raise RecurTraceError(f"{str(folder)!r} holds an adapter; save the merged model to a folder of its own.")
