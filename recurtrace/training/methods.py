"""What each method trains: the table of stage 1 and of its same-budget baselines."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from recurtrace.config_file import read_config_file
from recurtrace.errors import RecurTraceError
from recurtrace.model import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.model.base import (
    load_base,
    locate_base,
    portable_name,
    read_base_config,
    read_looped_config,
    refuse_other_base,
    stored_fingerprint,
)
from recurtrace.model.checkpoint import ADAPTER_FILE, weight_files
from recurtrace.model.families import PRESET_NUM_LAYERS, choose_block
from recurtrace.model.positions import longest_input
from recurtrace.records import BlockProbe
from recurtrace.training.recipe import TrainRecipe

LORA_TOLERANCE = 0.02  # how far the adapter's size may be from the loop modules'
_SHAPING = ("loop_attn_num_heads", "loop_attn_head_dim", "loop_qk_norm")
_KEPT = ("loop_start", "loop_num_layers", "loop_train_max", "loop_depth_limit")
_HOW_TO_CHOOSE = (
    "set loop.loop_start in the recipe, or probe to a result of `recurtrace probe`, or model to a converted folder"
)
_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_model(recipe: TrainRecipe) -> nn.Module:
    """The model of a recipe, with gradients where its method trains; what is trained is in float32."""
    torch.manual_seed(recipe.seed)
    return METHODS[recipe.method](recipe)


def on_its_base(recipe: TrainRecipe) -> TrainRecipe:
    """A recipe whose model is a converted folder: it continues that folder, on the base that the folder names."""
    folder = Path(recipe.base)
    if not (folder / "config.json").is_file():
        return recipe
    found = read_config_file(folder / "config.json", recipe.model, recipe.trust_remote_code)
    if found["model_type"] != "recurtrace":
        return recipe
    if recipe.start_from is not None:
        raise RecurTraceError(
            f"{recipe.model!r} is a looped model; set model to its base, or leave out start_from to train this one."
        )
    if recipe.method in ("full", "adapter"):
        raise RecurTraceError(
            f"{recipe.model!r} is a looped model, and {recipe.method} trains a base; set model to it."
        )
    named = found.get("base_model_name_or_path")
    if named is None or not (folder / ADAPTER_FILE).is_file():
        raise RecurTraceError(f"{recipe.model!r} holds its base inside; set model to that base, and start_from to it.")
    return recipe.model_copy(update={"model": locate_base(named, str(folder)), "start_from": folder})


def fitted(recipe: TrainRecipe, base_config: PreTrainedConfig) -> TrainRecipe:
    """The recipe with a length that the base has positions for."""
    asked = recipe.max_length if "max_length" in recipe.model_fields_set else None
    remedy = "lower max_length in the recipe, or set extrapolate there"
    length = longest_input(base_config, asked, recipe.max_length, recipe.extrapolate, remedy=remedy)
    return recipe.model_copy(update={"max_length": length})


def loop_config(recipe: TrainRecipe, base_config: PreTrainedConfig) -> RecurTraceConfig:
    """The loop a recipe describes; for a method without loops, the one it is compared with."""
    fields = loop_fields(recipe)
    if recipe.start_from is not None:
        before = _start(recipe, fields)
        fields = {name: getattr(before, name) for name in (*_KEPT, *_SHAPING)} | fields
    layers = fields.get("loop_num_layers", PRESET_NUM_LAYERS)
    start = choose_block(base_config, fields.pop("loop_start", None), layers, _HOW_TO_CHOOSE)
    return RecurTraceConfig(text_config=base_config, loop_start=start, **fields)


def _start(recipe: TrainRecipe, fields: dict[str, Any]) -> RecurTraceConfig:
    """Config of the model that a recipe continues, refused where it is not one that the recipe can continue."""
    folder = Path(str(recipe.start_from))
    found = read_config_file(folder / "config.json", str(folder)) if (folder / "config.json").is_file() else {}
    if found.get("model_type") != "recurtrace":
        raise RecurTraceError(
            f"start_from is {str(folder)!r}, which holds no looped model; correct it or leave it out."
        )
    if not (folder / ADAPTER_FILE).is_file():
        weight_files(str(folder), looped=True)  # or it is merged
    before = read_looped_config(folder)
    after = copy.deepcopy(before)
    after.override(fields)
    if after.block != before.block:
        raise RecurTraceError(f"{folder} loops other layers than the recipe; leave out loop_start.")
    comparable = (folder / ADAPTER_FILE).is_file() and before.base_fingerprint is not None
    if _has_moved(recipe, before) and not comparable:
        named = before.base_model_name_or_path
        raise RecurTraceError(f"{folder} was made on {named}, not on {recipe.model}; set model to that base.")
    if before.loop_memory and any(getattr(after, name) != getattr(before, name) for name in _SHAPING):
        raise RecurTraceError(f"the memory of {folder} has another shape; leave out {', '.join(_SHAPING)}.")
    return before


def _has_moved(recipe: TrainRecipe, before: RecurTraceConfig) -> bool:
    """Whether the recipe's base is elsewhere than where the model that it continues had it; it may be the same one."""
    named = before.base_model_name_or_path
    return named is not None and portable_name(recipe.base) not in (
        named,
        portable_name(locate_base(named, str(recipe.start_from))),
    )


