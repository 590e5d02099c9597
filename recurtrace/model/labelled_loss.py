"""The LM head and its loss at labelled positions only, in chunks of bounded size.

In direct-answer data a few percent of the positions have a label, and the logits of the others are never read. The
gradients of a chunk are taken while its logits exist, in the forward pass: logits are neither kept nor computed twice.

Shapes: b rows · s positions · d hidden size · n labelled positions.
"""

from collections.abc import Iterator
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

IGNORED = -100  # the label of a position without loss, as in transformers
CHUNK_LOGITS = 2**25  # 128 MiB in float32; enough rows at any vocabulary to keep a matrix product busy


@torch.compiler.disable  # how many positions have a label is known at run time only
def labelled_loss(
    head: nn.Linear,
    states: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    shift_labels: Tensor | None = None,
) -> Tensor:
    """The loss that transformers computes from the logits of all positions, without those logits.

    Args:
        head: the LM head, called on some of the states at a time.
        states: [b, s, d] the normed states the head reads.
        labels: [b, s] unshifted, as a causal LM takes them.
        num_items_in_batch: what the summed loss is divided by; None is the number of labels.
        shift_labels: [b, s] labels shifted already, in the place of `labels`.
    """
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    targets = shift_labels.flatten().to(states.device)
    labelled = (targets != IGNORED).nonzero().squeeze(-1)
    states, targets = states.flatten(0, 1).index_select(0, labelled), targets[labelled]  # [n, d], [n]
    items = len(targets) if num_items_in_batch is None else num_items_in_batch
    divisor = torch.as_tensor(items, dtype=torch.float32, device=states.device)

    weights = [weight for weight in head.parameters() if weight.requires_grad]
    if torch.is_grad_enabled() and (states.requires_grad or weights):
        return _LossWithGradients.apply(head, targets, divisor, states, *weights)
    losses = [_summed(head, states[chunk], targets[chunk]) for chunk in head_chunks(head, len(targets))]
    return sum(losses, torch.zeros_like(divisor)) / divisor


class _LossWithGradients(torch.autograd.Function):
    """The summed loss by `divisor`, with the gradients of the states and of the head's weights taken on the way."""

    @staticmethod
    def forward(
        ctx: Any, head: nn.Linear, targets: Tensor, divisor: Tensor, states: Tensor, *weights: nn.Parameter
    ) -> Tensor:
        total = torch.zeros_like(divisor)
        of_states = torch.zeros_like(states)
        of_weights = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]  # sums of many chunks
        for chunk in head_chunks(head, len(targets)):
            with torch.enable_grad():
                read = states[chunk].detach().requires_grad_()  # cut off: a tied head had a part in the states too
                loss = _summed(head, read.view_as(read), targets[chunk])  # module hooks of torch refuse a leaf here
                of_states[chunk], *gradients = torch.autograd.grad(loss / divisor, [read, *weights])
            for sum_of, gradient in zip(of_weights, gradients, strict=True):
                sum_of += gradient
            total += loss.detach()
        ctx.save_for_backward(of_states, *(sum_of.to(w.dtype) for sum_of, w in zip(of_weights, weights, strict=True)))
        return total / divisor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *(gradient * scale for gradient in ctx.saved_tensors)


def head_chunks(head: nn.Linear, positions: int) -> Iterator[slice]:
    """As many positions at a time as the head may see."""
    rows = max(1, CHUNK_LOGITS // head.out_features)
    return (slice(start, start + rows) for start in range(0, positions, rows))


def _summed(head: nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(states).float(), targets, reduction="sum")


def accept_return_logits(base: PreTrainedModel) -> None:
    """Let the forward of a causal LM take `return_logits=False` with labels, as that of a looped model does.

    The model itself is changed, not wrapped: PEFT, DDP, FSDP and DeepSpeed must be able to call its forward.
    """
    with_logits = base.forward

    @wraps(with_logits)
    def forward(self: PreTrainedModel, *args: Any, return_logits: bool = True, **kwargs: Any) -> Any:
        if return_logits:
            return with_logits(*args, **kwargs)
        loss = {name: kwargs.pop(name, None) for name in ("labels", "num_items_in_batch", "shift_labels")}
        states = self.model(*args, **kwargs)
        return CausalLMOutputWithPast(
            loss=labelled_loss(self.lm_head, states.last_hidden_state, **loss),
            past_key_values=states.past_key_values,
            hidden_states=states.hidden_states,
            attentions=states.attentions,
        )

    base.forward = MethodType(forward, base)
