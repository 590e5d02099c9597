"""A looped model and its tokenizer from a folder or the hub, on a device; several commands begin so."""

from typing import TYPE_CHECKING, Any

from recurtrace.errors import RecurTraceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM


def load_config(model: str) -> "RecurTraceConfig":
    from recurtrace.model import RecurTraceConfig
    from recurtrace.model.convert import not_looped, read_config

    config = read_config(model)
    if not isinstance(config, RecurTraceConfig):
        raise not_looped(model, config)
    return config


def load_looped(
    model: str, base: str | None = None, device: str = "auto", **options: Any
) -> "tuple[RecurTraceForCausalLM, PreTrainedTokenizerBase]":
    import torch

    from recurtrace.model import RecurTraceForCausalLM
    from recurtrace.model.convert import locate_base
    from recurtrace.model.tokenizer import load_tokenizer

    named = load_config(model).base_model_name_or_path
    tokenizer = load_tokenizer(model, base or (locate_base(named, model) if named else None))
    try:
        place = torch.device(device) if device != "auto" else torch.accelerator.current_accelerator()
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise RecurTraceError(f"the device {device!r} cannot be used here; try --device cpu.") from error
    return RecurTraceForCausalLM.from_pretrained(model, base=base, **options).to(place), tokenizer
