"""The settings of generation_config.json, which transformers looks at only when it generates."""

from transformers import GenerationConfig

from recurtrace.errors import RecurTraceError, brief
from recurtrace.model.checkpoint import find_file

_FILE = "generation_config.json"
_COUNTS = ("max_length", "max_new_tokens", "num_beams", "num_return_sequences")
_NUMBERS = (
    *_COUNTS,
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "min_length", "min_new_tokens", "max_time"),
)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_generation_settings(name_or_path: str, **hub: str) -> GenerationConfig | None:
    """Those of a folder or hub model; None where it has none."""
    if find_file(name_or_path, _FILE, **hub) is None:
        return None
    files_only = {option: value for option, value in hub.items() if option != "trust_remote_code"}
    try:
        found = GenerationConfig.from_pretrained(name_or_path, **files_only)
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise _unusable(name_or_path, brief(error)) from error
    check_generation_settings(found, name_or_path)
    return found


def check_generation_settings(settings: GenerationConfig, name: str) -> None:
    for field in _NUMBERS:
        value = getattr(settings, field, None)
        if value is not None and (type(value) not in (int, float) or (field in _COUNTS and value < 1)):
            raise _unusable(name, f"{field} is {brief(repr(value), 60)}")
    for field in _TOKENS:
        value = getattr(settings, field, None)
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int for token in tokens):
            raise _unusable(name, f"{field} is {brief(repr(value), 60)}")


def _unusable(name: str, why: str) -> RecurTraceError:
    return RecurTraceError(f"the {_FILE} of {name!r} cannot be used ({why}); correct or remove it.")