def loop_fields(recipe: TrainRecipe) -> dict[str, Any]:
    """Fields of the loop's config that a recipe sets, by itself or by the probe it names."""
    fields = {**recipe.loop, "loop_memory": recipe.method != "plain_loop"}
    if recipe.probe is not None:
        found = BlockProbe.read(recipe.probe)
        fields |= {"loop_start": found.loop_start, "loop_num_layers": found.loop_num_layers}
    return fields


def check_probe(recipe: TrainRecipe) -> None:
    """Refuse a probe of another base. It takes reading the base's weights, so it is done once for a run."""
    if recipe.probe is not None:
        BlockProbe.read(recipe.probe).check_base(stored_fingerprint(recipe.base, **recipe.hub), recipe.probe)


def changes_base(recipe: TrainRecipe) -> bool:
    """A run that trains the block, or continues one that did: its model must be saved with its base."""
    merged_start = recipe.start_from is not None and not (recipe.start_from / ADAPTER_FILE).is_file()
    return recipe.train_block or merged_start


def freeze_for_stage_1(model: RecurTraceForCausalLM, train_block: bool = False) -> None:
    """Memory and injection learn, and the block if asked for; the halting head has a stage of its own."""
    model.freeze_base()
    model.loop.halting.requires_grad_(False)
    model.loop.float()
    model.loop.reshape_scalars(1)
    if train_block:
        for index in model.config.block:
            model.model.layers[index].float().requires_grad_(True)


def _looped(recipe: TrainRecipe) -> RecurTraceForCausalLM:
    fields = loop_fields(recipe)
    if recipe.start_from is None:
        model = RecurTraceForCausalLM.from_base(recipe.base, **fields, **_loading(recipe, frozen=True))
    else:
        model = _continued(recipe, fields)
    freeze_for_stage_1(model, recipe.train_block)
    return model


def _continued(recipe: TrainRecipe, fields: dict[str, Any]) -> RecurTraceForCausalLM:
    """The loop modules of a checkpoint as far as it has them; what the recipe adds is fresh."""
    start = _start(recipe, fields)
    moved = _has_moved(recipe, start)
    if moved:
        base, found = load_base(recipe.base, **_loading(recipe, frozen=True))
        refuse_other_base(start.base_fingerprint, str(recipe.start_from), recipe.base, found, "leave out start_from")
        at: dict[str, Any] = {"base": base, "check_base": False}
    else:
        at = _loading(recipe, frozen=True, revision=False)
    before = RecurTraceForCausalLM.from_pretrained(str(recipe.start_from), **at)
    config = copy.deepcopy(before.config)
    config.override(fields)
    if moved:
        config.base_model_name_or_path, config.base_revision = portable_name(recipe.base), recipe.hub.get("revision")
    model = RecurTraceForCausalLM(config, before)  # the base's modules are under the same names in both
    model.loop.to(device=before.device)
    model.loop.load_state_dict(before.loop.state_dict(), strict=False)
    return model


def _full(recipe: TrainRecipe) -> PreTrainedModel:
    """The same-budget baseline: every weight of the base, run once."""
    read_base_config(recipe.base, **recipe.hub)
    base, _ = load_base(recipe.base, **_loading(recipe, frozen=False))
    return base


def _adapter(recipe: TrainRecipe) -> nn.Module:
    """The capacity control: LoRA on the layers that would be looped, as large as what the loop trains, run once."""
    from peft import LoraConfig, get_peft_model

    base, _ = load_base(recipe.base, **_loading(recipe, frozen=True))
    config = loop_config(recipe, base.config)
    ranks = matched_ranks(config, recipe.match_block)
    lora = LoraConfig(
        rank_pattern=ranks,
        alpha_pattern=ranks,  # so that the product is not scaled
        lora_dropout=0.0,
        target_modules=list(ranks),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    lora.target_modules = list(ranks)  # PEFT made a set of it, whose order in the file would differ from run to run
    return model


def matched_ranks(config: RecurTraceConfig, match_block: bool = False) -> dict[str, int]:
    """LoRA ranks of the block's linears, all but equal, with as many parameters as stage 1 trains."""
    with torch.device("meta"):
        model = RecurTraceForCausalLM(config)
    freeze_for_stage_1(model, train_block=match_block)
    left = target = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = {
        f"model.layers.{index}.{name}": linear.in_features + linear.out_features
        for index in config.block
        for name, linear in model.model.layers[index].named_modules()
        if name.split(".")[-1] in _LINEARS
    }
    ranks = dict.fromkeys(sizes, max(1, target // sum(sizes.values())))
    left -= sum(ranks[name] * size for name, size in sizes.items())
    for name, size in sizes.items():
        if size <= left:
            ranks[name] += 1
            left -= size
    if abs(left) > LORA_TOLERANCE * target:
        raise RecurTraceError(
            f"no LoRA on the block comes within {LORA_TOLERANCE:.0%} of the {target:,} parameters the loop trains; "
            "change loop_attn_head_dim or loop_attn_num_heads."
        )
    return ranks


def _loading(recipe: TrainRecipe, frozen: bool, revision: bool = True) -> dict[str, Any]:
    """A frozen base is held in the type it computes in; weights that are trained are held in float32."""
    options: dict[str, Any] = {"dtype": torch.bfloat16 if frozen and recipe.precision == "bf16" else torch.float32}
    options |= {name: value for name, value in recipe.hub.items() if revision or name != "revision"}
    if recipe.attention:
        options["attn_implementation"] = recipe.attention
    return options


METHODS: dict[str, Callable[[TrainRecipe], nn.Module]] = {
    "loop": _looped,
    "plain_loop": _looped,
    "full": _full,
    "adapter": _adapter,
}
