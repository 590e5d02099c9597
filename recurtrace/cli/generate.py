"""`recurtrace generate`: continue a prompt at a fixed or adaptive depth."""

import sys
import time
from typing import Annotated

import typer

from recurtrace.cli.options import Dtype
from recurtrace.errors import RecurTraceError


def generate(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a looped model.")],
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    loops: Annotated[str | None, typer.Option(help="Depth: a number, or adaptive. Default: the model's own.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus for sampling.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed for sampling.")] = 0,
    head: Annotated[str | None, typer.Option(help="Adaptive: the halting head's name, if not the model's own.")] = None,
    min_depth: Annotated[int | None, typer.Option(help="Adaptive: floor of the depth.")] = None,
    max_depth: Annotated[int | None, typer.Option(help="Adaptive: budget of the depth.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Adaptive: stop below this probability to continue.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap the prompt in the tokenizer's chat template.")] = False,
    base: Annotated[str | None, typer.Option(help="Where the base is, if not where the adapter says.")] = None,
    check_base: Annotated[bool, typer.Option(help="Refuse a base with other weights than the adapter's.")] = True,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights: auto is the checkpoint's own.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …; auto is the best there is.")] = "auto",
) -> None:
    """Continue a prompt; tokens appear as they come, the chosen depth below them."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise RecurTraceError("the prompt is empty; give at least one word.")
    depth = parse_loops(loops)

    import torch
    from transformers import TextStreamer

    from recurtrace.model import RecurTraceCache
    from recurtrace.model.depth import check_request
    from recurtrace.model.loading import load_config, load_looped

    bounds = {"min_depth": min_depth, "max_depth": max_depth, "threshold": threshold}
    check_request(depth, head, bounds, load_config(model), batch_size=1)  # refused before gigabytes are read
    looped, tokenizer = load_looped(model, base, device, check_base=check_base, dtype=dtype)
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


def parse_loops(loops: str | None) -> int | str | None:
    if loops is None or loops == "adaptive":
        return loops
    try:
        return int(loops)
    except ValueError:
        raise RecurTraceError(f"--loops takes a whole number or adaptive, got {loops!r}.") from None
