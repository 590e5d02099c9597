"""Options made from config fields: their type, default and documentation are read from the source of the config.

Read, not imported: so that `--help` answers at once.
"""

import ast
import inspect
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

import recurtrace

CONFIG_SOURCE = Path(recurtrace.__file__).parent / "model" / "configuration_recurtrace.py"
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


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


def config_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each named field of `RecurTraceConfig`; it gets those that were set."""
    fields = documented_fields(CONFIG_SOURCE, "RecurTraceConfig")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = []
        for name in names:
            annotation, default, text = fields[name]
            flag = name.replace("_", "-")
            flags = f"--{flag}/--no-{flag}" if annotation == "bool" else f"--{flag}"
            value = ("on" if default else "off") if annotation == "bool" else default
            shown = f" [default: {value}]" if value is not None else ""
            option = typer.Option(flags, help=text + shown, show_default=False)
            kind = Annotated[_TYPES[annotation] | None, option]  # type: ignore[valid-type]
            options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

        def run(**given: Any) -> None:
            set_fields = {name: given.pop(name) for name in names}
            command(**given, **{name: value for name, value in set_fields.items() if value is not None})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own] + options
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate
