"""Recipes: YAML files checked field by field, so that a typing error costs a sentence and not a run.

A recipe names other recipes relative to itself. Data, runs and models are relative to `root`, or to the working
directory.
"""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from recurtrace.errors import RecurTraceError, brief
from recurtrace.recipes import find

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What torch, numpy and random all take."""
Switch = Annotated[bool, Field(exclude_if=lambda value: not value)]
"""Written down only where it is on, so that work begun before there was such a switch is still the same work."""


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError("a name may have letters, digits, - and _ only")
    return name


Name = Annotated[str, AfterValidator(_file_name)]
"""What a folder or a file is called after."""
CONSENTS = ("overwrite", "trust_remote_code")
"""What only the one who types a command can allow: a recipe may be someone else's."""


class Recipe(BaseModel):
    """Unknown fields are refused; a field's documentation stands under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    paths: ClassVar[tuple[str, ...]] = ()
    """Fields that name data, runs and models."""
    recipes: ClassVar[tuple[str, ...]] = ()
    """Fields that name other recipes."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic would take true for the number 1."""
        there = value if isinstance(value, list | tuple) else [value]
        annotation = cls.model_fields[str(info.field_name)].annotation
        if any(isinstance(one, bool) for one in there) and not {bool, Any} & _types(annotation):
            raise ValueError("must not be true or false")
        return value

    @classmethod
    def read(cls, path: str | Path) -> Self:
        return cls.read_with(path, [])

    @classmethod
    def read_with(cls, path: str | Path, changes: list[str]) -> Self:
        """A recipe by its path or its shipped name, with some fields changed, each as `field=value`."""
        file = find(path)
        try:
            fields = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (
            yaml.YAMLError,
            ValueError,
            RecursionError,
        ) as error:  # ValueError: not UTF-8, or no such date or number
            raise RecurTraceError(f"{file} is not YAML: {brief(error)}") from error
        if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
            raise RecurTraceError(f"{file} holds no fields; it needs {cls._needs()}.")
        if given := [name for name in CONSENTS if name in fields]:
            flag = f"--{given[0].replace('_', '-')}"
            raise RecurTraceError(f"{file}: {given[0]} cannot be set in a recipe; pass {flag} with the command.")
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
    def _needs(cls) -> str:
        return ", ".join(name for name, field in cls.model_fields.items() if field.is_required())

    @classmethod
    def check(cls, fields: object, name: str) -> Self:
        if not isinstance(fields, dict):
            raise RecurTraceError(f"{name} holds no fields; it needs {cls._needs()}.")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            said = [_sentence(problem) for problem in error.errors()]
            more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
            raise RecurTraceError(f"{name}: {'; '.join(said[:3])}{more}") from error


def _types(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    return {annotation, *(part for inner in get_args(annotation) for part in _types(inner))}


def with_changes(fields: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Fields with some of them changed, each as `field=value` or `part.field=value`."""
    for change in changes:
        shown = repr(brief(change, 80))
        name, sign, value = change.partition("=")
        if not sign:
            raise RecurTraceError(f"{shown} changes no field; write it as field=value.")
        place = fields
        *parents, last = name.strip().split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise RecurTraceError(f"{shown}: {brief(parent, 80)} has no fields of its own.")
        try:
            place[last] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise RecurTraceError(f"{shown}: {brief(value, 80)!r} is not a YAML value; quote it.") from error
    return fields


def _sentence(problem: object) -> str:
    where = brief(".".join(str(part) for part in problem["loc"]), 60)  # type: ignore[index]
    if problem["type"] == "extra_forbidden":  # type: ignore[index]
        return f"there is no field {where!r}"
    reason = problem["msg"].removeprefix("Value error, ")  # type: ignore[index]
    return f"{where}: {reason[:1].lower()}{reason[1:]} (got {_short(problem['input'])})" if where else reason  # type: ignore[index]


def _short(value: object) -> str:
    """A value as an error shows it; one that holds others is not spelled out, since aliases make it endless."""
    return brief(repr(value), 80) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
