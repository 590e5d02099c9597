"""What each method trains, and that nothing else changes."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from recurtrace import RecurTraceConfig, RecurTraceError, RecurTraceForCausalLM
from recurtrace.model.base import read_base_config
from recurtrace.model.families import QWEN3
from recurtrace.training.estimate import estimate
from recurtrace.training.methods import LORA_TOLERANCE, build_model, loop_config, matched_ranks, on_its_base
from recurtrace.training.recipe import TrainRecipe
from recurtrace.training.train import train
from recurtrace.training.trainer import LoopTrainer
from tests.conftest import tokens
from tests.training.runs import same


def trained(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_stage_1_trains_memory_and_injection(recipe):
    model = build_model(recipe())
    assert trained(model) == {
        f"loop.{name}" for name, _ in model.loop.named_parameters() if not name.startswith("halting")
    }
    frozen = build_model(recipe(loop={"loop_start": 2, "loop_slope_frozen": True, "loop_attn_head_dim": 8}))
    assert not any("slope" in name for name in trained(frozen))


def test_files_hold_scalars_without_a_dimension(recipe, tmp_path):
    """Sharded training needs them with one; the file's shapes are a contract."""
    model = build_model(recipe(loop={"loop_start": 2, "loop_attn_head_dim": 8, "loop_injection_init": 0.5}))
    assert model.loop.injection.alpha.shape == model.loop.memory[0].scale.shape == (1,)
    for merged in (False, True):
        model.save_pretrained(tmp_path / str(merged), merge_base=merged)
        loaded = RecurTraceForCausalLM.from_pretrained(tmp_path / str(merged))
        assert loaded.loop.injection.alpha.shape == loaded.loop.memory[0].scale.shape == ()
        ids = tokens(2, 8)
        assert torch.equal(loaded(ids, loops=3).logits, model.eval()(ids, loops=3).logits)


def test_plain_loop_trains_the_injection_alone(recipe):
    assert trained(build_model(recipe(method="plain_loop"))) == {"loop.injection.alpha"}


def test_the_block_itself(recipe):
    model = build_model(recipe(method="plain_loop", train_block=True))
    block = {
        name for name, _ in model.named_parameters() if name.startswith(tuple(f"model.layers.{i}." for i in (2, 3, 4)))
    }
    assert trained(model) == block | {"loop.injection.alpha"}


@pytest.mark.parametrize("block", [False, True])
def test_one_loop_gives_every_trained_parameter_a_gradient(recipe, block):
    """A data-parallel process waits for each of them."""
    model = build_model(recipe(train_block=block)).train()
    ids = tokens(2, 8)
    model(ids, labels=ids, loops=1).loss.backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in model.parameters())


def test_full_fine_tune_trains_everything(recipe):
    model = build_model(recipe(method="full"))
    assert trained(model) == {name for name, _ in model.named_parameters()}


def test_bf16_keeps_what_is_trained_in_float32(recipe):
    model = build_model(recipe(precision="bf16"))
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert model.model.embed_tokens.weight.dtype == torch.bfloat16
    ids = tokens(2, 8)
    for loops in (1, 3):
        with torch.autocast("cpu", torch.bfloat16):
            assert model(ids, loops=loops, output_hidden_states=True).hidden_states[-2].dtype == torch.bfloat16
    assert {p.dtype for p in build_model(recipe(method="full", precision="bf16")).parameters()} == {torch.float32}


@pytest.mark.parametrize("scale", QWEN3)
def test_the_adapter_is_as_large_as_the_loop_modules_at_every_scale(scale):
    base = QWEN3[scale].config(vocab_size=1000)
    ranks = matched_ranks(RecurTraceConfig(text_config=base, loop_start=12))
    assert len(ranks) == 21
    assert max(ranks.values()) - min(ranks.values()) <= 1
    assert min(ranks.values()) > 30


@pytest.mark.parametrize("block", [False, True])
def test_the_adapter_is_lora_on_the_block(recipe, block):
    looped, adapter = build_model(recipe(train_block=block)), build_model(recipe(method="adapter", match_block=block))
    sizes = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (looped, adapter)]
    assert abs(sizes[0] - sizes[1]) <= LORA_TOLERANCE * sizes[0]
    assert estimate(recipe(method="adapter", match_block=block)).trained == sizes[0]
    # In one order, so that the same recipe writes the same file.
    assert adapter.peft_config["default"].to_dict()["target_modules"] == list(matched_ranks(looped.config, block))
    layers = {name.split(".layers.")[1].split(".")[0] for name in trained(adapter)}
    assert layers == {"2", "3", "4"}


