"""Files: round trips, kinds of checkpoints, and everything that must be refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from recurtrace import RecurTraceConfig, RecurTraceError, RecurTraceForCausalLM
from tests.conftest import LOOP, every_family, stir, tiny_base, tokens


def logits(model, loops=4):
    with torch.no_grad():
        return model(tokens(2, 6), loops=loops).logits


@pytest.fixture
def base_folder(tmp_path):
    tiny_base().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(tmp_path, base_folder):
    model = stir(RecurTraceForCausalLM.from_base(base_folder, **LOOP))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
@every_family
def test_round_trips(tmp_path, family, sharded, tied):
    shards = {"max_shard_size": "20KB"} if sharded else {}
    tiny_base(family, tie_word_embeddings=tied).save_pretrained(tmp_path / "base", **shards)
    model = stir(RecurTraceForCausalLM.from_base(tmp_path / "base", **LOOP))
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path / "adapter")
    model.save_pretrained(tmp_path / "merged", merge_base=True, **shards)
    assert (tmp_path / "merged" / "model.safetensors.index.json").exists() == sharded
    assert (tmp_path / "base" / "model.safetensors.index.json").exists() == sharded
    for kind in ("adapter", "merged"):
        for loader in (RecurTraceForCausalLM, AutoModelForCausalLM):
            loaded = loader.from_pretrained(tmp_path / kind)
            assert isinstance(loaded, RecurTraceForCausalLM)
            assert torch.equal(logits(loaded), logits(model))
            assert loaded.generation_config.max_new_tokens == 5
            assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied


def test_the_adapter_file_holds_the_loop_modules_only(adapter):
    assert sorted(file.name for file in adapter.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "recurtrace.safetensors",
    ]  # fmt: skip
    assert all(name.startswith("loop.") for name in load_file(adapter / "recurtrace.safetensors"))


def test_a_merged_folder_is_found_where_others_look(tmp_path, base_folder):
    stir(RecurTraceForCausalLM.from_base(base_folder, **LOOP)).save_pretrained(tmp_path / "merged", merge_base=True)
    raw = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert raw["model_type"] == "recurtrace"
    assert raw["architectures"] == ["RecurTraceForCausalLM"]
    config = AutoConfig.from_pretrained(tmp_path / "merged")
    assert config.get_text_config().model_type == "qwen3"
    assert config.get_text_config().num_hidden_layers == 6
    names = load_file(tmp_path / "merged" / "model.safetensors").keys()
    assert {name for name in names if not name.startswith("loop.")} == tiny_base().state_dict().keys()


@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_dtype_and_attention_of_a_load(tmp_path, adapter, kind):
    RecurTraceForCausalLM.from_pretrained(adapter).save_pretrained(tmp_path / "merged", merge_base=True)
    for loader in (RecurTraceForCausalLM, AutoModelForCausalLM):
        model = loader.from_pretrained(tmp_path / kind, dtype=torch.bfloat16, attn_implementation="eager")
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert model.config._attn_implementation == model.model.config._attn_implementation == "eager"
        model.set_attn_implementation("sdpa")
        assert model.model.config._attn_implementation == "sdpa"


def test_config_fields_can_be_overridden_at_load(tmp_path, adapter):
    RecurTraceForCausalLM.from_pretrained(adapter).save_pretrained(tmp_path / "merged", merge_base=True)
    for kind in ("adapter", "merged"):
        assert RecurTraceForCausalLM.from_pretrained(tmp_path / kind, loop_num_loops=5).config.loop_num_loops == 5
        with pytest.raises(RecurTraceError, match="unknown field 'loop_nm_loops' .* did you mean 'loop_num_loops'"):
            RecurTraceForCausalLM.from_pretrained(tmp_path / kind, loop_nm_loops=5)


def test_a_given_config_is_not_changed(adapter):
    config = RecurTraceConfig.from_pretrained(adapter)
    RecurTraceForCausalLM.from_pretrained(adapter, config=config, loop_num_loops=7)
    assert config.loop_num_loops == 2


def test_loading_info(tmp_path, adapter):
    RecurTraceForCausalLM.from_pretrained(adapter).save_pretrained(tmp_path / "merged", merge_base=True)
    for kind in ("adapter", "merged"):
        _, info = RecurTraceForCausalLM.from_pretrained(tmp_path / kind, output_loading_info=True)
        assert not any(info.values())


def test_a_trained_head_makes_depth_adaptive_after_loading(adapter):
    model = RecurTraceForCausalLM.from_pretrained(adapter)
    assert model.config.default_loops == "adaptive"
    assert model(tokens(2, 6)).continue_probs is not None


def test_the_card_states_the_facts(adapter):
    card = (adapter / "README.md").read_text()
    added = sum(tensor.numel() for tensor in load_file(adapter / "recurtrace.safetensors").values())
    assert "layers 2–4 of 6" in card
    assert f"{added:,}" in card
    assert RecurTraceConfig.from_pretrained(adapter).base_fingerprint in card


class TestFingerprint:
    def test_does_not_depend_on_shards_or_load_dtype(self, tmp_path, base_folder):
        tiny_base().save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
        prints = {
            RecurTraceForCausalLM.from_base(base, **LOOP).config.base_fingerprint
            for base in (base_folder, tmp_path / "sharded", tiny_base())
        }
        half = RecurTraceForCausalLM.from_base(base_folder, dtype=torch.bfloat16, **LOOP).config.base_fingerprint
        loaded = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.bfloat16)
        prints |= {half, RecurTraceForCausalLM.from_base(loaded, **LOOP).config.base_fingerprint}
        assert len(prints) == 1

    def test_another_base_is_refused(self, adapter, base_folder):
        tensors = load_file(base_folder / "model.safetensors")
        tensors["model.norm.weight"][3] += 1e-3
        save_file(tensors, base_folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(
            RecurTraceError, match="was made on a base with fingerprint .* load it with check_base=False"
        ):
            RecurTraceForCausalLM.from_pretrained(adapter)
        RecurTraceForCausalLM.from_pretrained(adapter, check_base=False)

    def test_a_base_that_moved(self, tmp_path, adapter, base_folder):
        base_folder.rename(tmp_path / "elsewhere")
        with pytest.raises(RecurTraceError, match="is missing; pass base="):
            RecurTraceForCausalLM.from_pretrained(adapter)
        RecurTraceForCausalLM.from_pretrained(adapter, base=tmp_path / "elsewhere")
        RecurTraceForCausalLM.from_pretrained(adapter, base=tiny_base())

    def test_a_base_beside_its_adapter(self, tmp_path, adapter, base_folder):
        raw = json.loads((adapter / "config.json").read_text())
        (adapter / "config.json").write_text(json.dumps(raw | {"base_model_name_or_path": "../base"}))
        RecurTraceForCausalLM.from_pretrained(adapter)

    def test_a_base_without_a_name(self, tmp_path):
        model = RecurTraceForCausalLM.from_base(tiny_base(), **LOOP)
        model.save_pretrained(tmp_path / "adapter")
        with pytest.raises(RecurTraceError, match="does not name its base; pass base="):
            RecurTraceForCausalLM.from_pretrained(tmp_path / "adapter")


class TestRefusedFiles:
    def test_truncated_adapter(self, adapter):
        file = adapter / "recurtrace.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(RecurTraceError, match="is not a whole safetensors file"):
            RecurTraceForCausalLM.from_pretrained(adapter)

    def test_something_else_called_safetensors(self, adapter):
        (adapter / "recurtrace.safetensors").write_bytes(b"\x80\x04 not safetensors at all")
        with pytest.raises(RecurTraceError, match="is not a whole safetensors file"):
            RecurTraceForCausalLM.from_pretrained(adapter)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: t.pop("loop.memory.1.slope"), "lacks loop.memory.1.slope"),
            (lambda t: t.update({"lora_A": torch.ones(2)}), "holds lora_A, which this model does not have"),
            (
                lambda t: t.update({"loop.memory.0.slope": torch.ones(7)}),
                r"loop.memory.0.slope .* has shape \[7\] where the config asks for \[4\]",
            ),
            (lambda t: t["loop.memory.2.gate.bias"].fill_(torch.nan), "loop.memory.2.gate.bias .* holds NaN"),
            (lambda t: t["loop.injection.alpha"].fill_(torch.inf), "holds NaN or infinite values"),
        ],
        ids=["missing", "foreign", "shape", "nan", "inf"],
    )
    @pytest.mark.parametrize("kind", ["adapter", "merged"])
    def test_wrong_tensors(self, tmp_path, adapter, kind, change, message):
        RecurTraceForCausalLM.from_pretrained(adapter).save_pretrained(tmp_path / "merged", merge_base=True)
        file = tmp_path / kind / ("recurtrace.safetensors" if kind == "adapter" else "model.safetensors")
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})
        with pytest.raises(RecurTraceError, match=message):
            RecurTraceForCausalLM.from_pretrained(tmp_path / kind)

    def test_truncated_merged_checkpoint(self, tmp_path, adapter):
        RecurTraceForCausalLM.from_pretrained(adapter).save_pretrained(tmp_path / "merged", merge_base=True)
        file = tmp_path / "merged" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
        with pytest.raises(RecurTraceError, match="is not a whole safetensors file"):
            RecurTraceForCausalLM.from_pretrained(tmp_path / "merged")

    def test_truncated_base(self, base_folder):
        file = base_folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(RecurTraceError, match="is not a whole safetensors file"):
            RecurTraceForCausalLM.from_base(base_folder, **LOOP)

    def test_base_with_nan(self, base_folder):
        tensors = load_file(base_folder / "model.safetensors")
        tensors["model.layers.3.mlp.up_proj.weight"][0, 0] = torch.nan
        save_file(tensors, base_folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(RecurTraceError, match=r"model.layers.3.mlp.up_proj.weight .* holds NaN"):
            RecurTraceForCausalLM.from_base(base_folder, **LOOP)

    def test_base_with_a_missing_weight(self, base_folder):
        tensors = load_file(base_folder / "model.safetensors")
        tensors.pop("model.norm.weight")
        save_file(tensors, base_folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(RecurTraceError, match="lack model.norm.weight"):
            RecurTraceForCausalLM.from_base(base_folder, **LOOP)

    def test_pickled_base(self, base_folder):
        torch.save(load_file(base_folder / "model.safetensors"), base_folder / "pytorch_model.bin")
        (base_folder / "model.safetensors").unlink()
        with pytest.raises(RecurTraceError, match="RecurTrace reads safetensors only"):
            RecurTraceForCausalLM.from_base(base_folder, **LOOP)

    def test_no_model_there(self, tmp_path):
        (tmp_path / "empty").mkdir()
        for load in (RecurTraceForCausalLM.from_base, RecurTraceForCausalLM.from_pretrained):
            with pytest.raises(RecurTraceError, match="has no config.json, so it holds no model"):
                load(tmp_path / "empty")
            with pytest.raises(RecurTraceError, match="no model found at .*: it is not a folder here"):
                load(str(tmp_path / "nowhere"))

    def test_a_plain_base_is_not_a_looped_model(self, base_folder, adapter):
        with pytest.raises(RecurTraceError, match="is a qwen3 model without loops; convert it"):
            RecurTraceForCausalLM.from_pretrained(base_folder)
        with pytest.raises(RecurTraceError, match="is a RecurTrace model already"):
            RecurTraceForCausalLM.from_base(adapter)

    def test_unknown_field_in_a_saved_config(self, adapter):
        raw = json.loads((adapter / "config.json").read_text())
        (adapter / "config.json").write_text(json.dumps(raw | {"loop_memory_windw": 4}))
        with pytest.raises(RecurTraceError, match="'loop_memory_windw' .* did you mean 'loop_memory_window'"):
            RecurTraceForCausalLM.from_pretrained(adapter)

    def test_a_config_that_is_no_json(self, adapter):
        (adapter / "config.json").write_text('{"model_type": "recurt')
        with pytest.raises(RecurTraceError, match="config.json of .* is not valid JSON"):
            RecurTraceForCausalLM.from_pretrained(adapter)

    def test_unknown_options(self, adapter):
        with pytest.raises(RecurTraceError, match="does not know devce_map"):
            RecurTraceForCausalLM.from_pretrained(adapter, devce_map="auto")

    def test_a_shallower_base(self, tmp_path, adapter):
        tiny_base(num_hidden_layers=4).save_pretrained(tmp_path / "shallow")
        with pytest.raises(RecurTraceError, match="block 2–4 is outside the 4 layers"):
            RecurTraceForCausalLM.from_pretrained(adapter, base=tmp_path / "shallow", check_base=False)

    def test_unsupported_family(self, tmp_path):
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50))
        model.save_pretrained(tmp_path / "gpt2")
        message = "'gpt2' cannot be looped yet; supported are Qwen3, Qwen2, Llama and SmolLM, Mistral, OLMo2"
        for base in (model, tmp_path / "gpt2"):
            with pytest.raises(RecurTraceError, match=message):
                RecurTraceForCausalLM.from_base(base, loop_start=0, loop_num_layers=1)


class TestSaving:
    def test_a_base_is_never_overwritten(self, tmp_path, base_folder, adapter):
        model = RecurTraceForCausalLM.from_pretrained(adapter)
        before = (base_folder / "config.json").read_text()
        with pytest.raises(RecurTraceError, match="holds a full checkpoint"):
            model.save_pretrained(base_folder)
        with pytest.raises(RecurTraceError, match="holds another model"):
            model.save_pretrained(base_folder, merge_base=True)
        with pytest.raises(RecurTraceError, match="holds an adapter"):
            model.save_pretrained(adapter, merge_base=True)
        assert (base_folder / "config.json").read_text() == before
        (tmp_path / "file").write_text("")
        with pytest.raises(RecurTraceError, match="is a file; name a folder"):
            model.save_pretrained(tmp_path / "file")

    def test_saving_again_replaces(self, adapter):
        model = stir(RecurTraceForCausalLM.from_pretrained(adapter), seed=8)
        model.save_pretrained(adapter)
        assert torch.equal(logits(RecurTraceForCausalLM.from_pretrained(adapter)), logits(model))

    @pytest.mark.parametrize("merge_base", [True, False])
    def test_a_failed_save_leaves_the_old_files(self, tmp_path, adapter, monkeypatch, merge_base):
        model = RecurTraceForCausalLM.from_pretrained(adapter)
        folder = tmp_path / "merged" if merge_base else adapter
        model.save_pretrained(folder, merge_base=merge_base)
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        stir(model, seed=9)

        def full_disk(*args, **kwargs):
            raise OSError("No space left on device")

        monkeypatch.setattr(type(model.config), "save_pretrained", full_disk)
        with pytest.raises(RecurTraceError, match="no space was left on the disk"):
            model.save_pretrained(folder, merge_base=merge_base)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before

    def test_a_gathered_state_dict_is_used(self, tmp_path, adapter):
        model = RecurTraceForCausalLM.from_pretrained(adapter)
        gathered = {name: tensor * 2 for name, tensor in model.state_dict().items()}
        model.save_pretrained(tmp_path / "gathered", state_dict=gathered)
        saved = load_file(tmp_path / "gathered" / "recurtrace.safetensors")
        assert all(torch.equal(tensor, gathered[name]) for name, tensor in saved.items())
        model.save_pretrained(tmp_path / "other_rank", is_main_process=False)
        assert not (tmp_path / "other_rank").exists()

    @pytest.mark.parametrize(("first", "second"), [({}, {"max_shard_size": "20KB"}), ({"max_shard_size": "20KB"}, {})])
    def test_no_old_shard_is_taken_for_a_new_one(self, tmp_path, adapter, first, second):
        model = RecurTraceForCausalLM.from_pretrained(adapter)
        model.save_pretrained(tmp_path / "merged", merge_base=True, **first)
        stir(model, seed=8).save_pretrained(tmp_path / "merged", merge_base=True, **second)
        assert torch.equal(logits(RecurTraceForCausalLM.from_pretrained(tmp_path / "merged")), logits(model))
        assert (tmp_path / "merged" / "model.safetensors").exists() == (not second)

    def test_a_resized_vocabulary_needs_a_merged_save(self, tmp_path, adapter):
        model = RecurTraceForCausalLM.from_pretrained(adapter)
        model.resize_token_embeddings(120)
        with pytest.raises(RecurTraceError, match="the vocabulary was resized"):
            model.save_pretrained(tmp_path / "again")
        model.save_pretrained(tmp_path / "merged", merge_base=True)
        assert torch.equal(logits(RecurTraceForCausalLM.from_pretrained(tmp_path / "merged")), logits(model))

    def test_uploading(self, adapter, monkeypatch):
        """What would be sent to the hub is the folder that save_pretrained writes, card included."""
        from huggingface_hub import HfApi

        model, sent = RecurTraceForCausalLM.from_pretrained(adapter), {}
        monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **kw: type("Url", (), {"repo_id": repo_id}))

        def upload(self, folder_path, **kwargs):
            sent.update({file.name: file.read_bytes() for file in Path(folder_path).iterdir()}, repo=kwargs["repo_id"])

        monkeypatch.setattr(HfApi, "upload_folder", upload)
        model.push_to_hub("someone/looped")
        assert sent.pop("repo") == "someone/looped"
        assert sent == {file.name: file.read_bytes() for file in adapter.iterdir()}
        with pytest.raises(RecurTraceError, match="call push_to_hub"):
            model.save_pretrained(adapter, push_to_hub=True)

    def test_an_interrupted_earlier_save_is_no_obstacle(self, adapter):
        shutil.copytree(adapter, adapter / ".saving-left-behind")
        RecurTraceForCausalLM.from_pretrained(adapter).save_pretrained(adapter)


def test_block_presets_of_the_paper():
    from transformers import Qwen3Config

    from recurtrace.model.families import choose_block

    for (layers, hidden), start in {(28, 1024): 12, (28, 2048): 12, (36, 2560): 15, (36, 4096): 15}.items():
        assert choose_block(Qwen3Config(num_hidden_layers=layers, hidden_size=hidden), None, 3) == start
    with pytest.raises(
        RecurTraceError, match=r"no block is known for a 24-layer qwen3 .* pass loop_start \(--loop-start\)"
    ):
        choose_block(Qwen3Config(num_hidden_layers=24, hidden_size=1024), None, 3)
    with pytest.raises(RecurTraceError, match="with 4 looped layers; pass loop_start"):
        choose_block(Qwen3Config(num_hidden_layers=28, hidden_size=1024), None, 4)


def test_options_of_a_base_that_is_loaded_already():
    with pytest.raises(RecurTraceError, match="dtype cannot be changed on a base that is loaded already"):
        RecurTraceForCausalLM.from_base(tiny_base(), dtype=torch.bfloat16, **LOOP)
