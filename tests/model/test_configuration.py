"""The paper's hyperparameter table, and settings no model can have."""

import pytest
from transformers import AutoConfig

from recurtrace import RecurTraceConfig, RecurTraceError, RecurTraceForCausalLM
from recurtrace.model import families
from recurtrace.model.cost import cost_of
from tests.conftest import TINY, tiny_base


def config(**fields):
    return RecurTraceConfig(text_config=AutoConfig.for_model("qwen3", **TINY), **{"loop_start": 2, **fields})


def test_defaults_are_the_papers_hyperparameter_table():
    table = {
        "loop_num_layers": 3, "loop_train_max": 8, "loop_sample_dist": "lognormal_poisson", "loop_train_mean": 4.0,
        "loop_train_sigma": 0.5, "loop_memory_window": 3, "loop_attn_num_heads": 4, "loop_attn_head_dim": 128,
        "loop_gate_init": 1.0, "loop_gate_init_bias": -3.0, "loop_injection_init": 0.0,
        "loop_halting_aux_margin": 0.01, "loop_halting_depth_cost": 0.0, "loop_halting_aux_depths": [1, 2, 4, 6],
        "loop_halting_pooling": "prompt_mean", "loop_halting_objective": "oracle", "loop_halting_min_depth": 2,
        "loop_halting_max_depth": 16, "loop_halting_oracle_max": 16,
    }  # fmt: skip
    made = RecurTraceConfig(text_config=families.QWEN3["0.6B"].config(), loop_start=12)
    assert {name: getattr(made, name) for name in table} == table


@pytest.mark.parametrize(
    ("hidden_size", "width"), [(1024, 128), (4096, 128), (960, 120), (576, 72), (288, 32), (128, 16), (32, 8)]
)
def test_heads_are_as_wide_as_the_base_allows(hidden_size, width):
    """All together at most half as wide as the base, as they are on the paper's smallest."""
    base = AutoConfig.for_model("qwen3", **{**TINY, "hidden_size": hidden_size})
    assert RecurTraceConfig(text_config=base, loop_start=2).loop_attn_head_dim == width
    assert RecurTraceConfig(text_config=base, loop_start=2, loop_attn_head_dim=100).loop_attn_head_dim == 100


def test_round_trip(tmp_path):
    made = config(loop_memory_window=5, loop_halting_threshold=0.4)
    made.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    read.name_or_path = ""
    assert read.to_dict() == made.to_dict()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loop_start": 4}, r"block 4–6 is outside the 6 layers \(0–5\) of the base"),
        ({"loop_start": -1}, "block -1–1 is outside"),
        ({"loop_num_layers": 7, "loop_start": 0}, "block 0–6 is outside"),
        ({"loop_start": None}, "loop_start is not set"),
        ({"loop_start": 1.5}, "loop_start must be a whole number, got 1.5"),
        ({"loop_num_layers": 0}, "loop_num_layers must be a whole number of at least 1, got 0"),
        ({"loop_memory_window": 0}, "loop_memory_window must be a whole number of at least 1, got 0"),
        ({"loop_memory_window": 2.0}, "loop_memory_window must be a whole number"),
        ({"loop_num_loops": 0}, "loop_num_loops must be a whole number of at least 1, got 0"),
        ({"loop_gate_init_bias": float("nan")}, "loop_gate_init_bias must be a finite number, got nan"),
        ({"loop_halting_threshold": 2}, "between 0 and 1, got 2"),
        ({"loop_halting_min_depth": 9, "loop_halting_max_depth": 8}, r"min_depth \(9\) is above"),
        ({"loop_halting_pooling": "max"}, "must be one of prompt_mean, prompt_last, got 'max'"),
        ({"loop_memory": "no"}, "loop_memory must be true or false, got 'no'"),
        ({"loop_sample_dist": "uniform"}, "must be one of lognormal_poisson, got 'uniform'"),
        ({"loop_halting_aux_depths": [0, 2]}, "must be a list of depths of at least 1"),
        ({"loop_halting_aux_depths": 5}, "must be a list of depths of at least 1, got 5"),
        ({"loop_train_mean": 0.5}, "loop_train_mean must be above 1"),
        ({"loop_windw": 3}, "unknown field 'loop_windw' in the RecurTrace config"),
        ({"hidden_size": 3}, "unknown field 'hidden_size'"),
    ],
)
def test_impossible_settings(fields, message):
    with pytest.raises(RecurTraceError, match=message):
        config(**fields)
    if fields.get("loop_start", 2) is not None:
        with pytest.raises(RecurTraceError, match=message):
            RecurTraceForCausalLM.from_base(tiny_base(), **{"loop_start": 2, **fields})


def test_a_config_without_its_base():
    with pytest.raises(RecurTraceError, match="needs text_config"):
        RecurTraceConfig(loop_start=2)
    with pytest.raises(RecurTraceError, match="got 'qwen'"):
        RecurTraceConfig(text_config="qwen", loop_start=2)
    with pytest.raises(RecurTraceError, match="model_type 'quen9' is not known"):
        RecurTraceConfig(text_config={"model_type": "quen9"}, loop_start=2)
    with pytest.raises(RecurTraceError, match="'gpt2' cannot be looped yet"):
        RecurTraceConfig(text_config={"model_type": "gpt2"}, loop_start=2)


QWEN3 = {  # layers, hidden, MLP, heads, first looped layer, tied embeddings; added parameters in millions
    "0.6B": ((28, 1024, 3072, 16, 12, True), 12.6),
    "1.7B": ((28, 2048, 6144, 16, 12, True), 37.7),
    "4B": ((36, 2560, 9728, 32, 15, True), 55.1),
    "8B": ((36, 4096, 12288, 32, 15, False), 125.8),
}


@pytest.mark.parametrize("scale", QWEN3)
def test_added_parameters_at_the_papers_scales(scale):
    (layers, hidden, mlp, heads, start, tied), millions = QWEN3[scale]
    base = AutoConfig.for_model(
        "qwen3", vocab_size=151936, num_hidden_layers=layers, hidden_size=hidden, intermediate_size=mlp,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied,
    )  # fmt: skip
    count = cost_of(RecurTraceConfig(text_config=base, loop_start=start)).parameters
    assert count.added / 1e6 == pytest.approx(millions, abs=0.1)
    assert 0.013 < count.share <= 0.022
    assert count.added == 3 * (4 * hidden * 512 + 2 * hidden**2 + 2 * hidden + 2 * 128 + 4 + 1) + 1 + hidden + 1


def test_a_sweep_of_one_depth_costs_what_a_forward_pass_does():
    cost = cost_of(config())
    for depth in (1, 3):
        macs = cost.sweep_macs([depth], 10, 10, before=2)
        assert macs == 10 * cost.macs(depth, 5.5)
    both = cost.sweep_macs([1, 3], 10, 4, before=2)
    decoder = 10 * (cost.layers - 2 - cost.looped_layers) * (cost.layer_macs + 11 * cost.attention_width)
    assert both == cost.sweep_macs([3], 10, 4, before=2) + decoder + 4 * cost.head_macs
