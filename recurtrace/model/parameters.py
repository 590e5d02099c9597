"""How many parameters a looped model adds, counted on the modules themselves."""

from typing import TYPE_CHECKING

from recurtrace.shape import ParameterCount as ParameterCount

if TYPE_CHECKING:
    from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM


def count_parameters(model: "RecurTraceForCausalLM") -> ParameterCount:
    added = sum(parameter.numel() for parameter in model.loop.parameters())
    return ParameterCount(base=sum(parameter.numel() for parameter in model.parameters()) - added, added=added)
