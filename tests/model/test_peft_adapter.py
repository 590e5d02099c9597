"""PEFT adapters are read as carefully as the project's own: base, weights, nothing imported."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from recurtrace.errors import RecurTraceError
from recurtrace.model.loading import load_any
from recurtrace.model.peft_adapter import BASE_FILE, CONFIG_FILE, WEIGHTS_FILE, write_base
from tests.conftest import byte_tokenizer, tiny_base


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peft")
    tiny_base("llama", vocab_size=259).save_pretrained(folder / "base")
    byte_tokenizer().save_pretrained(folder / "base")
    base = type(tiny_base("llama")).from_pretrained(folder / "base")
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder / "adapter")
    write_base(folder / "adapter", str(folder / "base"))
    return folder


@pytest.fixture
def adapter(made, tmp_path):
    return shutil.copytree(made / "adapter", tmp_path / "adapter")


def change(folder, **fields):
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**config, **fields}))


def test_its_base_is_checked_and_announced(adapter, made, tmp_path, caplog):
    model, _, kind = load_any(str(adapter))
    assert kind == "adapter"
    assert model.device.type == "cpu"
    assert f"Loading the base {made / 'base'}, which the adapter {adapter} names." in caplog.text
    tiny_base("llama", vocab_size=259, seed=5).save_pretrained(tmp_path / "other")
    change(adapter, base_model_name_or_path=str(tmp_path / "other"))
    with pytest.raises(RecurTraceError, match="was made on a base with fingerprint .*; use the right base"):
        load_any(str(adapter))
    (adapter / BASE_FILE).unlink()  # one from elsewhere does not say
    byte_tokenizer().save_pretrained(adapter)
    load_any(str(adapter))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_model_name_or_path": 5}, "does not name the adapter's base"),
        ({"base_model_name_or_path": None}, "does not name the adapter's base"),
        ({"megatron_config": {"x": 1}, "megatron_core": "antigravity"}, "asks for a module to be imported"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3}, "cannot be merged"),
        ({"peft_type": "SPELL"}, "is not the config of a PEFT adapter"),
        ({"r": 3}, "does not fit its base"),
        ({"target_modules": ["nothing"]}, "does not fit its base"),
        (
            {"target_modules": ["q_proj", "v_proj"]},
            "lacks base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight",
        ),
        ({"layers_to_transform": [0]}, "holds base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight, which"),
        ({"peft_type": "IA3", "feedforward_modules": []}, "lacks base_model.*ia3"),
        ({"r": "x"}, "does not fit its base"),
        ({"r": None}, "does not fit its base|is not the config"),
        ({"lora_alpha": "x"}, "does not fit its base"),
        ({"rank_pattern": 3}, "does not fit its base|is not the config"),
        ({"target_modules": "(q_proj"}, "a pattern that cannot be matched"),
        ({"target_modules": r"(([a-z_.0-9]+)+)+\d!"}, "a pattern that takes too long to match"),
        ({"rank_pattern": {r"(([a-z_.0-9]+)+)+\d!": 3}}, "a pattern that takes too long to match"),
    ],
)
def test_configs_get_a_sentence(adapter, fields, message, monkeypatch):
    monkeypatch.setattr("recurtrace.model.peft_adapter._PATIENCE", 2)
    change(adapter, **fields)
    with pytest.raises(RecurTraceError, match=message):
        load_any(str(adapter))


def test_patterns_of_usual_length_are_matched(adapter):
    change(adapter, target_modules=r".*\.(self_attn|attention)\.(?:q_proj|query)$")
    assert load_any(str(adapter))[2] == "adapter"


def test_weights_get_a_sentence(adapter):
    tensors = load_file(adapter / WEIGHTS_FILE)
    name = next(iter(tensors))
    for changed, message in ((tensors[name].int(), "holds I32 values"), (tensors[name] * torch.nan, "holds NaN")):
        save_file(tensors | {name: changed}, adapter / WEIGHTS_FILE)
        with pytest.raises(RecurTraceError, match=message):
            load_any(str(adapter))
    save_file({other: tensors[other] for other in tensors if other != name}, adapter / WEIGHTS_FILE)
    with pytest.raises(
        RecurTraceError, match="adapter_model.safetensors lacks .*, which adapter_config.json describes"
    ):
        load_any(str(adapter))
    (adapter / WEIGHTS_FILE).rename(adapter / "adapter_model.bin")
    with pytest.raises(RecurTraceError, match="has no adapter_model.safetensors; RecurTrace reads safetensors only"):
        load_any(str(adapter))
    (adapter / CONFIG_FILE).write_text("{}")
    with pytest.raises(RecurTraceError, match="is not the config of a PEFT adapter|does not name"):
        load_any(str(adapter))
    (adapter / CONFIG_FILE).write_text("[")
    with pytest.raises(RecurTraceError, match="is not the config of a PEFT adapter"):
        load_any(str(adapter))
