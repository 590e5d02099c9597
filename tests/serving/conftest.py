"""Small random models in folders, what `generate` says of them, and vLLM engines on them."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from recurtrace import RecurTraceForCausalLM
from tests.conftest import byte_tokenizer, stir, tiny_base

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

SIZES = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the least that vLLM's CPU attention has
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}
NEW_TOKENS = 12


class Served:
    """A model folder, and the model that `generate` is asked of."""

    def __init__(self, folder: Path, family: str, merged: bool = True):
        self.folder, self.base = folder / "model", folder / "base"
        tiny_base(family, **SIZES).save_pretrained(self.base)
        byte_tokenizer().save_pretrained(self.base)
        self.model = stir(RecurTraceForCausalLM.from_base(str(self.base), loop_start=2, loop_attn_head_dim=16))
        bounds = {"loop_halting_min_depth": 1, "loop_halting_max_depth": 6, "loop_halting_trained": True}
        self.model.config.override(bounds)
        self.model.save_pretrained(self.folder, merge_base=merged)
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = "{{ messages[0].content }}"
        tokenizer.save_pretrained(self.folder)
        self._centre_head()

    def _centre_head(self) -> None:
        """A head that stops different prompts at different depths: its bias is where their logits lie."""
        from dataclasses import replace

        from recurtrace.model.heads import read_head, write_head

        seen = [
            self.model(torch.tensor([prompt]), loops="adaptive", threshold=0.0).continue_probs for prompt in prompts(24)
        ]
        head = read_head(self.folder, None)
        bias = head.bias - torch.logit(torch.cat([p.flatten() for p in seen]), eps=1e-6).median()
        write_head(self.folder, None, replace(head, bias=bias))
        self.model.loop.halting.bias.data.copy_(bias)

    def generate(
        self, asked: list[list[int]], loops: int | str, new_tokens: int = NEW_TOKENS
    ) -> tuple[list[list[int]], list[int]]:
        """Greedy tokens and depths, of a batch padded on the left."""
        longest = max(map(len, asked))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in asked])
        out = self.model.generate(
            ids,
            attention_mask=(
                torch.arange(longest) >= torch.tensor([[longest - len(prompt)] for prompt in asked])
            ).long(),
            loops=loops,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            return_dict_in_generate=True,
        )
        return out.sequences[:, longest:].tolist(), list(out.past_key_values.depths)

    def compare(
        self,
        asked: list[list[int]],
        loops: int | str,
        got: list[list[int]],
        depths: list[int],
        new_tokens: int = NEW_TOKENS,
    ) -> None:
        """Tokens and depths are those of `generate`, up to ties."""
        want, wanted = self.generate(asked, loops, new_tokens)
        assert depths == wanted
        self.same_up_to_ties(asked, want, got, depths)

    def same_up_to_ties(
        self, asked: list[list[int]], want: list[list[int]], got: list[list[int]], depths: list[int]
    ) -> None:
        differ = [i for i in range(len(asked)) if got[i] != want[i]]
        assert len(differ) <= len(asked) // 20
        for i in differ:
            assert self._is_tie(asked[i], want[i], got[i], depths[i]), (asked[i], want[i], got[i], depths[i])

    def _is_tie(self, prompt: list[int], want: list[int], got: list[int], depth: int) -> bool:
        """Whether the first token that differs had a rival within 1e-4 of its logit."""
        at = next(i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a != b)
        logits = self.model(torch.tensor([prompt + want[:at]]), loops=depth).logits[0, -1]
        return abs(float(logits[want[at]] - logits[got[at]])) < 1e-4


def prompts(count: int, seed: int = 0, longest: int = 90) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(3, SIZES["vocab_size"], (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    made: dict[tuple[str, bool], Served] = {}

    def get(family: str = "qwen3", merged: bool = True) -> Served:
        if (family, merged) not in made:
            made[family, merged] = Served(tmp_path_factory.mktemp(family), family, merged)
        return made[family, merged]

    return get


@contextmanager
def engine(folder: Path, loops: Any = None, overrides: dict[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """vLLM on a folder; its processes are gone afterwards."""
    from vllm import LLM

    settings = {
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 16,
        "block_size": 32,
        "disable_log_stats": False,
    }
    given = {**({} if loops is None else {"loops": loops}), **(overrides or {})}
    llm = LLM(model=str(folder), hf_overrides=given, **{**settings, **options})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def complete(
    llm: Any, asked: list[list[int]], loops: Any = None, new_tokens: int = NEW_TOKENS
) -> tuple[list[list[int]], list[int]]:
    """Greedy tokens and depths; `loops` is one for all or a list."""
    from vllm import SamplingParams

    each = loops if isinstance(loops, list) else [loops] * len(asked)
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=new_tokens,
            ignore_eos=True,
            extra_args=None if depth is None else {"loops": depth},
        )
        for depth in each
    ]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in asked], params, use_tqdm=False)
    return [list(out.outputs[0].token_ids) for out in outputs], [out.kv_transfer_params["loops"] for out in outputs]


def metric(llm: Any, name: str) -> Any:
    found = [one for one in llm.get_metrics() if one.name == f"vllm:{name}"]
    return found[0].value if hasattr(found[0], "value") else found[0]
