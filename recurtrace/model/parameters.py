"""How many parameters a looped model adds, counted on the modules themselves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM


@dataclass(frozen=True)
class ParameterCount:
    base: int
    added: int

    @property
    def share(self) -> float:
        return self.added / self.base


def count_parameters(model: "RecurTraceForCausalLM") -> ParameterCount:
    added = sum(parameter.numel() for parameter in model.loop.parameters())
    return ParameterCount(base=sum(parameter.numel() for parameter in model.parameters()) - added, added=added)
