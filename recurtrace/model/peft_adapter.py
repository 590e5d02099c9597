"""PEFT adapters, the capacity control of the comparison: read as carefully as the project's own."""

import json
from pathlib import Path
from typing import Any

from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel

from recurtrace.errors import RecurTraceError
from recurtrace.files import write_json
from recurtrace.model.base import (
    announced_base,
    load_base,
    read_base_config,
    refuse_other_base,
    stored_fingerprint,
)
from recurtrace.model.checkpoint import WeightReader, refuse_non_finite

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "base.json"
"""The fingerprint of the base, for which PEFT's own config has no field."""


def write_base(folder: Path, base: str, **hub: Any) -> None:
    """Say on which weights an adapter was trained."""
    write_json(folder / BASE_FILE, {"base_fingerprint": stored_fingerprint(base, **hub)})


def load_merged(folder: Path, dtype: str = "auto", **trust: Any) -> tuple[PreTrainedModel, str]:
    """The base with an adapter's weights added to its own, and where the base is."""
    config = _read_config(folder)
    base = announced_base(str(config.base_model_name_or_path), str(folder))
    hub = {**trust, **({"revision": config.revision} if config.revision else {})}
    with WeightReader([str(folder / WEIGHTS_FILE)]) as reader:
        reader.require_floats()
        for name in reader.shapes():
            refuse_non_finite(name, reader[name], str(folder / WEIGHTS_FILE))
    read_base_config(base, **hub)
    loaded, found = load_base(base, dtype=dtype, **hub)
    refuse_other_base(_made_on(folder), str(folder), base, found)
    try:
        merged = PeftModel.from_pretrained(loaded, str(folder), config=config).merge_and_unload()
    except (RuntimeError, ValueError) as error:  # shapes, layers that are not there
        reason = " ".join(str(error).split())[:200]
        raise RecurTraceError(f"the PEFT adapter {str(folder)!r} does not fit its base {base!r}: {reason}") from error
    merged.config.name_or_path = str(folder)
    return merged, base


def _read_config(folder: Path) -> PeftConfig:
    file = folder / CONFIG_FILE
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecurTraceError(f"{file} is not the config of a PEFT adapter; save the adapter again.") from error
    if not isinstance(config.base_model_name_or_path, str) or not config.base_model_name_or_path:
        raise RecurTraceError(f"{file} does not name the adapter's base; set base_model_name_or_path in it.")
    if config.is_prompt_learning:
        raise RecurTraceError(f"{file} is a {config.peft_type} adapter, which cannot be merged; use LoRA or the like.")
    if config.to_dict().get("megatron_config"):  # PEFT imports the module that stands there
        raise RecurTraceError(f"{file} asks for a module to be imported (megatron_core), which is refused; remove it.")
    if not (folder / WEIGHTS_FILE).is_file():
        raise RecurTraceError(f"{str(folder)!r} has no {WEIGHTS_FILE}; RecurTrace reads safetensors only.")
    return config


def _made_on(folder: Path) -> str | None:
    """The fingerprint that the adapter's base must have, if the adapter says so."""
    if not (folder / BASE_FILE).is_file():
        return None
    try:
        return json.loads((folder / BASE_FILE).read_text(encoding="utf-8"))["base_fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecurTraceError(f"{folder / BASE_FILE} is damaged; remove it to skip the check of the base.") from error
