"""vLLM's offline engine as a way to measure examples: greedy answers, and losses from prompt log-probabilities.

For each example and depth one request writes the answer and one scores the reference. States and whole distributions,
which a sweep in torch reads too, are not to be had there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from recurtrace.data.answers import first_line
from recurtrace.data.benchmarks import is_right, longest_answer
from recurtrace.data.collate import Encoded
from recurtrace.errors import RecurTraceError
from recurtrace.halting.measure import Chosen, EndOfAnswer, Measured
from recurtrace.model.base import read_looped_config
from recurtrace.model.heads import folder_fingerprint
from recurtrace.model.tokenizer import load_tokenizer
from recurtrace.serving.checkpoint import base_of_adapter
from recurtrace.serving.launch import require_vllm

_ROOM = 64  # tokens of an answer beside the reference


class OfflineModel:
    """A looped model on vLLM, for `evaluate` and `sweep`."""

    signals: Sequence[str] = ("top_prob", "margin")  # of the next token: what two log-probabilities say

    def __init__(
        self,
        folder: Path,
        deepest: int,
        adaptive: bool,
        head: str | None = None,
        max_length: int = 1024,
        dtype: str = "auto",
    ):
        require_vllm()
        from vllm import LLM
        from vllm import __version__ as vllm_version

        self.config = read_looped_config(folder)
        place = base_of_adapter(str(folder), self.config)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(str(folder), place[0] if place else None)
        self.ends = EndOfAnswer(self.tokenizer)
        self.fingerprint = folder_fingerprint(folder)
        self.versions: Mapping[str, str] = {"vllm": vllm_version}
        if adaptive and deepest > (most := self.config.head_settings(head).max_depth):
            raise RecurTraceError(
                f"vLLM runs fixed and adaptive depths up to the head's budget of {most}, and {deepest} loops are above "
                "it; leave out adaptive, or the deeper loops."
            )
        overrides = {"loops": "adaptive", "head": head} if adaptive else {"loops": deepest}
        longest = min(max_length + _ROOM, self.config.get_text_config().max_position_embeddings)
        self.llm: Any = LLM(
            model=str(folder),
            tokenizer=place[0] if place and not (folder / "tokenizer_config.json").is_file() else None,
            dtype=dtype,
            max_model_len=longest,
            hf_overrides={name: value for name, value in overrides.items() if value is not None},
            enable_prefix_caching=False,  # prompts do not share their beginnings, and scored ones are not reused
        )

    def close(self) -> None:
        """End vLLM's processes."""
        self.llm.llm_engine.engine_core.shutdown()

    def measure(
        self, encoded: Sequence[Encoded], depths: Sequence[int], named: Sequence[Sequence[int | str]] = ()
    ) -> list[Measured]:
        """Every example at every depth; `named` are further depths, one for each example, or "adaptive"."""
        asked = [[*depths, *(one[i] for one in named)] for i in range(len(encoded))]
        pairs = [(item, loops) for item, own in zip(encoded, asked, strict=True) for loops in own]
        written = self._written(pairs)
        scored = self._scored([(item, depth) for (item, _), (_, depth) in zip(pairs, written, strict=True)])
        found = []
        width = len(depths) + len(named)
        for i, item in enumerate(encoded):
            own = slice(i * width, (i + 1) * width)
            answers, reached = zip(*written[own], strict=True)
            right = [is_right(item.source, answer) for answer in answers]
            arrays = {name: np.array([one[name] for one in scored[own]], dtype=np.float32) for name in scored[0]}
            chosen = [
                Chosen(reached[j], answers[j], float(arrays["loss"][j]), right[j]) for j in range(len(depths), width)
            ]
            fixed = {name: values[: len(depths)] for name, values in arrays.items()}
            found.append(Measured(list(answers[: len(depths)]), np.array(right[: len(depths)]), fixed, chosen))
        return found

    def _written(self, pairs: Sequence[tuple[Encoded, Any]]) -> list[tuple[str, int]]:
        """Greedy answers, and the depths they were written at."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=0,
                max_tokens=longest_answer(item.source),
                stop=["\n"],
                ignore_eos=True,
                stop_token_ids=[self.tokenizer.eos_token_id],
                extra_args={"loops": loops},
            )
            for item, loops in pairs
        ]
        prompts = [item.input_ids[: item.prompt_length] for item, _ in pairs]
        outputs = self._generate(prompts, params)
        return [
            (first_line(self.ends.text(out.outputs[0].token_ids)), out.kv_transfer_params["loops"]) for out in outputs
        ]

    def _scored(self, pairs: Sequence[tuple[Encoded, int]]) -> list[dict[str, float]]:
        """Means over the reference's tokens, without the end of the text, and what its first position says."""
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, extra_args={"loops": depth})
            for _, depth in pairs
        ]
        outputs = self._generate([item.input_ids[:-1] for item, _ in pairs], params)
        return [_means(item, out.prompt_logprobs) for (item, _), out in zip(pairs, outputs, strict=True)]

    def _generate(self, prompts: list[list[int]], params: list[Any]) -> list[Any]:
        return self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def _means(item: Encoded, log_probs: list[Any]) -> dict[str, float]:
    rows = []
    for position in range(item.prompt_length, len(item.input_ids) - 1):
        likeliest = sorted((one.logprob for one in log_probs[position].values()), reverse=True)
        own = log_probs[position][item.input_ids[position]]
        first, second = np.exp(likeliest[0]), np.exp(likeliest[1])
        rows.append((-own.logprob, float(own.rank == 1), first, first - second))
    loss, right, top, margin = np.mean(rows, axis=0)
    means = {"loss": loss, "token_accuracy": right, "mean_top_prob": top, "mean_margin": margin}
    return {**means, "top_prob": rows[0][2], "margin": rows[0][3]}
