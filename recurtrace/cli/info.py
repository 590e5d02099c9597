"""`recurtrace info`: what a looped model is and what each depth costs."""

import json
from typing import Annotated

import typer

from recurtrace.assets import place
from recurtrace.errors import RecurTraceError


def info(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model, or of a base to be converted.")],
    context: Annotated[int, typer.Option(min=1, help="Context length for which FLOPs are stated.")] = 512,
    loop_start: Annotated[int | None, typer.Option(help="For a base: the first looped layer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show block, added parameters, and K/V bytes and FLOPs at each depth. Reads the config only, no weights."""
    from recurtrace.cli.describe import describe, facts
    from recurtrace.model import RecurTraceConfig
    from recurtrace.model.base import read_config
    from recurtrace.model.families import check_family, choose_block

    config = read_config(place(model))
    if not isinstance(config, RecurTraceConfig):
        check_family(config)
        start = choose_block(config, loop_start)
        config = RecurTraceConfig(text_config=config, base_model_name_or_path=model, loop_start=start)
    elif loop_start is not None:
        raise RecurTraceError(f"{model!r} is looped already, from layer {config.loop_start}; leave out --loop-start.")
    if as_json:
        typer.echo(json.dumps(facts(config, context), indent=2))
    else:
        describe(config, context)
