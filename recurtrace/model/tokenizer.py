"""The tokenizer of a folder, or of the base that an adapter stands on."""

from typing import TYPE_CHECKING, Any

from recurtrace.errors import RecurTraceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(*places: str | None, **options: Any) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    from recurtrace.model.base import wants_code, without_asking

    tried = [place for place in places if place is not None]
    for place in tried:
        try:
            return AutoTokenizer.from_pretrained(place, **without_asking(options))
        except (OSError, ValueError, KeyError) as error:  # what transformers raises where there is none
            if "trust_remote_code" in str(error):
                raise wants_code(place) from error
    raise RecurTraceError(f"no tokenizer found at {' nor '.join(map(repr, tried))}; save the base's tokenizer there.")
