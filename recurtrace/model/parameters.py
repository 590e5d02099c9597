"""How many parameters a looped model adds, counted on the modules themselves."""

from dataclasses import dataclass

import torch
from torch import nn

from recurtrace.model.configuration_recurtrace import RecurTraceConfig


@dataclass(frozen=True)
class ParameterCount:
    base: int
    added: int

    @property
    def share(self) -> float:
        return self.added / self.base


def count_parameters(model: nn.Module | RecurTraceConfig) -> ParameterCount:
    """Of a model, or of the one a config describes (built on the meta device, so at any scale)."""
    if isinstance(model, RecurTraceConfig):
        from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM

        with torch.device("meta"):
            model = RecurTraceForCausalLM(model)
    added = sum(parameter.numel() for parameter in model.loop.parameters())
    return ParameterCount(base=sum(parameter.numel() for parameter in model.parameters()) - added, added=added)
