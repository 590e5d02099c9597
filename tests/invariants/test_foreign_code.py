"""Code that comes with a model is never run unasked, and nobody is asked on standard input."""

import json

import pytest

from recurtrace import RecurTraceForCausalLM
from recurtrace.errors import RecurTraceError
from recurtrace.model.loading import load_any
from recurtrace.model.tokenizer import load_tokenizer
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
    with pytest.raises((RecurTraceError, ValueError)):
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
    with pytest.raises(RecurTraceError, match="no tokenizer found"):
        load_tokenizer(str(folder))
    assert not mark.exists()


def test_who_trusts_it_may_say_so(foreign):
    folder, mark = foreign
    with pytest.raises(RecurTraceError, match="is a foreign model without loops"):
        RecurTraceForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert mark.exists()
