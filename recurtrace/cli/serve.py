"""`recurtrace serve`: vLLM's OpenAI server for a looped model."""

from typing import Annotated

import typer

from recurtrace.cli.generate import parse_loops


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model, merged or adapter.")],
    loops: Annotated[str | None, typer.Option(help="Depth: a number, or adaptive. Default: the model's own.")] = None,
    max_loops: Annotated[
        int | None, typer.Option(min=1, help="Most loops of any request; keys and values are kept for so many.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Adaptive: the halting head's name, if not the model's own.")] = None,
    base: Annotated[str | None, typer.Option(help="Where the base is, if not where the adapter says.")] = None,
) -> None:
    """Serve a looped model with vLLM: the OpenAI API, continuous batching, each request at its own depth.

    Options that are not listed are vLLM's own (`vllm serve --help`): `--port 8001 --tensor-parallel-size 2 …`.
    A request chooses its depth with `"vllm_xargs": {"loops": 4}`; the answer says it under `kv_transfer_params`.
    """
    from recurtrace.serving.launch import command_line, launch, require_vllm

    asked = {"loops": parse_loops(loops), "max_loops": max_loops, "head": head, "base_model_name_or_path": base}
    arguments, said = command_line(model, asked, context.args)
    require_vllm()
    typer.echo(said)
    launch(arguments)
