"""A request's `loops`, checked where the request comes in, so that a wrong one is answered and not served."""

from typing import Any, ClassVar

from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from recurtrace.errors import RecurTraceError
from recurtrace.serving.depths import ServedDepths


class RequestDepth(LogitsProcessor):
    """vLLM asks its logits processors whether a request's parameters are right; this one leaves the logits alone."""

    served: ClassVar[ServedDepths | None] = None
    """What this server offers; set when its settings are made."""

    def __init__(self, *_: Any) -> None: ...

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        loops = (sampling_params.extra_args or {}).get("loops")
        if loops is None or cls.served is None:
            return
        try:
            cls.served.asked(loops)
        except RecurTraceError as error:
            raise VLLMValidationError(str(error), parameter="loops") from error

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Any) -> Any:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None: ...
