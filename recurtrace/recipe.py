"""Recipes: YAML files checked field by field, so that a typing error costs a sentence and not a run."""

from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from recurtrace.errors import RecurTraceError


class Recipe(BaseModel):
    """Unknown fields are refused; a field's documentation stands under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        if not path.is_file():
            raise RecurTraceError(f"there is no recipe at {str(path)!r}.")
        try:
            fields = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RecurTraceError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
        return cls.check(fields, str(path))

    @classmethod
    def read_with(cls, path: Path, changes: list[str]) -> Self:
        """A recipe with some of its fields changed, each as `field=value`."""
        if not path.is_file():
            raise RecurTraceError(f"there is no recipe at {str(path)!r}.")
        if not changes:
            return cls.read(path)
        fields = cls.read(path).model_dump(mode="json", exclude_unset=True)
        return cls.check(with_changes(fields, changes), str(path))

    @classmethod
    def check(cls, fields: object, name: str) -> Self:
        if not isinstance(fields, dict):
            raise RecurTraceError(f"{name} holds no fields; it needs {', '.join(cls.model_fields)}.")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise RecurTraceError(f"{name}: " + "; ".join(_sentence(problem) for problem in error.errors())) from error


def with_changes(fields: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Fields with some of them changed, each as `field=value` or `part.field=value`."""
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign:
            raise RecurTraceError(f"{change!r} changes no field; write it as field=value.")
        place = fields
        *parents, last = name.strip().split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise RecurTraceError(f"{change!r}: {parent} has no fields of its own.")
        try:
            place[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise RecurTraceError(f"{change!r}: {value!r} is not a YAML value; quote it.") from error
    return fields


def _sentence(problem: object) -> str:
    where = ".".join(str(part) for part in problem["loc"])  # type: ignore[index]
    if problem["type"] == "extra_forbidden":  # type: ignore[index]
        return f"there is no field {where!r}"
    reason = problem["msg"].removeprefix("Value error, ")  # type: ignore[index]
    return f"{where}: {reason[:1].lower()}{reason[1:]} (got {problem['input']!r})" if where else reason  # type: ignore[index]
