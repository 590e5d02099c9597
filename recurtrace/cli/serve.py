"""`recurtrace serve`: vLLM's OpenAI server for a looped model."""

from typing import Annotated

import typer

from recurtrace.assets import place
from recurtrace.depths import parse_depth


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model, merged or adapter.")],
    loops: Annotated[
        str | None,
        typer.Option(
            help="Depth: a number, or adaptive. Default: adaptive if the model has a head, otherwise its fixed depth."
        ),
    ] = None,
    max_loops: Annotated[
        int | None,
        typer.Option(min=1, help="Largest depth of any request; memory for keys and values is reserved for it."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Adaptive: name of the halting head. Default: the model's own head.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Folder or hub id of the base. Default: the one that the adapter names.")
    ] = None,
) -> None:
    """Serve a looped model with vLLM: the OpenAI API, continuous batching, each request at its own depth.

    Options that are not listed are vLLM's own (`vllm serve --help`): `--port 8001 --tensor-parallel-size 2 …`.
    A request chooses its depth with `"vllm_xargs": {"loops": 4}`; the response reports it in `kv_transfer_params`.
    """
    from recurtrace.serving.launch import command_line, launch, require_vllm

    asked = {"loops": parse_depth(loops), "max_loops": max_loops, "head": head, "base_model_name_or_path": base}
    arguments, said = command_line(place(model), asked, context.args)
    require_vllm()
    typer.echo(said)
    launch(arguments)
