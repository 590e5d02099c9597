"""Model folders that the inputs of this folder are made of."""

import json
import shutil

import pytest

from recurtrace import RecurTraceForCausalLM
from tests.conftest import LOOP, byte_tokenizer, stir, tiny_base


@pytest.fixture(scope="package")
def models(tmp_path_factory):
    """A base, and a looped model on it; nothing is written beside them."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = byte_tokenizer()
    tiny_base(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id).save_pretrained(folder / "base")
    model = stir(RecurTraceForCausalLM.from_base(folder / "base", **LOOP))
    model.save_pretrained(folder / "looped")
    llama = tiny_base("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    llama.save_pretrained(folder / "llama")
    for name in ("base", "llama", "looped"):
        tokenizer.save_pretrained(folder / name)
    yield folder
    assert {file.name for file in folder.iterdir()} == {"base", "llama", "looped"}


@pytest.fixture
def changed(models, tmp_path):
    """A model folder with fields of its config changed; `text_config` of a looped one is the base's."""

    def make(name, **fields):
        shutil.copytree(models / name, tmp_path / name, dirs_exist_ok=True)
        file = tmp_path / name / "config.json"
        config = json.loads(file.read_text())
        inner = config["text_config"] if name == "looped" else config
        for field, value in fields.items():
            (config if field in ("base_model_name_or_path", "dtype") else inner)[field] = value
        file.write_text(json.dumps(config))
        return tmp_path / name

    return make
