"""Small random models of every family: the mathematics does not depend on their size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from recurtrace import RecurTraceForCausalLM
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


@pytest.fixture(scope="session")
def looped() -> Callable[..., RecurTraceForCausalLM]:
    """One model per family and attention for the whole session; tests must not change it."""
    made: dict[tuple, RecurTraceForCausalLM] = {}

    def get(family: str = "qwen3", attention: str = "sdpa") -> RecurTraceForCausalLM:
        if (family, attention) not in made:
            made[family, attention] = tiny_looped(family, attention)
        return made[family, attention]

    return get


every_family = pytest.mark.parametrize("family", FAMILIES)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])
