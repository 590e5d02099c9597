"""Recipes: YAML files checked field by field, so that a typing error costs a sentence and not a run."""

from pathlib import Path
from typing import Self

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
    def check(cls, fields: object, name: str) -> Self:
        if not isinstance(fields, dict):
            raise RecurTraceError(f"{name} holds no fields; it needs {', '.join(cls.model_fields)}.")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise RecurTraceError(f"{name}: " + "; ".join(_sentence(problem) for problem in error.errors())) from error


def _sentence(problem: object) -> str:
    where = ".".join(str(part) for part in problem["loc"])  # type: ignore[index]
    if problem["type"] == "extra_forbidden":  # type: ignore[index]
        return f"there is no field {where!r}"
    reason = problem["msg"].removeprefix("Value error, ")  # type: ignore[index]
    return f"{where}: {reason[:1].lower()}{reason[1:]} (got {problem['input']!r})" if where else reason  # type: ignore[index]