@pytest.mark.parametrize("method", ["loop", "plain_loop", "full", "adapter"])
def test_every_method_trains_by_the_same_command(recipe, method, base_folder):
    made = recipe(method=method)
    folder = train(made)
    ids = tokens(2, 8)
    base = AutoModelForCausalLM.from_pretrained(base_folder)(ids).logits
    if method == "adapter":
        from peft import AutoPeftModelForCausalLM

        after = AutoPeftModelForCausalLM.from_pretrained(folder)(ids).logits
    elif method == "full":
        after = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    else:
        model = RecurTraceForCausalLM.from_pretrained(folder)
        assert torch.equal(model(ids, loops=1).logits, base)  # one loop is the base after training too
        after = model(ids, loops=2).logits
    assert not torch.allclose(after, base)


def test_a_trained_block_is_saved_with_its_base(recipe):
    folder = train(recipe(train_block=True))
    assert (folder / "model.safetensors").is_file()
    model = RecurTraceForCausalLM.from_pretrained(folder)
    before = build_model(recipe("other"))
    assert not torch.equal(model.model.layers[2].mlp.up_proj.weight, before.model.layers[2].mlp.up_proj.weight)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, before.model.layers[1].mlp.up_proj.weight)


def test_the_block_may_learn_at_a_rate_of_its_own(recipe):
    def up(folder):
        return RecurTraceForCausalLM.from_pretrained(folder).model.layers[2].mlp.up_proj.weight

    rate = recipe().learning_rate
    one = train(recipe("one", train_block=True))
    assert same(one, train(recipe("same", train_block=True, block_learning_rate=rate)))
    slow = train(recipe("slow", train_block=True, block_learning_rate=rate / 1e4))
    before = build_model(recipe("before")).model.layers[2].mlp.up_proj.weight
    assert (up(slow) - before).abs().max() < (up(one) - before).abs().max() / 1e3
    memories = [RecurTraceForCausalLM.from_pretrained(folder).loop.memory[0].o_proj.weight for folder in (one, slow)]
    assert memories[1].abs().max() > memories[0].abs().max() / 2  # which starts at zero


def test_groups_of_the_optimizer_are_made_once(recipe, monkeypatch):
    """DeepSpeed asks for the optimizer twice; plain looping has no weight in some groups."""
    made = []

    def create(trainer, model=None, original=LoopTrainer.create_optimizer):
        made.append([[group["lr"], len(group["params"])] for group in original(trainer, model).param_groups])
        made.append([[group["lr"], len(group["params"])] for group in original(trainer, model).param_groups])
        return trainer.optimizer

    monkeypatch.setattr(LoopTrainer, "create_optimizer", create)
    train(recipe(method="plain_loop", train_block=True, block_learning_rate=1e-5))
    assert made[0] == made[1]
    assert all(count for _, count in made[0])
    assert {rate for rate, _ in made[0]} == {recipe().learning_rate, 1e-5}


def test_the_matched_same_start(recipe):
    """A plain-loop checkpoint goes on with memory and without, from the very same function."""
    start = train(recipe("start", method="plain_loop"))
    continued = {"loop_attn_head_dim": 8}
    plain = build_model(recipe("plain", method="plain_loop", start_from=str(start), loop=continued))
    memory = build_model(recipe("memory", start_from=str(start), loop={**continued, "loop_memory_window": 1}))
    assert plain.loop.injection.alpha == memory.loop.injection.alpha != 0
    assert len(memory.loop.memory) == 3
    assert memory.config.loop_memory_window == 1
    ids = tokens(1, 6)
    assert torch.equal(plain(ids, loops=1).logits, memory(ids, loops=1).logits)
    with pytest.raises(RecurTraceError, match="no safetensors weights found at .*start"):
        build_model(recipe("other", start_from=str(start), loop=continued, model=str(start)))
    with pytest.raises(RecurTraceError, match="loops other layers than the recipe"):
        build_model(recipe("other", start_from=str(start), loop={"loop_start": 1, "loop_attn_head_dim": 8}))


