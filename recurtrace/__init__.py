"""RecurTrace: turn a pretrained language model into a looped reasoner that picks its depth for each input.

Importing the package makes the model known to the Auto classes of transformers. The command line does without, so
that it answers at once, and imports a name on first use.
"""

import os
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


def _is_command_line() -> bool:
    return os.path.basename(sys.argv[0]) in ("recurtrace", "-m")  # -m: python is looking for recurtrace/__main__.py


if not _is_command_line():
    import_module("recurtrace.model")
