"""A model's config.json, looked at before transformers makes anything of it."""

import json
import re
from pathlib import Path
from typing import Any

from recurtrace.errors import RecurTraceError, is_unicode

# The largest that any model has, and then some: beyond it a number is an error, and building the model would not end.
SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**17,
    "intermediate_size": 2**20,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**12,
    "num_key_value_heads": 2**12,
    "head_dim": 2**12,
    "max_position_embeddings": 2**31,
}
_MAY_BE_NONE = ("num_key_value_heads", "head_dim")
_DTYPE = re.compile(r"(torch\.)?(auto|bfloat16|float\d+(_\w+)?)")
_ATTENTIONS = re.compile(r"eager|sdpa|flex_attention|flash_attention_\d+")
_IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_TEXTS = ("base_model_name_or_path", "base_fingerprint", "base_revision")


def read_config_file(file: Path, name: str, trusted: bool = False) -> dict[str, Any]:
    """The fields of a config.json that can be a model's; `name` is how the user calls the model.

    Only one that is `trusted` may name kernels of the hub, which are code.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecurTraceError(f"the config.json of {name!r} is not valid JSON; fetch or save it again.") from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise RecurTraceError(f"the config.json of {name!r} has no model_type, so it is not that of a model.")
    for field in _TEXTS:
        if not isinstance(found.get(field), str | None):
            raise _unusable(name, field, found[field], "a text")
        if not is_unicode(found.get(field) or ""):
            raise _unusable(name, field, ascii(found[field]), "valid Unicode")
    looped = found["model_type"] == "recurtrace"
    base = found.get("text_config") if looped else found
    if not isinstance(base, dict):
        raise _unusable(name, "text_config", base, "the base's own config")
    for part in (found, base):
        for field in ("dtype", "torch_dtype"):
            if part.get(field) is not None and not _DTYPE.fullmatch(str(part[field])):
                raise _unusable(name, field, part[field], "a floating-point type such as bfloat16")
        for field in filter(_IMPLEMENTATION.fullmatch, part):
            check_attention(part[field], f"{field} in the config.json of {name!r}", trusted)
    return found


def check_attention(value: object, what: str, trusted: bool) -> None:
    """Refuse what transformers would fetch from the hub and run, unless the user trusts it; `what` names the value."""
    if value is not None and not trusted and not (isinstance(value, str) and _ATTENTIONS.fullmatch(value)):
        raise RecurTraceError(
            f"{what} must be eager, sdpa, flex_attention or flash_attention_2, got {str(value)[:80]!r}; anything else "
            "is code from the hub, so pass trust_remote_code=True (--trust-remote-code) only if you trust its authors."
        )


def check_given_sizes(base: dict[str, Any], name: str) -> None:
    """Refuse sizes that no model has, before transformers computes with them; `base` may leave some to its defaults."""
    for field in SIZES.keys() & base.keys():
        _check_size(field, base[field], name)


def _check_size(field: str, size: object, name: str) -> None:
    if size is None and field in _MAY_BE_NONE:
        return
    if type(size) is not int or not 1 <= size <= SIZES[field]:
        raise _unusable(name, field, size, f"a whole number from 1 to {SIZES[field]:,}")


def check_sizes(base: Any, name: str) -> None:
    """Refuse a base's config whose sizes no model has; `base` has them as attributes."""
    sizes = {field: getattr(base, field, None) for field in SIZES}
    for field, size in sizes.items():
        _check_size(field, size, name)
    heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    if shared is not None and heads % shared:
        raise _unusable(name, "num_key_value_heads", shared, f"a divisor of the {heads} attention heads")
    if (sizes["head_dim"] or 2) % 2:
        raise _unusable(name, "head_dim", sizes["head_dim"], "even")


def _unusable(name: str, field: str, value: object, wanted: str) -> RecurTraceError:
    return RecurTraceError(f"{field} must be {wanted} in the config.json of {name!r}, got {str(value)[:80]!r}.")
