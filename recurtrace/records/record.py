"""A record is a frozen dataclass in one JSON file, checked when it is read.

A field that is added later needs a default, so that older files can still be read.
"""

import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from recurtrace.errors import RecurTraceError
from recurtrace.files import write_json

LEFT_OUT = {"left_out": True}
"""Metadata of a field whose key is not written where it holds nothing: None, an empty list or text."""


class Record:
    """What one stage hands over as one JSON file. Keys that no field has are refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def as_json(self) -> dict[str, Any]:
        return _plain(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        return TypeAdapter(cls).validate_python(found)


R = TypeVar("R", bound=Record)


def write_record(path: Path, record: Record) -> None:
    write_json(path, record.as_json())


def refuse_other_file(path: Path, kind: Any) -> None:
    """A result may be made again; any other file, or a folder, is not overwritten."""
    if path.is_dir():
        raise RecurTraceError(f"{str(path)!r} is a folder; name a file to write.")
    if path.exists():
        try:
            kind.read(path)
        except RecurTraceError as error:
            raise RecurTraceError(f"{error} It is not overwritten; choose another --out, or remove it.") from error


def read_record(path: Path, kind: type[R], what: str, command: str) -> R:
    """A record from its file; `what` it is and the `command` that makes one are for the error message."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no fields")
        json.dumps(found, ensure_ascii=False).encode()  # halves of characters cannot be written anywhere
        return kind.from_json(found)
    except OSError as error:
        raise RecurTraceError(f"cannot read {path} ({error.strerror}); make it with `{command}`.") from error
    except (ValueError, RecursionError) as error:
        raise RecurTraceError(f"{path} is not {what} ({problem(error)}); make it again with `{command}`.") from error


def problem(error: Exception) -> str:
    """What is wrong with a file: the first field that does not fit, and how many others."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "it is not JSON"
    if not isinstance(error, ValidationError):
        return str(error)
    first, *others = error.errors(include_url=False)
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "unexpected_keyword_argument":
        said = f"there is no field {where!r}"
    else:
        said = f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}" if where else first["msg"]
    return f"{said}, and {len(others)} more" if others else said


def known(value: float) -> float | None:
    """None for what cannot be said, such as the mean of no items: JSON has no NaN."""
    return None if math.isnan(value) else value


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        there = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: _plain(part) for one, part in there if part not in (None, [], "") or one.metadata != LEFT_OUT}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return known(value) if isinstance(value, float) else value
