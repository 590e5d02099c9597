"""What a run would take, without loading it: counted on the meta device.

Activations are an estimate from the shapes that a decoder layer keeps for backward; everything else is counted.
"""

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from recurtrace.errors import RecurTraceError
from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.model.base import read_base_config
from recurtrace.model.cost import cost_of
from recurtrace.model.families import QWEN3
from recurtrace.model.labelled_loss import CHUNK_LOGITS
from recurtrace.training.budget import training_macs
from recurtrace.training.depth_sampler import DepthSampler
from recurtrace.training.methods import fitted, freeze_for_stage_1, loop_config, on_its_base
from recurtrace.training.recipe import TrainRecipe

logger = logging.getLogger(__name__)

_ADAM_BYTES = 8  # two moments in float32
PAPER_BASES = {f"Qwen/Qwen3-{name}-Base": scale for name, scale in QWEN3.items()}


@dataclass(frozen=True)
class Estimate:
    """Bytes are of one process with everything unsharded."""

    parameters: int
    trained: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """Kept for backward in one forward pass at the largest training depth, and the logits that exist at once."""
    tokens: int | None
    """Of the whole run; None if it is counted in epochs of data that is not packed yet."""
    mean_depth: float
    flops_per_step: float
    """With a label at every position, since the data is not read; the LM head's part shrinks with the labels."""
    steps: int | None
    max_length: int
    """Tokens in one sequence, at most the base's positions."""

    def memory(self, processes: int = 1, shard_optimizer: bool = False, shard_weights: bool = False) -> int:
        """Bytes on one device when ZeRO-2 (`shard_optimizer`) or FSDP (`shard_weights` too) spreads them."""
        state = (self.gradient_bytes + self.optimizer_bytes) // (processes if shard_optimizer or shard_weights else 1)
        return self.weight_bytes // (processes if shard_weights else 1) + state + self.activation_bytes


def shape_of_base(name: str, **hub: Any) -> PreTrainedConfig:
    """The base's config; where one of the paper's bases cannot be fetched, the shape that is known of it."""
    if name in PAPER_BASES and not Path(name).exists() and _is_out_of_reach(name, **hub):
        return PAPER_BASES[name].config()
    return read_base_config(name, **hub)


@cache
def _is_out_of_reach(name: str, **hub: Any) -> bool:
    """Asked and said once: a plan reads the base for every run."""
    try:
        read_base_config(name, **hub)
    except RecurTraceError as error:
        logger.warning("%s The estimate takes its shape from what recurtrace knows of it.", error)
        return True
    return False


def estimate(recipe: TrainRecipe) -> Estimate:
    recipe = on_its_base(recipe)
    base_config = shape_of_base(recipe.base, **recipe.hub)
    config = loop_config(recipe, base_config)
    recipe = fitted(recipe, base_config)
    cost = cost_of(config)
    with torch.device("meta"):
        model = RecurTraceForCausalLM(config)
    freeze_for_stage_1(model, recipe.counts_block)
    base, added = cost.parameters.base, sum(p.numel() for p in model.parameters() if p.requires_grad)
    looped = recipe.method in ("loop", "plain_loop")
    parameters = base + (cost.parameters.added if looped else 0 if recipe.method == "full" else added)
    trained = base if recipe.method == "full" else added
    frozen_bytes = 2 if recipe.precision == "bf16" else 4
    sampler = DepthSampler.of(config, recipe.seed)
    depths = [sampler(index) if looped else 1 for index in range(2000)]
    context = recipe.max_length / 2
    macs = [
        training_macs(cost, recipe.method, depth, context, config.block.start, recipe.counts_block).total
        for depth in depths
    ]
    tokens_per_step = recipe.batch_size * recipe.max_length
    return Estimate(
        parameters=parameters,
        trained=trained,
        weight_bytes=(parameters - trained) * frozen_bytes + trained * 4,
        gradient_bytes=trained * 4,
        optimizer_bytes=trained * _ADAM_BYTES,
        activation_bytes=_activations(recipe, config, base_config, config.loop_train_max if looped else 1),
        tokens=recipe.steps * tokens_per_step if recipe.steps else None,
        mean_depth=sum(depths) / len(depths),
        flops_per_step=2 * tokens_per_step * sum(macs) / len(macs),
        steps=recipe.steps,
        max_length=recipe.max_length,
    )


def _activations(recipe: TrainRecipe, config: RecurTraceConfig, base: PreTrainedConfig, depth: int) -> int:
    """States, projections and MLP of every layer that is propagated through, and a chunk of logits three times.

    In float32: the logits, their log-softmax and their gradient.
    """
    tokens = recipe.micro_batch_size * recipe.max_length
    size = 2 if recipe.precision == "bf16" else 4
    heads = base.num_attention_heads + 2 * base.num_key_value_heads
    head_dim = getattr(base, "head_dim", None) or base.hidden_size // base.num_attention_heads
    of_layer = size * (6 * base.hidden_size + 2 * heads * head_dim + 4 * base.intermediate_size)
    of_memory = size * (8 * base.hidden_size + 6 * config.loop_attn_num_heads * config.loop_attn_head_dim)
    after = base.num_hidden_layers - config.block.stop
    first = {"full": base.num_hidden_layers, "adapter": after + config.loop_num_layers}
    passes = first.get(recipe.method, after + (depth - (0 if recipe.train_block else 1)) * config.loop_num_layers)
    memories = (depth - 1) * config.loop_num_layers if recipe.method == "loop" else 0
    if recipe.gradient_checkpointing:
        of_layer = size * base.hidden_size  # a layer's input; the rest is computed again
    logits = 3 * 4 * min(tokens * base.vocab_size, CHUNK_LOGITS)
    return tokens * (passes * of_layer + memories * of_memory) + logits
