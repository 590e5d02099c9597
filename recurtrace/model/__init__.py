"""The looped model. Importing this package makes it known to the Auto classes of transformers."""

from transformers import AutoConfig, AutoModelForCausalLM

from recurtrace.model.cache import RecurTraceCache
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM, RecurTraceOutput

AutoConfig.register("recurtrace", RecurTraceConfig, exist_ok=True)
AutoModelForCausalLM.register(RecurTraceConfig, RecurTraceForCausalLM, exist_ok=True)

__all__ = ["RecurTraceCache", "RecurTraceConfig", "RecurTraceForCausalLM", "RecurTraceOutput"]
