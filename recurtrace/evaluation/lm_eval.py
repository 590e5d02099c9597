"""RecurTrace models in lm-evaluation-harness.

    recurtrace lm-eval run --model recurtrace --model_args pretrained=DIR,loops=adaptive --tasks …

The harness's own Hugging Face model does the work, here at a depth. The harness finds models in its registry and has no
entry points for others, so importing this module is what registers RecurTrace.
"""

from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from recurtrace.depths import parse_depth
from recurtrace.model import RecurTraceForCausalLM
from recurtrace.model.base import announced_base
from recurtrace.model.depth import check_loops
from recurtrace.model.loading import find_device
from recurtrace.model.tokenizer import load_tokenizer


@register_model("recurtrace")
class RecurTraceLM(HFLM):
    """`pretrained`: folder or hub id; `loops`: a number or adaptive; `head`: a halting head by name."""

    def __init__(
        self,
        pretrained: str,
        loops: int | str | None = None,
        head: str | None = None,
        base: str | None = None,
        device: str | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        **options: Any,
    ):
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            device = None  # the harness asks for cuda:0 where the user asked for nothing
        place = find_device(device or "auto")
        trust = {"trust_remote_code": trust_remote_code}
        model = RecurTraceForCausalLM.from_pretrained(pretrained, base=base, dtype=dtype, **trust).to(place)
        named = model.config.base_model_name_or_path
        own = base or (announced_base(named, pretrained) if named else None)
        tokenizer = load_tokenizer(pretrained, own, **trust)
        asked = check_loops(parse_depth(loops), model.config, 1, head)
        super().__init__(pretrained=model, tokenizer=tokenizer, device=str(place), **options)
        self.head = head
        self.loops: Any = asked

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.model(inps, loops=self.loops, use_cache=False).logits

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        return super()._model_generate(context, max_length, stop, loops=self.loops, head=self.head, **options)

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Any]:
        """At adaptive depth each context chooses its own, and requests of one depth are scored together."""
        if self.loops != "adaptive":
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        depths = self._depths([context for _, context, _ in requests])
        found: list[Any] = [None] * len(requests)
        try:
            for depth in sorted(set(depths)):
                rows = [i for i, own in enumerate(depths) if own == depth]
                self.loops = depth
                answers = super()._loglikelihood_tokens([requests[i] for i in rows], disable_tqdm, override_bs)
                for i, answer in zip(rows, answers, strict=True):
                    found[i] = answer
        finally:
            self.loops = "adaptive"
        return found

    def _depths(self, contexts: list[list[int]]) -> list[int]:
        """What the halting head chooses for each context, without what follows it."""
        chosen: dict[tuple[int, ...], int] = {}
        unique = sorted({tuple(context[-self.max_length :]) for context in contexts}, key=len)
        size = self.batch_size if isinstance(self.batch_size, int) and self.batch_size > 0 else 8
        for start in range(0, len(unique), size):
            batch = unique[start : start + size]
            longest = max(map(len, batch))
            ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in batch], device=self.device)
            mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in batch], device=self.device)
            with torch.no_grad():
                out = self.model(ids, attention_mask=mask, loops="adaptive", head=self.head, return_logits=False)
            chosen |= dict(zip(batch, out.depths.tolist(), strict=True))
        return [chosen[tuple(context[-self.max_length :])] for context in contexts]
