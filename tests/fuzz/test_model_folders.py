"""Model folders with weights, tokenizers, heads or settings that are damaged, foreign or missing."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from recurtrace.files import WHOLE
from recurtrace.model.heads import read_heads
from recurtrace.model.loading import load_any
from tests.fuzz.outcome import command, outcome


def test_weights_of_a_base(models, tmp_path):
    base = shutil.copytree(models / "base", tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    convert = ("convert", base, "--loop-start", 2, "--out", tmp_path / "out")
    for tensor, said in ((torch.zeros(3, 3), "cannot be loaded"), (weights[name].int(), "holds I32 values")):
        save_file({**weights, name: tensor}, base / "model.safetensors", metadata={"format": "pt"})
        assert said in command(*convert)
    (base / "model.safetensors").unlink()
    for text in (
        "[]",
        "{",
        '{"weight_map": 3}',
        '{"weight_map": {"a": "gone.safetensors"}}',
        '{"weight_map": {}}',
        "3",
    ):
        (base / "model.safetensors.index.json").write_text(text)
        assert command(*convert)
    assert not (tmp_path / "out").exists()


def test_an_adapter_without_its_weights(changed):
    folder = changed("looped")
    (folder / "recurtrace.safetensors").unlink()
    for said in (command("generate", folder, "a"), command("calibrate", folder, "--sweep", folder)):
        assert "lacks recurtrace.safetensors" in said
    (folder / "recurtrace.safetensors").write_bytes(b"x" * 100)
    assert "not a whole safetensors file" in command("generate", folder, "a")


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", '{"peft_type": "NONE"}', '{"peft_type": "LORA"}', '{"peft_type": 3}']
)
def test_empty_peft_configs(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    assert "adapter_config.json" in outcome(lambda: load_any(str(tmp_path)))


class Mark:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_pickles_are_neither_loaded_nor_a_traceback(models, tmp_path):
    folder, mark = tmp_path / "peft", tmp_path / "ran"
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(models / "base"),
        "target_modules": ["q_proj"],
        "r": 2,
    }
    config |= {"task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Mark(mark)))
    assert "safetensors" in outcome(lambda: load_any(str(folder)))
    base = tmp_path / "base"
    shutil.copytree(models / "base", base)
    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(Mark(mark)))
    assert "safetensors" in command("convert", base, "--loop-start", 2, "--out", tmp_path / "out")
    assert not mark.exists()


@pytest.mark.parametrize("text", ["[]", "{", "3", "{}", '{"model": 3}', ""])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_not_replaced_by_the_bases(changed, file, text):
    folder = changed("looped")
    (folder / file).write_text(text)
    said = command("generate", folder, "a", "--max-new-tokens", 1)
    if file == "tokenizer.json" or not text.endswith("}"):  # a config with other fields changes nothing here
        assert "tokenizer of" in said
        assert "cannot be used" in said


def test_the_bases_tokenizer_where_there_is_none(changed):
    folder = changed("looped")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    assert not command("generate", folder, "a", "--max-new-tokens", 1)


@pytest.mark.parametrize(
    "text",
    ["[]", "{", "3", '{"temperature": "x"}', '{"num_beams": -1}', '{"max_new_tokens": -3}', '{"eos_token_id": "x"}'],
)
def test_settings_of_generation(changed, text):
    folder = changed("looped")
    (folder / "generation_config.json").write_text(text)
    assert "generation_config.json" in command("generate", folder, "a", "--max-new-tokens", 1)
    base = changed("base")
    (base / "generation_config.json").write_text(text)
    said = command("convert", base, "--loop-start", 2, "--out", base.parent / "out")
    assert said or text == "{"  # which transformers passes over


def test_a_head_without_weights(changed):
    folder = changed("looped")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "loop_halting_heads": {"one": {}}}))
    assert "lacks loop.heads.one.weight, which config.json describes" in outcome(lambda: read_heads(folder))


@pytest.mark.parametrize("head", ["../x", "a/b", "", "a b"])
def test_names_of_heads(models, head):
    for stage in ("distill", "calibrate"):
        said = command(stage, models / "looped", "--sweep", "s", "--head", head)
        assert "a name may have letters, digits, - and _ only" in said


def test_a_model_that_was_being_written(models, tmp_path):
    """config.json moves last: readers refuse such a folder, and the next that writes there finishes it."""
    folder = shutil.copytree(models / "looped", tmp_path / "model")
    (folder / WHOLE).mkdir()
    (folder / "config.json").rename(folder / WHOLE / "config.json")
    assert "was being written when its process was killed" in command("generate", folder, "a")
    assert "holds no model" in command("info", folder)
    assert "already holds a model" in command("convert", models / "base", "--out", folder, "--loop-start", 1)
    assert command("generate", folder, "a", "--max-new-tokens", 1) == ""