def test_a_base_that_has_moved_is_known_by_its_weights(recipe, base_folder, tmp_path):
    start = train(recipe("start", method="plain_loop"))
    moved = shutil.copytree(base_folder, tmp_path / "moved")
    merged = train(recipe("merged", train_block=True))  # has its base inside, so that only names can be compared
    with pytest.raises(RecurTraceError, match=r"was made on .*base, not on .*moved; set model"):
        build_model(recipe("other", start_from=str(merged), model=str(moved)))
    went_on = train(recipe("on", start_from=str(start), model=str(moved)))
    assert RecurTraceForCausalLM.from_pretrained(went_on).config.base_model_name_or_path == str(moved)
    weights = load_file(moved / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, moved / "model.safetensors", {"format": "pt"})
    with pytest.raises(RecurTraceError, match=r"was made on a base with fingerprint \w+, but .*moved' has"):
        build_model(recipe("other", start_from=str(start), model=str(moved)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 5, "epochs": 1}, "give exactly one of steps and epochs"),
        ({"batch_size": 6, "micro_batch_size": 4}, "batch_size 6 is not a multiple of micro_batch_size 4"),
        ({"method": "full", "train_block": True}, "train_block and start_from are for looped models"),
        ({"match_block": True}, "match_block is the size of an adapter, not for loop"),
        ({"block_learning_rate": 1e-3}, "block_learning_rate is for train_block, which is off"),
        ({"method": "plain_loop", "loop": {"loop_memory": True}}, "plain_loop has no memory"),
        ({"loop": {"loop_memory": False}}, "use the method plain_loop"),
        ({"method": "act"}, "method: input should be 'loop', 'plain_loop', 'full' or 'adapter' (got 'act')"),
        ({"learning_rat": 1}, "there is no field 'learning_rat'"),
    ],
)
def test_recipes_are_checked(recipe, fields, message):
    with pytest.raises(RecurTraceError) as error:
        recipe(**fields)
    assert message in str(error.value)


def test_fields_can_be_changed(recipe, tmp_path):
    import yaml

    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe().model_dump(mode="json", exclude_unset=True)))
    changed = TrainRecipe.read_with(file, ["steps=9", "loop.loop_memory_window=5", "method=loop"])
    assert changed.steps == 9
    assert changed.loop["loop_memory_window"] == 5
    assert changed.loop["loop_start"] == 2
    for change, message in (
        ("steps", "'steps' changes no field; write it as field=value"),
        ("report_to=[a", "is not a YAML value; quote it"),
        ("steps.x=1", "steps has no fields of its own"),
    ):
        with pytest.raises(RecurTraceError, match=message):
            TrainRecipe.read_with(file, [change])


def test_a_converted_folder_is_trained_on_its_base(recipe, base_folder, tmp_path):
    converted = RecurTraceForCausalLM.from_base(base_folder, loop_start=1, loop_num_layers=2, loop_attn_head_dim=8)
    converted.save_pretrained(tmp_path / "looped")
    asked = on_its_base(recipe(model=str(tmp_path / "looped"), loop={}))
    assert (asked.model, asked.start_from) == (str(base_folder), tmp_path / "looped")
    assert list(loop_config(asked, converted.config.text_config).block) == [1, 2]
    model = build_model(asked)
    assert torch.equal(model.loop.memory[1].q_proj.weight, converted.loop.memory[1].q_proj.weight)
    with pytest.raises(RecurTraceError, match="is a looped model, and full trains a base; set model to it"):
        on_its_base(recipe(model=str(tmp_path / "looped"), loop={}, method="full"))
    converted.save_pretrained(tmp_path / "merged", merge_base=True)
    with pytest.raises(RecurTraceError, match="holds its base inside; set model to that base, and start_from to it"):
        on_its_base(recipe(model=str(tmp_path / "merged"), loop={}))


def test_a_block_that_nobody_knows_is_asked_for_in_the_recipes_words(recipe):
    asked = recipe(loop={})
    with pytest.raises(
        RecurTraceError, match=r"set loop.loop_start in the recipe, or probe .*, or model to a converted"
    ):
        loop_config(asked, read_base_config(asked.base))
