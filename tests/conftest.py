"""Small random models of every family: the mathematics does not depend on their size."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from recurtrace import RecurTraceForCausalLM
from recurtrace.data.little_world import build_tokenizer
from recurtrace.data.synthetic import Sizes
from recurtrace.halting.sweep_files import SweepItem
from recurtrace.model.families import FAMILIES

VOCABULARY = 97
LAYERS = 6
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
SIZES = {"symbols": 24, "test_symbols": 8, "mapping": 4, "registers": 2, "largest_start": 10, "modulus": 11}
LOOP = {"loop_start": 2, "loop_attn_head_dim": 8}

settings.register_profile("recurtrace", deadline=None, max_examples=15, derandomize=True)
settings.load_profile("recurtrace")
torch.set_num_threads(1)


def tiny_base(family: str = "qwen3", attention: str = "sdpa", seed: int = 0, **fields: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**TINY, **fields})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def stir(model: RecurTraceForCausalLM, seed: int = 1, halting: bool = True) -> RecurTraceForCausalLM:
    """Loop modules as if trained: every path open, every weight its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.loop.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        if halting:
            model.loop.halting.weight.mul_(3)
    model.config.loop_halting_trained = halting
    return model


def tiny_looped(family: str = "qwen3", attention: str = "sdpa", **fields: Any) -> RecurTraceForCausalLM:
    loop = {name: fields.pop(name) for name in list(fields) if name.startswith("loop_")}
    return stir(RecurTraceForCausalLM.from_base(tiny_base(family, attention, **fields), **{**LOOP, **loop}))


def sweep_items(count: int, prefix: str = "", seeds: Sequence[int] | None = None, **fields: Any) -> list[SweepItem]:
    """Items of a sweep that was made up."""
    common = {
        "task": "t",
        "bucket": "",
        "prompt_hash": "",
        "reference": "",
        "answer_tokens": 1,
        "answers": [],
        **fields,
    }
    seeds = [-1] * count if seeds is None else seeds
    return [SweepItem(id=f"{prefix}{i}", seed=int(seeds[i]), **common) for i in range(count)]


def tokens(*shape: int, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, shape, generator=generator)


def byte_tokenizer(bos: bool = False, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """One token for a byte, as in byte-level BPE before any merge; 256 bytes and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<bos>", "<eos>", *alphabet, *("".join(pair) for pair in merges)]
    model = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, list(merges)))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    if bos:
        model.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """Every test works in a folder of its own: what it writes without naming a place does not stay in the project."""
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="session")
def looped() -> Callable[..., RecurTraceForCausalLM]:
    """One model per family and attention for the whole session; tests must not change it."""
    made: dict[tuple, RecurTraceForCausalLM] = {}

    def get(family: str = "qwen3", attention: str = "sdpa") -> RecurTraceForCausalLM:
        if (family, attention) not in made:
            made[family, attention] = tiny_looped(family, attention)
        return made[family, attention]

    return get


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "base"
    tokenizer = build_tokenizer(Sizes(**SIZES))
    tiny_base(vocab_size=len(tokenizer), eos_token_id=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


every_family = pytest.mark.parametrize("family", FAMILIES)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])
