"""`recurtrace info`: what a looped model is and what each depth costs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import typer

from recurtrace.assets import place
from recurtrace.cli.options import TrustRemoteCode
from recurtrace.config_file import check_sizes, read_config_file
from recurtrace.errors import RecurTraceError
from recurtrace.shape import Shape, shape_in_file


def info(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model, or of a base to be converted.")],
    context: Annotated[int, typer.Option(min=1, help="Context length for which FLOPs are stated.")] = 512,
    loop_start: Annotated[int | None, typer.Option(help="For a base: the first looped layer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show block, added parameters, and K/V bytes and FLOPs at each depth. Reads the config only, no weights."""
    from recurtrace.cli.describe import describe, facts

    shape = _looped_folder(Path(place(model))) if loop_start is None else None
    shape = shape or _any_model(model, loop_start, trust_remote_code)
    if as_json:
        typer.echo(json.dumps(facts(shape, context), indent=2))
    else:
        describe(shape, context)


def _looped_folder(folder: Path) -> Shape | None:
    """What the config.json of a looped model says, at once; what is not as usual there is left to the model's code."""
    file = folder / "config.json"
    found = read_config_file(file, str(folder)) if file.is_file() else {}
    shape = shape_in_file(found)
    if shape is not None:
        check_sizes(SimpleNamespace(**found["text_config"]), str(folder))
    return shape


def _any_model(model: str, loop_start: int | None, trust_remote_code: bool) -> Shape:
    from recurtrace.model import RecurTraceConfig
    from recurtrace.model.base import read_config
    from recurtrace.model.cost import shape_of
    from recurtrace.model.families import check_family, choose_block

    config = read_config(place(model), trust_remote_code=trust_remote_code)
    if not isinstance(config, RecurTraceConfig):
        check_family(config)
        start = choose_block(config, loop_start)
        config = RecurTraceConfig(text_config=config, base_model_name_or_path=model, loop_start=start)
    elif loop_start is not None:
        raise RecurTraceError(f"{model!r} is looped already, from layer {config.loop_start}; leave out --loop-start.")
    return shape_of(config)
