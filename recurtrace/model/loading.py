"""A looped model and its tokenizer from a folder or the hub, on a device; several commands begin so."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurtrace.errors import RecurTraceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recurtrace.model import RecurTraceForCausalLM

ONE_LOOP: dict[str, Any] = {"loop_start": 0, "loop_num_layers": 1, "loop_memory": False}  # any block will do


def load_looped(
    model: str, base: str | None = None, device: str = "auto", **options: Any
) -> "tuple[RecurTraceForCausalLM, PreTrainedTokenizerBase]":
    from recurtrace.model import RecurTraceForCausalLM
    from recurtrace.model.base import locate_base, read_looped_config
    from recurtrace.model.tokenizer import load_tokenizer

    named = read_looped_config(model).base_model_name_or_path
    tokenizer = load_tokenizer(model, base or (locate_base(named, model) if named else None))
    place = find_device(device)
    return RecurTraceForCausalLM.from_pretrained(model, base=base, **options).to(place), tokenizer


def load_any(model: str, device: str = "auto", dtype: str = "auto") -> "tuple[RecurTraceForCausalLM, Any, str]":
    """A looped model as it is, or one without loops as a looped model at one loop, which is the same; and its kind."""
    from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
    from recurtrace.model.base import read_config
    from recurtrace.model.families import check_family
    from recurtrace.model.tokenizer import load_tokenizer

    place = find_device(device)
    if (Path(model) / "adapter_config.json").is_file():
        from peft import AutoPeftModelForCausalLM, PeftConfig

        tokenizer = load_tokenizer(model, PeftConfig.from_pretrained(model).base_model_name_or_path)
        merged = AutoPeftModelForCausalLM.from_pretrained(
            model, dtype=dtype, trust_remote_code=False
        ).merge_and_unload()
        merged.config.name_or_path = model
        return RecurTraceForCausalLM.from_base(merged, **ONE_LOOP).to(place), tokenizer, "adapter"
    config = read_config(model)
    if isinstance(config, RecurTraceConfig):
        return (*load_looped(model, device=device, dtype=dtype), "looped")
    check_family(config)
    base = RecurTraceForCausalLM.from_base(model, **ONE_LOOP, dtype=dtype)
    return base.to(place), load_tokenizer(model), "base"


def find_device(name: str) -> Any:
    import torch

    if name == "auto":  # of several processes on one machine, each takes its own
        best = torch.accelerator.current_accelerator(check_available=True)
        return torch.device(best.type, int(os.environ.get("LOCAL_RANK", "0"))) if best else torch.device("cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise RecurTraceError(f"the device {name!r} cannot be used here; try --device cpu.") from error
    return torch.device(name)
