"""RecurTrace: turn a pretrained language model into a looped reasoner that picks its depth for each input.

The names below are imported on first use, so that the command line answers at once. Importing one of them also
registers the model with the Auto classes of transformers; if transformers is there already, that happens now.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurtrace.errors import RecurTraceError as RecurTraceError
    from recurtrace.model import RecurTraceCache as RecurTraceCache
    from recurtrace.model import RecurTraceConfig as RecurTraceConfig
    from recurtrace.model import RecurTraceForCausalLM as RecurTraceForCausalLM

__version__ = version("recurtrace")

_HOMES = {
    "RecurTraceCache": "recurtrace.model",
    "RecurTraceConfig": "recurtrace.model",
    "RecurTraceError": "recurtrace.errors",
    "RecurTraceForCausalLM": "recurtrace.model",
}
__all__ = ["RecurTraceCache", "RecurTraceConfig", "RecurTraceError", "RecurTraceForCausalLM", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'recurtrace' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


if "transformers" in sys.modules:
    import_module("recurtrace.model")
