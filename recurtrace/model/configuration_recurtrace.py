"""The configuration of a looped model: the base's own config, whole, and the paper's loop fields beside it.

Field names and values are those of the paper's hyperparameter table. The text under a field is its documentation;
the command line makes its help from it.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from recurtrace.depths import LEAST_LIMIT, depth_limit
from recurtrace.errors import RecurTraceError
from recurtrace.halting.methods import OBJECTIVES
from recurtrace.halting.rule import StoppingRule
from recurtrace.model.families import check_family
from recurtrace.model.positions import positions_of

POOLINGS = ("prompt_mean", "prompt_last")
WIDEST = 2**16
"""Of all heads of the loop memory together; a larger number is rather a typing error."""

# What transformers itself may hand to any config beyond the declared fields.
_KNOWN_TO_TRANSFORMERS = {
    "attn_implementation",
    "auto_map",
    "distributed_config",
    "experts_implementation",
    "fusion_config",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
    "transformers_weights",
}


@dataclass(frozen=True)
class HeadSettings:
    """How a halting head is used; the fields `loop_halting_*` of the config hold those of the model's own head."""

    objective: str = "oracle"
    """What the head was trained on."""
    pooling: str = "prompt_mean"
    """What it reads."""
    threshold: float = 0.5
    """Stop once the probability of continuing is below tau."""
    min_depth: int = 2
    """Floor T_min."""
    max_depth: int = 16
    """Budget T_max."""
    trained_on: dict[str, Any] | None = None
    """What made it: the settings of its training (δ, horizon, depth cost, probe depths, seed …) and its sweep."""

    @property
    def rule(self) -> StoppingRule:
        return StoppingRule(self.threshold, self.min_depth, self.max_depth)

    def with_rule(self, rule: StoppingRule) -> "HeadSettings":
        return replace(self, threshold=rule.threshold, min_depth=rule.min_depth, max_depth=rule.max_depth)

    def check(self, name: str) -> None:
        for field in ("min_depth", "max_depth"):
            _check_least(f"{field} of {name}", getattr(self, field), 1)
        for field, choices in (("pooling", POOLINGS), ("objective", OBJECTIVES)):
            _check_choice(f"{field} of {name}", getattr(self, field), choices)
        if type(self.threshold) not in (int, float) or not 0 <= self.threshold <= 1:
            raise RecurTraceError(f"threshold of {name} is a probability between 0 and 1, got {self.threshold!r}.")
        if self.min_depth > self.max_depth:
            raise RecurTraceError(f"min_depth of {name} ({self.min_depth}) is above its max_depth ({self.max_depth}).")
        if not isinstance(self.trained_on, dict | None):
            raise RecurTraceError(f"trained_on of {name} must be a table of settings, got {self.trained_on!r}.")


