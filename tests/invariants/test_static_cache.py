"""`generate(cache_implementation="static")`: the same tokens, and a decoding step that is compiled once."""

import pytest
import torch
from transformers import CompileConfig

from recurtrace.model.cache import StaticRecurTraceCache
from tests.conftest import every_family, tiny_looped, tokens

NEW = 6


def padded():
    ids = tokens(3, 7)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


@every_family
def test_equal_tokens(looped, family):
    model = looped(family)
    for loops in (1, 4):
        expected = model.generate(**padded(), loops=loops, max_new_tokens=NEW)
        out = model.generate(
            **padded(), loops=loops, max_new_tokens=NEW, cache_implementation="static", return_dict_in_generate=True
        )
        assert torch.equal(out.sequences, expected)
        cache = out.past_key_values
        assert isinstance(cache, StaticRecurTraceCache)
        assert cache.depths == [loops] * 3
        assert len(cache.layers) == 6 + (loops - 1) * 3  # a slot for every loop
        assert {slot.keys.shape[2] for slot in cache.layers} == {7 + NEW - 1}  # the last token is not read


def test_past_the_edge_of_a_sliding_window():
    model = tiny_looped("mistral", sliding_window=5)
    expected = model.generate(**padded(), loops=3, max_new_tokens=NEW)
    assert torch.equal(model.generate(**padded(), loops=3, max_new_tokens=NEW, cache_implementation="static"), expected)


def test_beams():
    model = tiny_looped()
    how = {"loops": 3, "max_new_tokens": NEW, "num_beams": 2}
    expected = model.generate(**padded(), **how)
    assert torch.equal(model.generate(**padded(), **how, cache_implementation="static"), expected)


def test_a_step_is_compiled_once():
    """As transformers does by itself on an accelerator: one graph without breaks for all steps."""
    model = tiny_looped(num_hidden_layers=3, loop_start=1, loop_num_layers=1)
    expected = model.generate(**padded(), loops=3, max_new_tokens=4)
    graphs = []
    config = CompileConfig(
        fullgraph=True, dynamic=False, mode=None, backend=lambda graph, _: graphs.append(graph) or graph.forward
    )
    config._compile_all_devices = True
    how = {"loops": 3, "max_new_tokens": 4, "cache_implementation": "static", "compile_config": config}
    assert torch.equal(model.generate(**padded(), **how), expected)
    assert len(graphs) == 1


@pytest.mark.parametrize("asked", [{"loops": "adaptive"}, {"loops": [1, 2, 3]}, {"loops": 2, "prefill_chunk_size": 3}])
def test_what_it_cannot_have(looped, asked):
    with pytest.raises(ValueError, match="needs one depth for all rows and the prompt in one piece; pass loops as a"):
        looped().generate(**padded(), max_new_tokens=2, cache_implementation="static", **asked)
