"""A folder that is to be served: refused before vLLM reads gigabytes of it, if it is not what its config.json says."""

from typing import Any

import torch

from recurtrace.errors import RecurTraceError
from recurtrace.model.base import announced_base, refuse_other_base
from recurtrace.model.checkpoint import ADAPTER_FILE, WeightReader, find_file, fingerprint, read_adapter, weight_files
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM


def base_of_adapter(model: str, config: RecurTraceConfig, **hub: Any) -> tuple[str, str | None] | None:
    """Where the base of an adapter folder is, and its revision; None for a merged checkpoint."""
    if find_file(model, ADAPTER_FILE, **hub) is None:
        return None
    if config.base_model_name_or_path is None:
        raise RecurTraceError(f"{model!r} holds loop modules only and names no base; save it with merge_base=True.")
    return announced_base(config.base_model_name_or_path, model), config.base_revision or None


def check_checkpoint(model: str, config: RecurTraceConfig, **hub: Any) -> None:
    """Every tensor there and of its shape; an adapter's base the one it was made on."""
    with torch.device("meta"):
        skeleton = RecurTraceForCausalLM(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    tied = frozenset(skeleton.all_tied_weights_keys)
    place = base_of_adapter(model, config, **hub)
    if place is None:
        with WeightReader(weight_files(model, **hub)) as reader:
            reader.expect(shapes, optional=tied)
        return
    adapter = find_file(model, ADAPTER_FILE, **hub)
    assert adapter is not None
    read_adapter(adapter, {name: shape for name, shape in shapes.items() if name.startswith("loop.")})
    base, revision = place
    names = [name for name in shapes if not name.startswith("loop.") and name not in tied]
    with WeightReader(weight_files(base, **{**hub, "revision": revision})) as reader:
        if missing := [name for name in names if name not in reader]:
            raise RecurTraceError(f"the base {base!r} lacks {missing[0]}; it is not the base of {model!r}.")
        refuse_other_base(config.base_fingerprint, model, base, fingerprint(reader, names, base))
