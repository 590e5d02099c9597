"""Code that comes with a model is never run unasked, and nobody is asked on standard input."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from recurtrace import RecurTraceForCausalLM
from recurtrace.errors import RecurTraceError
from recurtrace.model.heads import read_head
from recurtrace.model.loading import load_any
from recurtrace.model.tokenizer import load_tokenizer
from recurtrace.training.recipe import TrainRecipe
from tests.cli.test_commands import run
from tests.conftest import LOOP, byte_tokenizer, tiny_base

CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import PreTrainedConfig
class Foreign(PreTrainedConfig):
    model_type = "foreign"
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A folder whose config names a file of its own as the code of an unknown model type; running it leaves a mark."""
    folder, mark = tmp_path / "foreign", tmp_path / "ran"
    tiny_base("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "code.Foreign"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "foreign", "auto_map": names}))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    return folder, mark


def test_a_model_with_code_of_its_own_is_refused(foreign, tmp_path):
    folder, mark = foreign
    for call in (
        lambda: RecurTraceForCausalLM.from_base(folder, **LOOP),
        lambda: RecurTraceForCausalLM.from_pretrained(folder),
        lambda: load_any(str(folder)),
        lambda: run("info", folder),
        lambda: run("convert", folder, "--loop-start", 2, "--out", tmp_path / "out"),
        lambda: run("generate", folder, "a"),
    ):
        with pytest.raises(RecurTraceError, match="wants to run code of its own, which is refused"):
            call()
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


def test_an_adapter_cannot_bring_it_in_by_its_base(foreign, tmp_path):
    folder, mark = foreign
    base = tmp_path / "base"
    tiny_base("llama").save_pretrained(base)
    byte_tokenizer().save_pretrained(base)
    adapter = tmp_path / "adapter"
    RecurTraceForCausalLM.from_base(base, **LOOP).save_pretrained(adapter)
    config = json.loads((adapter / "config.json").read_text())
    (adapter / "config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(folder)}))
    with pytest.raises(RecurTraceError, match="wants to run code of its own"):
        RecurTraceForCausalLM.from_pretrained(adapter)
    assert not mark.exists()


def test_a_tokenizer_with_code_of_its_own_is_not_run(foreign, tmp_path):
    folder, mark = foreign
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) | {
        "tokenizer_class": "Foreign",
        "auto_map": {"AutoTokenizer": ["code.F", None]},
    }
    file.write_text(json.dumps(config))
    with pytest.raises(RecurTraceError, match="wants to run code of its own, which is refused"):
        load_tokenizer(str(folder))
    assert not mark.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["info"],
        ["convert", "--out", "x", "--loop-start", 2],
        ["generate", "a"],
        ["sweep", "--data", "p_hop", "--count", 1, "--out", "x"],
        ["evaluate", "--data", "p_hop", "--count", 1, "--out", "x"],
        ["cost"],
        ["trace", "a"],
        ["explore"],
        ["probe", "--data", "p_hop", "--inputs", 1],
    ],
    ids=lambda command: command[0],
)
def test_who_trusts_it_may_say_so(foreign, command, monkeypatch):
    folder, mark = foreign
    monkeypatch.setattr("recurtrace.data.selection.gather", lambda *_: [])
    name, *options = command
    with pytest.raises(RecurTraceError, match="wants to run code of its own, which is refused"):
        run(name, folder, *options)
    assert not mark.exists()
    with pytest.raises(RecurTraceError, match="foreign"):  # read, and then not of a family that can be looped
        run(name, folder, *options, "--trust-remote-code")
    assert mark.exists()


def test_a_recipe_cannot_trust_for_its_reader(tmp_path):
    for name in ("trust_remote_code", "overwrite"):
        (tmp_path / "recipe.yaml").write_text(f"{name}: true")
        for command in ("train", "run"):
            with pytest.raises(RecurTraceError, match=f"{name} cannot be set in a recipe; pass --{name[:5]}"):
                run(command, tmp_path / "recipe.yaml")
    fields = {"model": "x", "data": "x", "out": "x", "steps": 1}
    assert TrainRecipe.check(fields | {"trust_remote_code": True}, "recipe").hub == {"trust_remote_code": True}


@pytest.fixture
def adapter(tmp_path):
    """On a base beside it."""
    tiny_base("llama").save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    RecurTraceForCausalLM.from_base(tmp_path / "base", **LOOP).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_base_elsewhere_is_announced_before_it_is_loaded(adapter, caplog, monkeypatch):
    monkeypatch.setattr("recurtrace.model.pretrained.load_base", lambda *_, **__: pytest.fail(caplog.text))
    base = adapter.parent / "base"
    with pytest.raises(pytest.fail.Exception, match=f"Loading the base {base}, which the adapter {adapter} names."):
        RecurTraceForCausalLM.from_pretrained(adapter)
    base.rename(adapter / "base")  # its own
    config = json.loads((adapter / "config.json").read_text())
    (adapter / "config.json").write_text(json.dumps({**config, "base_model_name_or_path": "base"}))
    caplog.clear()
    with pytest.raises(pytest.fail.Exception, match="^$"):
        RecurTraceForCausalLM.from_pretrained(adapter)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float8_e4m3fn])
def test_weights_are_numbers_with_a_point(adapter, dtype):
    file = adapter / "recurtrace.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"loop.memory.0.gate.bias": tensors["loop.memory.0.gate.bias"].to(dtype)}, file)
    with pytest.raises(RecurTraceError, match="loop.memory.0.gate.bias in .* values where weights are F32, BF16"):
        RecurTraceForCausalLM.from_pretrained(adapter)
    config = json.loads((adapter / "config.json").read_text())
    (adapter / "config.json").write_text(json.dumps({**config, "loop_halting_trained": True}))
    with pytest.raises(RecurTraceError, match="values where weights are"):
        read_head(adapter)
