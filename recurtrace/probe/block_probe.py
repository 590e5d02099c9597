"""Which layers to loop (appendix "Block Selection").

Stage 1 measures how far each layer turns the state of the final token, d(x_ℓ, x_{ℓ+1}) = arccos(cos(x_ℓ, x_{ℓ+1})) / π.
The curve falls through the encoder, is flat in the middle and rises in the decoder; Kneedle finds the two bends, on the
curve and on its mirror image, and the span between them can be looped. Stage 2 runs every window of the span twice and
compares the loss of the answers.

Shapes: b rows · s positions · d hidden size · n layers.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from kneed import KneeLocator
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurtrace.errors import RecurTraceError
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.families import PRESET_NUM_LAYERS
from recurtrace.model.modeling_recurtrace import RecurTraceForCausalLM
from recurtrace.records import Window

Batch = Mapping[str, Tensor]


class DistanceMeter:
    """Angular distances of a base's layers at the final token, summed over inputs."""

    def __init__(self, base: PreTrainedModel):
        self.base = base
        self.inputs = 0
        self._sum = torch.zeros(len(base.model.layers), dtype=torch.float64)
        self._squares = torch.zeros_like(self._sum)

    @torch.inference_mode()
    def add(self, batch: Batch) -> None:
        """`batch` is padded on the right, so that a row's final token is the last of its attention mask."""
        device = self.base.model.embed_tokens.weight.device
        mask = batch["attention_mask"].to(device)
        final = mask.sum(-1) - 1  # [b]
        distances: list[Tensor] = []

        def measure(layer: nn.Module, arguments: tuple, output: Tensor | tuple) -> None:
            states = (arguments[0], output[0] if isinstance(output, tuple) else output)
            before, after = (x[torch.arange(len(x), device=x.device), final.to(x.device)].double() for x in states)
            cosine = F.cosine_similarity(before, after, dim=-1).clamp(-1, 1)  # [b]
            distances.append(torch.arccos(cosine).cpu() / torch.pi)

        hooks = [layer.register_forward_hook(measure) for layer in self.base.model.layers]
        try:
            self.base.model(input_ids=batch["input_ids"].to(device), attention_mask=mask, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        measured = torch.stack(distances, -1)  # [b, n]
        if not measured.isfinite().all():
            raise RecurTraceError("the base gives states that are not finite; load it in another dtype (--dtype).")
        self._sum += measured.sum(0)
        self._squares += measured.square().sum(0)
        self.inputs += len(measured)

    @property
    def means(self) -> list[float]:
        return (self._sum / self.inputs).tolist()

    @property
    def errors(self) -> list[float]:
        variance = (self._squares / self.inputs - (self._sum / self.inputs) ** 2).clamp(min=0)
        return (variance / max(self.inputs - 1, 1)).sqrt().tolist()


def find_span(distances: list[float]) -> tuple[int | None, int | None]:
    """Last layer of the encoder and first of the decoder: the bends of the curve and of its mirror image."""
    encoder_end = _knee(distances)
    mirrored = _knee(distances[::-1])
    decoder_start = len(distances) - 1 - mirrored if mirrored is not None else None
    return encoder_end, decoder_start


def _knee(curve: list[float]) -> int | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kneed warns where it finds none; None says so
        knee = KneeLocator(range(len(curve)), curve, curve="convex", direction="decreasing").knee
    return int(knee) if knee else None  # at the very first layer the curve has not fallen at all


def rank_windows(
    distances: list[float], encoder_end: int | None, decoder_start: int | None, size: int = PRESET_NUM_LAYERS
) -> list[Window]:
    """Windows of `size` layers inside the span by their mean distance, the stillest first.

    A boundary that was not found is the model's own end; a span that is too narrow gives the windows around it.
    """
    n = len(distances)
    if n < size + 2:
        raise RecurTraceError(f"a base of {n} layers is too shallow to loop {size} of them; lower loop_num_layers.")
    first = encoder_end + 1 if encoder_end is not None else 1
    last = decoder_start - 1 if decoder_start is not None else n - 2
    if last - first + 1 < size:  # as near to the span as a window can be
        middle = (first + last) // 2
        first = min(max(1, middle - size + 1), n - 1 - size)
        last = max(min(n - 2, middle + size - 1), first + size - 1)
    starts = range(max(first, 1), min(last, n - 2) - size + 2)
    windows = [Window(start, sum(distances[start : start + size]) / size) for start in starts]
    return sorted(windows, key=lambda window: window.mean_distance)


def named_windows(distances: list[float], starts: Sequence[int], size: int = PRESET_NUM_LAYERS) -> list[Window]:
    """The windows that begin at these layers, the stillest first: controls may lie outside of the span."""
    if outside := [start for start in starts if not 0 <= start <= len(distances) - size]:
        raise RecurTraceError(
            f"a window of {size} layers from layer {outside[0]} is outside of the {len(distances)} layers "
            f"(0–{len(distances) - 1}) of the base; name other windows."
        )
    windows = [Window(start, sum(distances[start : start + size]) / size) for start in starts]
    return sorted(windows, key=lambda window: window.mean_distance)


@torch.inference_mode()
def compare_windows(
    base: PreTrainedModel, windows: list[Window], batches: Iterable[Batch], size: int = PRESET_NUM_LAYERS
) -> tuple[list[Window], float]:
    """The windows by the loss of the answers when each is run twice without memory, and the loss of the base."""
    models = [_plain_loop(base, window.start, size) for window in windows]
    base_total, totals, tokens = 0.0, [0.0] * len(windows), 0
    for batch in batches:
        tokens += int((batch["labels"] != -100).sum())
        base_total += _answer_loss(models[0], batch, loops=1)
        for number, model in enumerate(models):
            totals[number] += _answer_loss(model, batch, loops=2)
    compared = [
        Window(window.start, window.mean_distance, total / tokens)
        for window, total in zip(windows, totals, strict=True)
    ]
    return sorted(compared, key=lambda window: window.nll or 0.0), base_total / tokens


def _plain_loop(base: PreTrainedModel, start: int, size: int) -> RecurTraceForCausalLM:
    config = RecurTraceConfig(text_config=base.config, loop_start=start, loop_num_layers=size, loop_memory=False)
    return RecurTraceForCausalLM._on_base(config, base)


def _answer_loss(model: RecurTraceForCausalLM, batch: Batch, loops: int) -> float:
    """Summed loss of the answers."""
    names = ("input_ids", "attention_mask", "position_ids", "labels")
    inputs: dict[str, Any] = {name: batch[name].to(model.device) for name in names}
    return float(model(**inputs, loops=loops, use_cache=False, return_logits=False, num_items_in_batch=1).loss)
