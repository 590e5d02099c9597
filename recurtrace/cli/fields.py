"""Options made from documented fields: those of a stage's settings, and those of the model's config.

The config is read, not imported, so that `--help` answers at once.
"""

import ast
import inspect
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

import recurtrace
from recurtrace.depths import format_depths
from recurtrace.stages.settings import StageSettings

CONFIG_SOURCE = Path(recurtrace.__file__).parent / "model" / "configuration_recurtrace.py"
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
Command = Callable[..., None]


def stage_command(settings_type: type[StageSettings]) -> Callable[[Command], Command]:
    """Give a command an option for each setting of its stage; it gets the settings, checked."""

    def decorate(command: Command) -> Command:
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
        fields = settings_type.model_fields
        parameters = [*(_parameter(name, fields[name], settings_type) for name in _ordered(settings_type)), *own]

        def run(**given: Any) -> None:
            rest = {parameter.name: given.pop(parameter.name) for parameter in own}
            asked = {name: value for name, value in given.items() if value is not None}
            command(settings_type.check(asked, f"the settings of {command.__name__}"), **rest)

        return _with_signature(run, command, parameters)

    return decorate


def config_options(*names: str) -> Callable[[Command], Command]:
    """Give a command an option for each named field of `RecurTraceConfig`; it gets those that were set."""
    known = documented_fields(CONFIG_SOURCE, "RecurTraceConfig")

    def decorate(command: Command) -> Command:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = []
        for name in names:
            annotation, default, text = known[name]
            option = typer.Option(_flags(name, annotation == "bool"), help=text + _default(default), show_default=False)
            kind = Annotated[_TYPES[annotation.removesuffix(" | None")] | None, option]  # type: ignore[valid-type]
            options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

        def run(**given: Any) -> None:
            fields = {name: given.pop(name) for name in names}
            command(**given, **{name: value for name, value in fields.items() if value is not None})

        return _with_signature(run, command, [*own, *options])

    return decorate


def documented_fields(source: Path, class_name: str) -> dict[str, tuple[str, Any, str]]:
    """`{field: (annotation, default, documentation)}` of the fields that have a text under them."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            default = ast.literal_eval(field.value) if field.value is not None else None
            found[ast.unparse(field.target)] = (ast.unparse(field.annotation), default, str(text.value.value))
    return found


def _ordered(settings_type: type[StageSettings]) -> list[str]:
    """Arguments first, then what must be given, then the stage's own settings, then those that stages share."""
    fields = settings_type.model_fields
    own = settings_type.__annotations__

    def rank(name: str) -> tuple[bool, bool, bool]:
        return name not in settings_type.arguments, not fields[name].is_required(), name not in own

    return sorted(fields, key=rank)


def _parameter(name: str, field: FieldInfo, settings_type: type[StageSettings]) -> inspect.Parameter:
    kind, text = _kind(field.annotation), field.description or ""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if "choices" in extra:
        kind = Literal[tuple(extra["choices"])]  # type: ignore[arg-type,valid-type]
    required = field.is_required()
    if name in settings_type.arguments:
        declared: Any = typer.Argument(help=text, show_default=False)
    else:
        shown = "" if required else _default(field.get_default(call_default_factory=True))
        flags = _flags(name, kind is bool)
        declared = typer.Option(flags, help=text + shown, show_default=False)
    annotation = Annotated[kind if required else kind | None, declared]  # type: ignore[valid-type]
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kind(annotation: Any) -> Any:
    """The type typer parses: lists are texts with commas, tables are given entry by entry."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _kind(next(part for part in get_args(annotation) if part is not NoneType))
    if get_origin(annotation) is list:
        return str
    return list[str] if get_origin(annotation) is dict else annotation


def _flags(name: str, switch: bool) -> str:
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if switch else f"--{flag}"


def _default(value: Any) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f" [default: {format_depths(value) if isinstance(value, list) else value}]"


def _with_signature(run: Command, command: Command, parameters: Iterable[inspect.Parameter]) -> Command:
    listed = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
    return run
