"""Bad configs of a model."""

import json

import pytest

from recurtrace import RecurTraceForCausalLM
from recurtrace.model.loading import load_any
from tests.conftest import LOOP, tiny_base
from tests.fuzz.outcome import command, outcome

CONFIGS = [
    ({"dtype": "os.system"}, "dtype"),
    ({"dtype": "nn"}, "dtype"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"hidden_size": "abc"}, "hidden_size"),
    ({"vocab_size": -5}, "vocab_size"),
    ({"num_attention_heads": 0}, "num_attention_heads"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ({"head_dim": 10**9}, "head_dim"),
    ({"head_dim": 7}, "head_dim"),
    ({"intermediate_size": None}, "intermediate_size"),
    ({"max_position_embeddings": "many"}, "max_position_embeddings"),
    ({"rope_parameters": {"rope_type": "none such"}}, "rope"),
    ({"hidden_act": "none such"}, "hidden_act"),
    ({"layer_types": ["none such"]}, "layer_types"),
]


@pytest.mark.parametrize("name", ["base", "llama", "looped"])
@pytest.mark.parametrize(("fields", "said"), CONFIGS, ids=lambda value: str(value)[:40])
def test_configs(changed, name, fields, said):
    folder = changed(name, **fields)
    sentence = command("info", folder, *(("--loop-start", 2) if name != "looped" else ()))
    if name != "looped" or said not in ("rope", "hidden_act", "layer_types"):  # of a looped folder it reads sizes alone
        assert said in sentence
    assert said in (
        command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out")
        if name != "looped"
        else command("generate", folder, "a", "--max-new-tokens", 1)
    )
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("value", [5, ["a"], {}, True])
def test_the_name_of_a_base_is_a_text(changed, value):
    folder = changed("looped", base_model_name_or_path=value)
    assert "base_model_name_or_path must be a text" in command("info", folder)
    assert "base_model_name_or_path must be a text" in command("generate", folder, "a")


def test_the_name_of_a_base_is_unicode(changed):
    assert "base_model_name_or_path must be valid Unicode" in command(
        "info", changed("looped", base_model_name_or_path="\ud800")
    )


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"x"', "{", "", "\udcff", '{"model_type": []}', '{"model_type": 3}', "[" * 10**5]
)
def test_configs_that_are_no_config(changed, text):
    for name in ("base", "looped"):
        folder = changed(name)
        (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert "config.json" in command("info", folder)
        assert "config.json" in command("generate", folder, "a")


@pytest.mark.parametrize("name", ["base", "looped"])
@pytest.mark.parametrize("value", ["kernels-community/flash-attn", "org/repo@main:f", "nope", 3, {"": "org/repo"}])
def test_kernels_of_the_hub_are_code(changed, monkeypatch, name, value):
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", lambda *_, **__: pytest.fail("fetched"))
    folder = changed(name)
    config = json.loads((folder / "config.json").read_text())
    for field in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        for part in (config, config["text_config"]) if name == "looped" else (config,):
            part[field] = value
            (folder / "config.json").write_text(json.dumps(config))
            said = outcome(lambda: load_any(str(folder)))
            assert f"{field} in the config.json of '{folder}' must be eager, sdpa, flex_attention" in said
            del part[field]
    said = outcome(lambda: RecurTraceForCausalLM.from_base(changed("base"), **LOOP, attn_implementation=value))
    assert "the attention must be eager" in said


@pytest.mark.parametrize("value", [{}, {"quant_method": "gptq", "bits": 4}, {"quant_method": "nope"}, 3, "x"], ids=str)
def test_quantizations(changed, value):
    folder = changed("base", quantization_config=value)
    said = command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out")
    if value != {"quant_method": "nope"}:  # which transformers passes over with a warning
        assert "config.json" in said
        assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("fields", [{"num_attention_heads": 0}, {"num_key_value_heads": 0}, {"head_dim": 0}], ids=str)
def test_a_llama_without_heads(tmp_path, fields):
    folder = tmp_path / "llama"
    tiny_base("llama").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("head_dim")
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    for call in (
        ("info", folder, "--loop-start", 2),
        ("generate", folder, "a"),
        ("convert", folder, "--loop-start", 2, "--out", tmp_path / "out"),
    ):
        assert "config.json" in command(*call)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["x", None, [], 0])
def test_values_that_only_the_model_reads(changed, value):
    for fields in ({"rope_parameters": {"rope_type": "default", "rope_theta": value}}, {"rms_norm_eps": value}):
        folder = changed("base", **fields)
        command("info", folder, "--loop-start", 2)
        command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out", "--overwrite")
