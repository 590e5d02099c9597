"""A looped model's sizes and costs from the numbers in its config.json, without torch.

`model/cost.py` counts the same on the modules themselves, for every model; a test holds one against the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ParameterCount:
    base: int
    added: int

    @property
    def share(self) -> float:
        return self.added / self.base


@dataclass(frozen=True)
class Cost:
    """Unit costs of a looped model. Multiply-adds are per token."""

    parameters: ParameterCount
    layers: int
    looped_layers: int
    layer_macs: int
    """Weights that a token is multiplied with in one decoder layer."""
    added_macs: int
    """Weights that a token is multiplied with in the loop modules, in each loop after the first."""
    head_macs: int
    """Weights of the LM head."""
    attention_width: int
    """Query heads times head width: multiply-adds per attended position, for scores and again for values."""
    kv_values: int
    """Numbers that one layer caches for a token."""

    def layer_passes(self, loops: int) -> int:
        return self.layers + (loops - 1) * self.looped_layers

    def macs(self, loops: int, context: float, head_share: float = 1.0) -> float:
        """Multiply-adds of one token that attends to `context` positions.

        `head_share` is the part of the tokens whose logits are computed: 1 in decoding, 1/n in the prefill of n.
        """
        layer = self.layer_macs + 2 * self.attention_width * context
        return self.layer_passes(loops) * layer + (loops - 1) * self.added_macs + head_share * self.head_macs

    def sweep_macs(self, depths: Sequence[int], tokens: int, labelled: int, before: int) -> float:
        """Multiply-adds of a sequence that is encoded once, looped to the deepest of some depths, and decoded at each.

        Logits are computed at `labelled` positions; `before` layers come before the block.
        """
        deepest = max(depths)
        layer = self.layer_macs + self.attention_width * (tokens + 1)
        passes = before + deepest * self.looped_layers + len(depths) * (self.layers - before - self.looped_layers)
        read = tokens * (passes * layer + (deepest - 1) * self.added_macs)
        return read + len(depths) * labelled * self.head_macs

    def decode_ratio(self, loops: int, context: int) -> float:
        """FLOPs of one new token after `context` others, against the base's."""
        return self.macs(loops, context + 1) / self.macs(1, context + 1)

    def prefill_ratio(self, loops: int, length: int) -> float:
        """FLOPs of reading a prompt up to its first next token, against the base's."""
        mean_context = (length + 1) / 2
        return self.macs(loops, mean_context, 1 / length) / self.macs(1, mean_context, 1 / length)

    def forward_ratio(self, loops: int, length: int) -> float:
        """FLOPs of a forward pass with logits at every position (as in training), against the base's."""
        mean_context = (length + 1) / 2
        return self.macs(loops, mean_context) / self.macs(1, mean_context)

    def kv_bytes(self, loops: int, bytes_per_value: int) -> int:
        """Key/value bytes cached for one token of a sequence at this depth."""
        return self.layer_passes(loops) * self.kv_values * bytes_per_value


@dataclass(frozen=True)
class Shape:
    """What `recurtrace info` says of a model."""

    base: str | None
    family: str
    hidden_size: int
    first_looped: int
    memory_window: int
    """0 without memory."""
    halting_head: str | None
    """What the model's own head was trained on; None if there is none."""
    named_heads: dict[str, str]
    default_loops: int | str
    dtype: str
    cost: Cost


def shape_in_file(found: Mapping[str, Any]) -> Shape | None:
    """Of a looped model, from the fields of its config.json; None where they are not all there, or not plain."""
    base = found.get("text_config") or {}
    whole: dict[str, Any] = {name: base.get(name) for name in _BASE} | {name: found.get(name) for name in _LOOP}
    heads = found.get("loop_halting_heads") or {}
    if not all(type(size) is int and 0 <= size <= 2**24 for size in whole.values()):
        return None
    if base.get("model_type") not in _EXTRA or not all(isinstance(head, dict) for head in heads.values()):
        return None
    start, layers = whole["loop_start"], whole["loop_num_layers"]
    if not 0 < layers <= whole["num_hidden_layers"] - start or 0 in (whole[name] for name in _BASE):
        return None
    trained = found.get("loop_halting_trained") is True
    return Shape(
        base=found.get("base_model_name_or_path"),
        family=base["model_type"],
        hidden_size=whole["hidden_size"],
        first_looped=start,
        memory_window=whole["loop_memory_window"] if found.get("loop_memory") else 0,
        halting_head=found.get("loop_halting_objective", "oracle") if trained else None,
        named_heads={name: head.get("objective", "oracle") for name, head in heads.items()},
        default_loops="adaptive" if trained else whole["loop_num_loops"],
        dtype=str(found.get("dtype") or base.get("dtype") or "float32").removeprefix("torch."),
        cost=_cost(base, found, len(heads)),
    )


_BASE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_LOOP = (
    "loop_start",
    "loop_num_layers",
    "loop_num_loops",
    "loop_memory_window",
    "loop_attn_num_heads",
    "loop_attn_head_dim",
)
# What a layer has beside two norms and the seven linears: (head width, query width, key width) → weights.
_EXTRA = {
    "llama": lambda head, query, key: 0,
    "mistral": lambda head, query, key: 0,
    "qwen2": lambda head, query, key: query + 2 * key,  # biases
    "qwen3": lambda head, query, key: 2 * head,  # norms of queries and keys
    "olmo2": lambda head, query, key: query + key,  # norms of queries and keys
}


def _cost(base: Mapping[str, Any], loop: Mapping[str, Any], named_heads: int) -> Cost:
    d, layers, head = base["hidden_size"], base["num_hidden_layers"], base["head_dim"]
    query, key = base["num_attention_heads"] * head, base["num_key_value_heads"] * head
    layer = 2 * d * query + 2 * d * key + 3 * d * base["intermediate_size"]
    biases = query + 2 * key + d if base.get("attention_bias") else 0
    biases += 2 * base["intermediate_size"] + d if base.get("mlp_bias") else 0
    embedding = base["vocab_size"] * d
    extra = 2 * d + biases + _EXTRA[base["model_type"]](head, query, key)
    everything = layers * (layer + extra) + d + embedding * (1 if base.get("tie_word_embeddings") else 2)

    heads, width = loop["loop_attn_num_heads"], loop["loop_attn_head_dim"]
    memories = loop["loop_num_layers"] if loop.get("loop_memory") else 0
    linear = 4 * d * heads * width + 2 * d * d
    norms = d + (2 * width if loop.get("loop_qk_norm") else 0)
    memory = linear + norms + heads + d + 1  # slopes, the gate's bias, γ
    added = memories * memory + 1 + (1 + named_heads) * (d + 1)  # α, halting heads
    return Cost(
        parameters=ParameterCount(everything, added),
        layers=layers,
        looped_layers=loop["loop_num_layers"],
        layer_macs=layer,
        added_macs=memories * linear,
        head_macs=embedding,
        attention_width=query,
        kv_values=2 * key,
    )