class RecurTraceConfig(PreTrainedConfig):
    """Configuration of `RecurTraceForCausalLM`."""

    model_type = "recurtrace"
    sub_configs = {"text_config": AutoConfig}
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference = ["past_key_values", "depths", "continue_probs"]

    text_config: Any = None
    """The base's own config, whole; `get_text_config()` returns it."""
    base_model_name_or_path: str | None = None
    """Hub id or folder of the base that an adapter stands on."""
    base_fingerprint: str | None = None
    """Hash of the base's weights as stored, so that an adapter is never put on another base unnoticed."""

    base_revision: str | None = None
    """Branch, tag or commit of a base from the hub, if one was asked for."""

    loop_start: int = None  # type: ignore[assignment] # asked for, or the paper's for a known base
    """First looped layer s, 0-based."""
    loop_num_layers: int = 3
    """Number of looped layers k."""
    loop_num_loops: int = 2
    """Default depth while no halting head has been distilled."""

    loop_memory: bool = True
    """Loop Memory Attention on; off is plain looping, the Encode-Think-Decode baseline."""
    loop_memory_window: int = 3
    """How many earlier loops W a looped layer can read."""
    loop_attn_num_heads: int = 4
    """Heads of the loop memory."""
    loop_attn_head_dim: int = None  # type: ignore[assignment] # asked for, or chosen from the base
    """Width of one loop-memory head. Default: 128, and less on a base that is narrower than the paper's."""
    loop_qk_norm: bool = True
    """RMSNorm on the per-head queries and keys of the loop memory."""
    loop_slope_frozen: bool = False
    """Keep the loop-distance slopes at their ALiBi values."""
    loop_gate_init: float = 1.0
    """Scalar gate gamma at initialisation."""
    loop_gate_init_bias: float = -3.0
    """Bias of the token-wise gate at initialisation: almost closed, so that training opens the memory gradually."""
    loop_gates_open: bool = False
    """Start with the token-wise gate open (the bias with the opposite sign): an ablation."""
    loop_injection_init: float = 0.0
    """Input-injection scalar alpha at initialisation."""

    loop_train_max: int = 8
    """Largest depth sampled in training."""
    loop_depth_limit: int | None = None
    """Deepest loop that may be asked for. Default: eight times the largest depth of training, and at least 64."""
    loop_sample_dist: str = "lognormal_poisson"
    """Distribution of the training depth."""
    loop_train_mean: float = 4.0
    """Target mean of the training depth."""
    loop_train_sigma: float = 0.5
    """Deviation of the training depth in log space."""

    loop_halting_trained: bool = False
    """A halting head has been distilled, so that depth is adaptive by default."""
    loop_halting_pooling: str = "prompt_mean"
    """What the head reads: the mean over the prompt's positions, or the last one (prompt_mean, prompt_last)."""
    loop_halting_threshold: float = 0.5
    """Stop once the probability of continuing is below tau."""
    loop_halting_min_depth: int = 2
    """Floor T_min of the adaptive depth."""
    loop_halting_max_depth: int = 16
    """Budget T_max of the adaptive depth."""
    loop_halting_objective: str = "oracle"
    """What the head was trained on."""
    loop_halting_trained_on: dict[str, Any] | None = None
    """What made the head: the settings of its training and the sweep it was trained on."""
    loop_halting_heads: dict[str, dict[str, Any]] | None = None
    """Further heads by name, one for a task, each with its own objective, pooling, threshold, depths and origin."""
    loop_halting_aux_margin: float = 0.01
    """Margin delta by which a deeper loop must lower the loss (Eq. 6)."""
    loop_halting_aux_depths: Sequence[int] = (1, 2, 4, 6)
    """Depths at which the head is supervised."""
    loop_halting_depth_cost: float = 0.0
    """Price of one extra loop in the oracle's comparison."""
    loop_halting_oracle_max: int = 16
    """Deepest loop the oracle looks at."""

    tie_word_embeddings: bool = False
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        if isinstance(self.text_config, dict):
            self.text_config = _base_config_from_dict(self.text_config)
        if not isinstance(self.text_config, PreTrainedConfig):
            raise RecurTraceError(
                f"RecurTraceConfig needs text_config, the base's own config, got {self.text_config!r}."
            )
        check_family(self.text_config)
        _check_least("loop_attn_num_heads", self.loop_attn_num_heads, 1)
        if self.loop_attn_head_dim is None:
            self.loop_attn_head_dim = head_width(self.text_config.hidden_size, self.loop_attn_num_heads)
        self.tie_word_embeddings = self.text_config.tie_word_embeddings
        # transformers hands the attention implementation down to text_config, also when none was asked for.
        kwargs.setdefault("attn_implementation", self.text_config._attn_implementation)
        super().__post_init__(**kwargs)
        self.check()

    def override(self, fields: dict[str, Any]) -> None:
        """Change fields after the fact, with the checks a new config would get."""
        self._refuse_unknown({name: value for name, value in fields.items() if name not in self.__dataclass_fields__})
        for name, value in fields.items():
            setattr(self, name, value)
        self.check()

    @property
    def block(self) -> range:
        """Indices of the looped layers."""
        return range(self.loop_start, self.loop_start + self.loop_num_layers)

    @property
    def max_position_embeddings(self) -> int | None:
        """The base's; `generate` warns beyond it, as it does for the base."""
        return positions_of(self)

    @property
    def depth_limit(self) -> int:
        return depth_limit(self.loop_train_max, self.loop_depth_limit)

    @property
    def default_loops(self) -> int | str:
        return "adaptive" if self.loop_halting_trained else self.loop_num_loops

    def head_settings(self, name: str | None = None) -> HeadSettings:
        """Settings of the model's own head, or of a named one."""
        heads = self.loop_halting_heads or {}
        if name is None:
            if not self.loop_halting_trained:
                others = f" Its heads are {', '.join(heads)}; name one with head=." if heads else ""
                raise RecurTraceError(
                    'loops="adaptive" needs a trained halting head, and this model has none of its own; '
                    f"distill one (`recurtrace distill`), or pass a fixed depth such as loops=2.{others}"
                )
            own = {field.name: getattr(self, f"loop_halting_{field.name}") for field in fields(HeadSettings)}
            return HeadSettings(**own)
        if name not in heads:
            raise RecurTraceError(f"this model has no head {name!r}; it has {', '.join(heads) or 'no named ones'}.")
        return HeadSettings(**heads[name])

    def set_head(self, name: str | None, settings: HeadSettings) -> None:
        """Note that a head has been trained, and how it is to be used."""
        if name is None:
            values = {f"loop_halting_{field}": value for field, value in asdict(settings).items()}
            self.override({**values, "loop_halting_trained": True})
        else:
            self.override({"loop_halting_heads": {**(self.loop_halting_heads or {}), name: asdict(settings)}})

    def _check_heads(self) -> None:
        if not isinstance(self.loop_halting_heads, dict | None):
            raise RecurTraceError(
                f"loop_halting_heads must be a table of settings by head, got {self.loop_halting_heads!r}."
            )
        for name, settings in (self.loop_halting_heads or {}).items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise RecurTraceError(f"a head's name may have letters, digits, - and _ only, got {name!r}.")
            known = [field.name for field in fields(HeadSettings)]
            if not isinstance(settings, dict) or (unknown := [field for field in settings if field not in known]):
                what = f"unknown field {unknown[0]!r}" if isinstance(settings, dict) else f"{settings!r}"
                raise RecurTraceError(f"{what} in the settings of head {name}; they are {', '.join(known)}.")
            HeadSettings(**settings).check(f"head {name}")

    def check(self) -> None:
        """Refuse settings no model can have."""
        for name, least in _AT_LEAST.items():
            _check_least(name, getattr(self, name), least)
        if self.loop_depth_limit is not None:
            _check_least("loop_depth_limit", self.loop_depth_limit, 1)
        if self.loop_train_max > (largest := self.loop_depth_limit or LEAST_LIMIT):
            raise RecurTraceError(
                f"loop_train_max is {self.loop_train_max:,}, beyond the limit of {largest}; lower it, or set "
                "loop_depth_limit."
            )
        if (width := self.loop_attn_num_heads * self.loop_attn_head_dim) > WIDEST:
            raise RecurTraceError(
                f"the loop memory has {self.loop_attn_num_heads:,} heads of {self.loop_attn_head_dim:,}, {width:,} in "
                f"all, more than {WIDEST:,}; lower loop_attn_num_heads or loop_attn_head_dim."
            )
        for name in _FINITE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RecurTraceError(f"{name} must be a finite number, got {value!r}.")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise RecurTraceError(f"{name} must be true or false, got {getattr(self, name)!r}.")
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        self._check_heads()
        depths = self.loop_halting_aux_depths
        if not isinstance(depths, list | tuple) or not all(type(depth) is int and depth >= 1 for depth in depths):
            raise RecurTraceError(f"loop_halting_aux_depths must be a list of depths of at least 1, got {depths!r}.")
        self.loop_halting_aux_depths = list(depths)
        if self.loop_train_mean <= 1 or self.loop_train_sigma < 0:
            raise RecurTraceError(
                f"loop_train_mean must be above 1 and loop_train_sigma not negative, "
                f"got {self.loop_train_mean} and {self.loop_train_sigma}."
            )
        layers = self.text_config.num_hidden_layers
        if self.loop_start is None:
            raise RecurTraceError("loop_start is not set; name the first looped layer, e.g. loop_start=12.")
        if isinstance(self.loop_start, bool) or not isinstance(self.loop_start, int):
            raise RecurTraceError(f"loop_start must be a whole number, got {self.loop_start!r}.")
        if self.loop_start < 0 or self.block.stop > layers:
            raise RecurTraceError(
                f"block {self.block.start}–{self.block.stop - 1} is outside the {layers} layers "
                f"(0–{layers - 1}) of the base; choose another loop_start or loop_num_layers."
            )
        if not 0 <= self.loop_halting_threshold <= 1:
            raise RecurTraceError(
                f"loop_halting_threshold is a probability between 0 and 1, got {self.loop_halting_threshold}."
            )
        if self.loop_halting_min_depth > self.loop_halting_max_depth:
            raise RecurTraceError(
                f"loop_halting_min_depth ({self.loop_halting_min_depth}) is above "
                f"loop_halting_max_depth ({self.loop_halting_max_depth})."
            )

    @classmethod
    def _refuse_unknown(cls, kwargs: dict[str, Any]) -> None:
        known = _KNOWN_TO_TRANSFORMERS | set(GenerationConfig._get_default_generation_params())
        for name in kwargs:
            if name in known or name.startswith("_"):
                continue
            near = difflib.get_close_matches(name, [field.name for field in fields(cls)], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see RecurTraceConfig for the known ones."
            raise RecurTraceError(f"unknown field {name!r} in the RecurTrace config{hint}")


def head_width(hidden_size: int, heads: int) -> int:
    """The paper's 128, as long as all heads together are at most half as wide as the base, as they are at 0.6B.

    Otherwise a small base would get loop modules of a sixth of its own size.
    """
    return max(min(128, hidden_size // (2 * heads) // 8 * 8), 8)


def _check_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RecurTraceError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise RecurTraceError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


_AT_LEAST = {
    "loop_num_layers": 1,
    "loop_num_loops": 1,
    "loop_memory_window": 1,
    "loop_attn_num_heads": 1,
    "loop_attn_head_dim": 1,
    "loop_train_max": 1,
    "loop_halting_min_depth": 1,
    "loop_halting_max_depth": 1,
    "loop_halting_oracle_max": 1,
}
_SWITCHES = (
    "loop_memory",
    "loop_qk_norm",
    "loop_slope_frozen",
    "loop_gates_open",
    "loop_halting_trained",
)
_CHOICES = {
    "loop_sample_dist": ("lognormal_poisson",),
    "loop_halting_pooling": POOLINGS,
    "loop_halting_objective": OBJECTIVES,
}
_FINITE = (
    "loop_gate_init",
    "loop_gate_init_bias",
    "loop_injection_init",
    "loop_train_mean",
    "loop_train_sigma",
    "loop_halting_threshold",
    "loop_halting_aux_margin",
    "loop_halting_depth_cost",
)


def _base_config_from_dict(values: dict[str, Any]) -> PreTrainedConfig:
    model_type = values.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise RecurTraceError(
            f"the base's model_type {model_type!r} is not known to this transformers; update transformers."
        )
    return CONFIG_MAPPING[model_type](**values)
