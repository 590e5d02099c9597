"""`recurtrace generate`: continue a prompt at a fixed or adaptive depth."""

import math
import sys
import time
from typing import Annotated

import typer

from recurtrace.assets import place
from recurtrace.cli.options import TrustRemoteCode
from recurtrace.depths import parse_depth
from recurtrace.errors import RecurTraceError, is_unicode
from recurtrace.stages.settings import Dtype


def generate(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model, or embedded/loop.")],
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    loops: Annotated[
        str | None,
        typer.Option(
            help="Depth: a number, or adaptive. Default: adaptive if the model has a head, otherwise its fixed depth."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Largest number of new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Probability mass for nucleus sampling.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed for sampling.")] = 0,
    head: Annotated[
        str | None, typer.Option(help="Adaptive: name of the halting head. Default: the model's own head.")
    ] = None,
    min_depth: Annotated[int | None, typer.Option(help="Adaptive: smallest depth.")] = None,
    max_depth: Annotated[int | None, typer.Option(help="Adaptive: largest depth.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Adaptive: stop once the probability of continuing is below this.")
    ] = None,
    depth_limit: Annotated[
        int | None,
        typer.Option(help="Deepest loop that may be asked for. Default: eight times that of training, at least 64."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the tokenizer's chat template.")] = False,
    base: Annotated[
        str | None, typer.Option(help="Folder or hub id of the base. Default: the one that the adapter names.")
    ] = None,
    check_base: Annotated[
        bool, typer.Option(help="Refuse a base with other weights than the adapter was made on.")
    ] = True,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights; auto keeps that of the checkpoint.")] = "auto",
    device: Annotated[str, typer.Option(help="Device, such as cpu or cuda; auto takes the best available.")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Continue a prompt. Prints tokens as they are generated, then the depth that was run."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise RecurTraceError("the prompt is empty; give at least one word.")
    if not is_unicode(text):
        raise RecurTraceError("the prompt is not valid Unicode; pass it as UTF-8.")
    if not math.isfinite(temperature):
        raise RecurTraceError(f"temperature must be a finite number, got {temperature}.")
    depth = parse_depth(loops)
    model = place(model)

    import torch
    from transformers import TextStreamer

    from recurtrace.model import RecurTraceCache
    from recurtrace.model.base import read_looped_config
    from recurtrace.model.depth import check_request
    from recurtrace.model.loading import load_looped

    bounds = {"min_depth": min_depth, "max_depth": max_depth, "threshold": threshold}
    limit = {"loop_depth_limit": depth_limit} if depth_limit is not None else {}
    trust = {"trust_remote_code": trust_remote_code}
    config = read_looped_config(model, **trust)
    config.override(limit)
    check_request(depth, head, bounds, config, batch_size=1)  # refused before gigabytes are read
    looped, tokenizer = load_looped(model, base, device, check_base=check_base, dtype=dtype, **limit, **trust)
    if chat:
        if not tokenizer.chat_template:
            raise RecurTraceError("this tokenizer has no chat template; leave out --chat.")
        messages = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=not chat).to(looped.device)

    torch.manual_seed(seed)
    cache = RecurTraceCache(looped.config)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p} if temperature else {"do_sample": False}
    began = time.perf_counter()
    ids = looped.generate(
        inputs.input_ids,
        attention_mask=inputs.attention_mask,
        loops=depth,
        head=head,
        **bounds,
        max_new_tokens=max_new_tokens,
        past_key_values=cache,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        **sampling,
    )
    seconds = time.perf_counter() - began
    new = ids.shape[1] - inputs.input_ids.shape[1]
    adaptive = head or "adaptive" in (depth, None if depth else looped.config.default_loops)
    how = f"chosen by the halting head{f' {head}' if head else ''}" if adaptive else "fixed"
    chosen = f"depth {cache.depths[0]} ({how})"  # type: ignore[index]
    typer.secho(f"{chosen} · {new} tokens · {new / seconds:.1f} tokens/s", dim=True, err=True)
