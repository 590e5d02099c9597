"""`recurtrace demo`: a looped model in half a minute, on the embedded base."""

import typer
from rich.console import Console
from rich.table import Table


def demo() -> None:
    """Show the embedded model's answers at one loop, at more loops and at adaptive depth."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from recurtrace.assets import TINY_BASE, TINY_LOOP
    from recurtrace.data.little_world import SMALL
    from recurtrace.data.synthetic import TASKS, item
    from recurtrace.model import RecurTraceForCausalLM

    console = Console(highlight=False)
    logging.disable_progress_bar()
    base, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_BASE), AutoTokenizer.from_pretrained(TINY_BASE)
    model = RecurTraceForCausalLM.from_pretrained(TINY_LOOP)
    count = sum(parameter.numel() for parameter in base.parameters())
    _say(
        f"1. A Qwen3 of {count / 1e6:.1f} M parameters, trained here on short problems; layers 3–5 of its 8 are looped."
    )

    examples = [item(task, "test", index, 0, k, SMALL) for task in TASKS for index, k in enumerate((2, 4, 6))]
    batch = tokenizer([example.prompt for example in examples], return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        same = torch.equal(model(**inputs, loops=1, use_cache=False).logits, base(**inputs, use_cache=False).logits)
    _say(f"\n2. One loop is the base model, bit for bit: {same}")
    if not same:
        raise typer.Exit(1)

    _say("\n3. Problems with symbols that stage 1 never saw, answered at several depths (✓ is right):")
    answers, depths = {}, []
    for loops in (1, 2, 4, 8, "adaptive"):
        out = model.generate(**inputs, loops=loops, max_new_tokens=6, do_sample=False, return_dict_in_generate=True)
        new = out.sequences[:, inputs["input_ids"].shape[1] :]
        answers[loops] = [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]
        depths = out.past_key_values.depths
    table = Table(
        "problem", "answer", *(f"{loops} loop{'s' if loops != 1 else ''}" for loops in answers), show_lines=True
    )
    for i, example in enumerate(examples):
        cells = [
            f"{given[i]} {'✓' if given[i] == example.answer else ''}"
            + (f" ({depths[i]})" if loops == "adaptive" else "")
            for loops, given in answers.items()
        ]
        table.add_row(example.prompt, example.answer, *cells)
    console.print(table)

    _say("\n4. What is added at the paper's four scales (counted on the meta device):")
    console.print(_scales())
    _say('\nNext:  recurtrace convert Qwen/Qwen3-0.6B-Base --out looped  ·  recurtrace generate looped "…" --loops 2')


def _scales() -> Table:
    from recurtrace.model import RecurTraceConfig
    from recurtrace.model.cost import cost_of
    from recurtrace.model.families import QWEN3

    table = Table("Qwen3", "looped block", "base", "added", "share", "FLOPs at 2, 4, 8 loops")
    for name, scale in QWEN3.items():
        config = RecurTraceConfig(text_config=scale.config(), loop_start=scale.loop_start)
        cost = cost_of(config)
        table.add_row(
            name,
            f"{config.block.start}–{config.block.stop - 1} of {scale.layers}",
            f"{cost.parameters.base / 1e6:,.1f} M",
            f"{cost.parameters.added / 1e6:,.1f} M",
            f"{cost.parameters.share:.2%}",
            " ".join(f"{cost.decode_ratio(loops, context=512):.2f}×" for loops in (2, 4, 8)),
        )
    return table


def _say(text: str) -> None:
    typer.echo(text)
