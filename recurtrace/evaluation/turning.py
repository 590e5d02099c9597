"""Examples whose answer turns with depth: right after few loops and wrong after many, or the other way round."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from recurtrace.data.collate import IGNORED, Encoder, collate_aligned, padding_id
from recurtrace.data.example import Example
from recurtrace.model import RecurTraceCache, RecurTraceForCausalLM

DEPTHS = (2, 4, 8, 16)


def turning(
    model: RecurTraceForCausalLM, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], batch_size: int = 4
) -> Iterator[list[tuple[Example, bool]]]:
    """Batch by batch, the examples that turn once, each with whether it turns right. Right is the likeliest answer."""
    encoded = Encoder(tokenizer, max_length=1024, end=None)(examples)
    for start in range(0, len(encoded), batch_size):
        part = encoded[start : start + batch_size]
        batch, _ = collate_aligned(part, padding_id(tokenizer))
        rows = zip(part, rights(model, batch).tolist(), strict=True)
        yield [(item.source, right[-1]) for item, right in rows if sum(a != b for a, b in pairwise(right)) == 1]


def rights(model: RecurTraceForCausalLM, batch: dict[str, Tensor]) -> Tensor:
    """Whether each row is answered right at each depth [b, depths], from one pass.

    The LM head runs only where a token of an answer is predicted.
    """
    inputs = {name: values.to(model.device) for name, values in batch.items()}
    targets = inputs.pop("labels").roll(-1, dims=1)
    targets[:, -1] = IGNORED
    labelled = targets != IGNORED
    cache = RecurTraceCache(model.config)
    found: list[Tensor] = []

    def visit(t: int, h: Tensor, decode: Callable[[RecurTraceCache], Tensor]) -> bool:
        if t in DEPTHS:
            likeliest = model.lm_head(decode(cache.fork(t))[labelled]).argmax(-1)
            wrong = torch.zeros_like(labelled)
            wrong[labelled] = likeliest != targets[labelled]
            found.append(~wrong.any(dim=1))
        return True

    with torch.inference_mode():
        model.unroll(**inputs, loops=DEPTHS[-1], cache=cache, visit=visit)
    return torch.stack(found, dim=1)
