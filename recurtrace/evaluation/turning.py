"""Examples whose answer turns with depth: right after few loops and wrong after many, or the other way round."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from transformers import PreTrainedTokenizerBase

from recurtrace.data.collate import IGNORED, Encoder, collate_aligned, padding_id
from recurtrace.data.example import Example
from recurtrace.model import RecurTraceForCausalLM

DEPTHS = (2, 4, 8, 16)


def turning(
    model: RecurTraceForCausalLM, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], batch_size: int = 16
) -> Iterator[list[tuple[Example, bool]]]:
    """Batch by batch, the examples that turn once, each with whether it turns right. Right is the likeliest answer."""
    encoded = Encoder(tokenizer, max_length=1024, end=None)(examples)
    for start in range(0, len(encoded), batch_size):
        part = encoded[start : start + batch_size]
        batch, _ = collate_aligned(part, padding_id(tokenizer))
        labels = batch.pop("labels").roll(-1, dims=1).to(model.device)
        labels[:, -1] = IGNORED
        inputs = {name: values.to(model.device) for name, values in batch.items()}
        rights = []
        for depth in DEPTHS:
            with torch.inference_mode():
                likeliest = model(**inputs, loops=depth, use_cache=False).logits.argmax(-1)
            rights.append(((likeliest == labels) | (labels == IGNORED)).all(dim=1))
        rows = zip(part, torch.stack(rights, dim=1).tolist(), strict=True)
        yield [(item.source, right[-1]) for item, right in rows if sum(a != b for a, b in pairwise(right)) == 1]
