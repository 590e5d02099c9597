"""A looped model and its tokenizer from a folder or the hub, on a device; several commands begin so."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurtrace.errors import RecurTraceError, brief

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recurtrace.model import RecurTraceForCausalLM

ONE_LOOP: dict[str, Any] = {"loop_start": 0, "loop_num_layers": 1, "loop_memory": False}  # any block will do


def load_looped(
    model: str, base: str | None = None, device: str = "auto", **options: Any
) -> "tuple[RecurTraceForCausalLM, PreTrainedTokenizerBase]":
    from recurtrace.model import RecurTraceForCausalLM
    from recurtrace.model.base import announced_base, hub_options, read_looped_config
    from recurtrace.model.tokenizer import load_tokenizer

    hub = hub_options(options)
    named = read_looped_config(model, **hub).base_model_name_or_path
    tokenizer = load_tokenizer(model, base or (announced_base(named, model) if named else None), **hub)
    place = find_device(device)
    return RecurTraceForCausalLM.from_pretrained(model, base=base, **options).to(place), tokenizer


def load_any(
    model: str, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False, **loop: Any
) -> "tuple[RecurTraceForCausalLM, Any, str]":
    """A looped model as it is, or one without loops as a looped model at one loop, which is the same; and its kind.

    `loop` are fields of a looped model's config to override.
    """
    from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
    from recurtrace.model.base import read_config
    from recurtrace.model.families import check_family
    from recurtrace.model.tokenizer import load_tokenizer

    place = find_device(device)
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if (Path(model) / "adapter_config.json").is_file():
        from recurtrace.model.peft_adapter import load_merged

        merged, named = load_merged(Path(model), dtype=dtype, **trust)
        tokenizer = load_tokenizer(model, named, **trust)
        return RecurTraceForCausalLM.from_base(merged, **ONE_LOOP).to(place), tokenizer, "adapter"
    config = read_config(model, **trust)
    if isinstance(config, RecurTraceConfig):
        return (*load_looped(model, device=device, dtype=dtype, **trust, **loop), "looped")
    check_family(config)
    base = RecurTraceForCausalLM.from_base(model, **ONE_LOOP, dtype=dtype, **trust)
    return base.to(place), load_tokenizer(model, **trust), "base"


def find_device(name: str) -> Any:
    import torch

    if name == "auto":  # of several processes on one machine, each takes its own
        best = torch.accelerator.current_accelerator(check_available=True)
        return torch.device(best.type, int(os.environ.get("LOCAL_RANK", "0"))) if best else torch.device("cpu")
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ValueError, ImportError) as error:
        raise RecurTraceError(f"the device {brief(name, 80)!r} cannot be used here; try --device cpu.") from error
    if device.type == "meta":
        raise RecurTraceError("the device 'meta' holds no values, so nothing can be run there; try --device cpu.")
    return torch.device(name)
