"""`recurtrace demo`: the looped model in one minute, on a small base built on the spot."""

import tempfile
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

# The paper's scales: layers, hidden size, MLP width, heads, tied embeddings (8 key/value heads of 128 throughout).
QWEN3_SCALES = {
    "0.6B": (28, 1024, 3072, 16, True),
    "1.7B": (28, 2048, 6144, 16, True),
    "4B": (36, 2560, 9728, 32, True),
    "8B": (36, 4096, 12288, 32, False),
}


def demo() -> None:
    """Convert a small Qwen3 built on the spot, and show what one loop, more loops and adaptive depth do."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    from recurtrace.model import RecurTraceForCausalLM

    console = Console(highlight=False)
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        base_folder, looped_folder = Path(folder) / "base", Path(folder) / "looped"
        tiny = Qwen3Config(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=8, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, eos_token_id=None, initializer_range=0.1,
        )  # fmt: skip
        Qwen3ForCausalLM(tiny).save_pretrained(base_folder)

        _say("1. Convert: layers 3–5 of an 8-layer Qwen3 become the looped block; the base stays as it is.")
        model = RecurTraceForCausalLM.from_base(base_folder, loop_start=3, loop_attn_head_dim=32)
        with torch.no_grad():  # stands in for training: open the memory, give the head something to say
            for name, parameter in model.loop.named_parameters():
                if name.endswith("gate.bias"):
                    parameter.zero_()
            model.loop.halting.weight.normal_(std=0.1)
        model.config.loop_halting_trained = True
        model.save_pretrained(looped_folder)
        size = (looped_folder / "recurtrace.safetensors").stat().st_size
        _say(f"   Saved the loop modules alone: recurtrace.safetensors, {size / 1024:,.0f} KiB.")

        base = AutoModelForCausalLM.from_pretrained(base_folder)
        model = RecurTraceForCausalLM.from_pretrained(looped_folder)
        prompts = torch.randint(0, 512, (6, 12))
        same = torch.equal(model(prompts, loops=1).logits, base(prompts).logits)
        _say(f"\n2. One loop is the base model, bit for bit: {same}")
        if not same:
            raise typer.Exit(1)

        _say("\n3. Generation through the ordinary generate (weights are random, so the tokens mean nothing):")
        table = Table("loops", "depth of each of 6 prompts", "first prompt's new tokens")
        for loops in (1, 2, 4, "adaptive"):
            out = model.generate(prompts, loops=loops, max_new_tokens=8, return_dict_in_generate=True)
            depths = " ".join(map(str, out.past_key_values.depths))
            table.add_row(str(loops), depths, " ".join(map(str, out.sequences[0, -8:].tolist())))
        console.print(table)

    _say("\n4. What is added at the paper's four scales (counted on the meta device):")
    console.print(_scales())
    _say('\nNext:  recurtrace convert Qwen/Qwen3-0.6B-Base --out looped  ·  recurtrace generate looped "…" --loops 2')


def _scales() -> Table:
    from transformers import Qwen3Config

    from recurtrace.model import RecurTraceConfig
    from recurtrace.model.cost import cost_of
    from recurtrace.model.families import choose_block

    table = Table("Qwen3", "looped block", "base", "added", "share", "FLOPs at 2, 4, 8 loops")
    for scale, (layers, hidden, mlp, heads, tied) in QWEN3_SCALES.items():
        base = Qwen3Config(
            vocab_size=151936, num_hidden_layers=layers, hidden_size=hidden, intermediate_size=mlp,
            num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied,
        )  # fmt: skip
        config = RecurTraceConfig(text_config=base, loop_start=choose_block(base))
        cost = cost_of(config)
        table.add_row(
            scale,
            f"{config.block.start}–{config.block.stop - 1} of {layers}",
            f"{cost.parameters.base / 1e6:,.1f} M",
            f"{cost.parameters.added / 1e6:,.1f} M",
            f"{cost.parameters.share:.2%}",
            " ".join(f"{cost.decode_ratio(loops, context=512):.2f}×" for loops in (2, 4, 8)),
        )
    return table


def _say(text: str) -> None:
    typer.echo(text)
