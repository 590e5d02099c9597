"""The tokenizer of a folder, or of the base that an adapter stands on."""

from typing import TYPE_CHECKING, Any

from recurtrace.errors import RecurTraceError, brief

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""A place with one of these has a tokenizer; if that cannot be used, another place's is not taken instead."""


def load_tokenizer(*places: str | None, **options: Any) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    from recurtrace.model.base import wants_code, without_asking

    tried = [place for place in places if place is not None]
    for place in tried:
        try:
            return AutoTokenizer.from_pretrained(place, **without_asking(options))
        except Exception as error:  # the Rust code of a tokenizer raises no kind of its own
            if "trust_remote_code" in str(error):
                raise wants_code(place) from error
            if _has_tokenizer(place, options):
                raise RecurTraceError(
                    f"the tokenizer of {place!r} cannot be used ({brief(error)}); fetch or save it again."
                ) from error
    raise RecurTraceError(f"no tokenizer found at {' nor '.join(map(repr, tried))}; save the base's tokenizer there.")


def _has_tokenizer(place: str, options: dict[str, Any]) -> bool:
    from recurtrace.model.checkpoint import find_file

    try:
        return any(find_file(place, file, **options) is not None for file in FILES)
    except OSError:  # there is no such place
        return False
