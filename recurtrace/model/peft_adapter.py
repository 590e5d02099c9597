"""PEFT adapters, the capacity control of the comparison: read as carefully as the project's own."""

import json
import re
import subprocess
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from transformers import PreTrainedModel

from recurtrace.errors import RecurTraceError, brief
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
_UNFIT = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError, re.error)
"""What PEFT raises for shapes that differ, layers that are not there, settings of another kind."""
_PATIENCE = 10  # seconds
# As PEFT does it: a field of its own, a part of a name, the end of one.
_TRIAL = r"""
import json, re, sys
patterns, names = json.load(sys.stdin)
for pattern in patterns:
    for whole in (pattern, rf"(^|.*\.){pattern}($|\..*)", rf"(.*\.)?({pattern})$"):
        for name in names:
            re.fullmatch(whole, name)
"""


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
        there = reader.shapes().keys()
        for name in there:
            refuse_non_finite(name, reader[name], str(folder / WEIGHTS_FILE))
    read_base_config(base, **hub)
    loaded, found = load_base(base, dtype=dtype, **hub)
    refuse_other_base(_made_on(folder), str(folder), base, found, f"remove {BASE_FILE} to skip the check")
    _try_patterns(config, [name for name, _ in loaded.named_modules()], folder / CONFIG_FILE)
    try:
        model = PeftModel.from_pretrained(loaded, str(folder), config=config)
        _refuse_other_tensors(model, there, folder)
        merged = model.merge_and_unload()
    except RecurTraceError:
        raise
    except _UNFIT as error:
        reason = brief(error) or type(error).__name__
        raise RecurTraceError(f"the PEFT adapter {str(folder)!r} does not fit its base {base!r}: {reason}") from error
    merged.config.name_or_path = str(folder)
    return merged, base


def _refuse_other_tensors(model: PeftModel, there: Set[str], folder: Path) -> None:
    """PEFT leaves what the file lacks untrained, and what its config does not describe unread, with a warning."""
    needed = get_peft_model_state_dict(model, save_embedding_layers=False).keys()
    known = get_peft_model_state_dict(model, save_embedding_layers=True).keys()
    if missing := sorted(needed - there):
        raise RecurTraceError(
            f"{folder / WEIGHTS_FILE} lacks {missing[0]}, which {CONFIG_FILE} describes; save it again."
        )
    if unknown := sorted(there - known):
        raise RecurTraceError(
            f"{folder / WEIGHTS_FILE} holds {unknown[0]}, which {CONFIG_FILE} does not describe; use the config it was "
            "saved with."
        )


def _try_patterns(config: PeftConfig, modules: list[str], file: Path) -> None:
    """Match the patterns of a config with the base's modules in a process of its own: some would take for ever."""
    patterns = []
    for field, value in config.to_dict().items():
        if "module" in field or "pattern" in field:
            several = value if isinstance(value, list | set | tuple | dict) else [value]
            patterns += [one for one in several if isinstance(one, str)]
    if not (special := [pattern for pattern in patterns if not re.fullmatch(r"[\w.-]*", pattern)]):
        return
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-c", _TRIAL],
            input=json.dumps([special, modules]).encode(),
            capture_output=True,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise RecurTraceError(
            f"{file} has a pattern that takes too long to match ({brief(max(special, key=len), 80)}); name the modules "
            "in a list."
        ) from error
    if tried.returncode:
        raise RecurTraceError(
            f"{file} has a pattern that cannot be matched ({brief(tried.stderr.decode().splitlines()[-1], 80)}); name "
            "the modules in a list."
        )


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
