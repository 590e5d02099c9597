"""Recipes: YAML files checked field by field, so that a typing error costs a sentence and not a run.

A recipe names other recipes relative to itself. Data, runs and models are relative to `root`, or to the working
directory.
"""

from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from recurtrace.errors import RecurTraceError
from recurtrace.recipes import find


class Recipe(BaseModel):
    """Unknown fields are refused; a field's documentation stands under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    paths: ClassVar[tuple[str, ...]] = ()
    """Fields that name data, runs and models."""
    recipes: ClassVar[tuple[str, ...]] = ()
    """Fields that name other recipes."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        return cls.read_with(path, [])

    @classmethod
    def read_with(cls, path: str | Path, changes: list[str]) -> Self:
        """A recipe by its path or its shipped name, with some fields changed, each as `field=value`."""
        file = find(path)
        try:
            fields = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RecurTraceError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(fields, dict):
            raise RecurTraceError(f"{file} holds no fields; it needs {', '.join(cls.model_fields)}.")
        return cls.check(cls.resolve(with_changes(fields, changes), file.parent), str(file))

    @classmethod
    def resolve(cls, fields: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Other recipes are found from the folder of this one, everything else from `root` if there is one."""
        for name in cls.recipes:
            if name in fields and (folder / str(fields[name])).is_file():
                fields[name] = str(folder / str(fields[name]))
        if fields.get("root") is not None:
            root = folder / str(fields["root"])
            for name in cls.paths:
                value = fields.get(name)
                if isinstance(value, str) and (name == "out" or (root / value).exists()):
                    fields[name] = str(root / value)
        return fields

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
