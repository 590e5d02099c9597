"""Sizes from a config.json alone are those that are counted on the modules."""

import json

import pytest

from recurtrace import RecurTraceForCausalLM
from recurtrace.assets import TINY_LOOP
from recurtrace.config_file import read_config_file
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.cost import shape_of
from recurtrace.shape import shape_in_file
from tests.conftest import LOOP, every_family, tiny_base

VARIANTS = [{}, {"loop_memory": False}, {"loop_qk_norm": False, "loop_num_layers": 2}]


@every_family
@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}])
def test_the_file_says_what_the_modules_have(family, fields, tmp_path):
    known = {"qwen2": {"tie_word_embeddings"}, "mistral": {"tie_word_embeddings"}}
    known |= {"qwen3": {"tie_word_embeddings", "attention_bias"}, "olmo2": {"tie_word_embeddings", "attention_bias"}}
    base = tiny_base(family, **{name: on for name, on in fields.items() if name in known.get(family, fields)})
    for number, loop in enumerate(VARIANTS):
        model = RecurTraceForCausalLM.from_base(base, **{**LOOP, **loop})
        if number == 1:
            model.config.set_head("act", HeadSettings("act"))
            model.config.set_head(None, HeadSettings())
        model.config.save_pretrained(tmp_path)
        found = shape_in_file(read_config_file(tmp_path / "config.json", "model"))
        assert found == shape_of(model.config)


def test_what_is_not_as_usual_is_left_to_the_model():
    found = json.loads((TINY_LOOP / "config.json").read_text())
    assert shape_in_file(found) is not None
    for change in ({"loop_start": 99}, {"loop_start": None}, {"loop_halting_heads": {"a": 3}}, {"text_config": None}):
        assert shape_in_file({**found, **change}) is None
    assert shape_in_file({**found, "text_config": {**found["text_config"], "head_dim": None}}) is None
