"""`recurtrace demo`: a looped model in half a minute, on the embedded base."""

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

WIDE = 100  # characters that the answers at all depths take


def demo() -> None:
    """Show the embedded model's answers at one loop, at more loops and at adaptive depth."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from recurtrace.assets import TINY_BASE, TINY_LOOP
    from recurtrace.data.stories import item
    from recurtrace.model import RecurTraceForCausalLM

    console = Console(highlight=False)
    console.width = max(console.width, WIDE)  # answers are cut off otherwise
    logging.disable_progress_bar()
    base, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_BASE), AutoTokenizer.from_pretrained(TINY_BASE)
    model = RecurTraceForCausalLM.from_pretrained(TINY_LOOP)
    count = sum(parameter.numel() for parameter in base.parameters())
    block = model.config.block
    _say(
        f"1. A Qwen3 of {count / 1e6:.1f} M parameters that has read short stories and was never asked a question; "
        f"layers {block.start}–{block.stop - 1} of its {base.config.num_hidden_layers} are looped."
    )

    examples = [item("where_thing", "test", index, 0, facts) for facts in range(1, 7) for index in range(2)]
    batch = tokenizer([example.prompt for example in examples], return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        same = torch.equal(model(**inputs, loops=1, use_cache=False).logits, base(**inputs, use_cache=False).logits)
    _say(f"\n2. One loop is the base model, bit for bit: {same}")
    if not same:
        raise typer.Exit(1)

    _say("\n3. Stories of people whom stage 1 never met, and where something is in the end (✓ is right). One of them:")
    _say(f"   {examples[4].prompt} → {examples[4].answer}")
    answers, depths = {}, []
    for loops in (1, 2, 3, 4, 6, 8, "adaptive"):
        out = model.generate(**inputs, loops=loops, max_new_tokens=2, do_sample=False, return_dict_in_generate=True)
        new = out.sequences[:, inputs["input_ids"].shape[1] :]
        answers[loops] = [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]
        depths = out.past_key_values.depths
    fixed = [f"T={loops}" for loops in answers if loops != "adaptive"]
    table = Table("asked", "facts", "answer", *fixed, "adaptive", box=SIMPLE, padding=(0, 1))
    for i, example in enumerate(examples):
        cells = ["✓" if given[i] == example.answer else given[i].split()[0] for given in answers.values()]
        cells[-1] += f" ({depths[i]})"
        table.add_row(example.prompt.split()[-1], example.bucket.removeprefix("facts="), example.answer, *cells)
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
