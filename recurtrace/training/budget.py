"""What a step of training costs, by the usual count of multiply-adds; the same for every method."""

from dataclasses import dataclass

from recurtrace.model.cost import Cost


@dataclass(frozen=True)
class Macs:
    """Multiply-adds of one token in one training step, by the usual 2:2:2 of forward and the two backward parts."""

    forward: float
    activations: float
    """Gradients of the states."""
    weights: float
    """Gradients of the weights that are trained."""

    @property
    def total(self) -> float:
        return self.forward + self.activations + self.weights


def training_macs(
    cost: Cost,
    method: str,
    depth: int,
    context: float,
    first_looped: int,
    with_block: bool = False,
    labelled: float = 1.0,
) -> Macs:
    """What a token costs at a depth when it attends to `context` positions.

    `with_block`: the looped layers are trained too, or matched by the adapter's size.
    `labelled` is the part of the tokens whose next one has a label: the LM head is computed there only. Nothing
    is propagated back before the first thing that is trained: the base's encoder, and the first loop of a frozen block.
    """
    attention = 2 * cost.attention_width * context
    back = cost.layer_macs + 2 * attention  # through a layer: attention has two operands with a gradient each
    head = labelled * cost.head_macs
    decoder = (cost.layers - first_looped - cost.looped_layers) * back + head
    if method == "full":
        weights = cost.layers * cost.layer_macs + head
        return Macs(cost.macs(1, context, labelled), cost.layers * back + head, weights)
    if method == "adapter":
        lora = cost.added_macs + (cost.looped_layers * cost.layer_macs if with_block else 0)
        return Macs(cost.macs(1, context, labelled) + lora, decoder + cost.looped_layers * back + lora, lora)
    passes = depth if with_block else depth - 1  # of the block, that are propagated through
    if passes == 0:
        return Macs(cost.macs(depth, context, labelled), 0.0, 0.0)
    through = decoder + passes * cost.looped_layers * back + (depth - 1) * cost.added_macs
    weights = (depth - 1) * cost.added_macs + (passes * cost.looped_layers * cost.layer_macs if with_block else 0)
    return Macs(cost.macs(depth, context, labelled), through, weights)
