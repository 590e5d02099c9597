"""What would run without end, or mean nothing, is refused: depths far beyond training, positions beyond the base's."""

import logging

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.halting.policies import SignalPolicy
from recurtrace.model.positions import longest_input
from tests.conftest import tiny_base, tiny_looped, tokens


@pytest.mark.parametrize("name", ["loop", "depth", "num_loops", "loop_num_loops", "recurrences", "halting_threshold"])
def test_a_depth_under_another_name_is_refused(looped, name):
    for call in (looped(), looped().generate):
        with pytest.raises(RecurTraceError, match=f"there is no argument '{name}'; the depth is loops"):
            call(tokens(1, 4), **{name: 4})


def test_depths_far_beyond_training_are_refused(looped):
    model = looped()
    sentence = "beyond the limit of 64 for a model that was trained on up to 8 loops; .* set loop_depth_limit"
    for request in (
        {"loops": 100_000},
        {"loops": [2, 65]},
        {"loops": "adaptive", "max_depth": 1_000_000},
    ):
        for call in (model, model.generate):
            with pytest.raises(RecurTraceError, match=sentence):
                call(tokens(2, 4), **request)
    assert model(tokens(1, 4), loops=64).depths.tolist() == [64]
    with pytest.raises(RecurTraceError, match="the policy asks for more than the limit of 64 loops"):
        model(tokens(1, 4), loops=SignalPolicy("state_angle", -1.0, max_depth=10**9))


def test_the_limit_can_be_raised():
    model = tiny_looped(loop_depth_limit=100)
    assert model(tokens(1, 3), loops=100).depths.tolist() == [100]
    with pytest.raises(RecurTraceError, match="loop_depth_limit must be a whole number of at least 1, got 0"):
        model.config.override({"loop_depth_limit": 0})
    assert tiny_looped(loop_train_max=20).config.depth_limit == 160


def test_generate_warns_beyond_the_positions_as_the_base_does(caplog):
    from transformers.generation import stopping_criteria

    said = {}
    for name, make in {"base": tiny_base, "looped": tiny_looped}.items():
        model = make(max_position_embeddings=8)
        stopping_criteria.logger.warning_once.cache_clear()
        with caplog.at_level(logging.WARNING):
            model.generate(tokens(1, 6), max_new_tokens=5, do_sample=False)
        said[name] = [record.message for record in caplog.records if "maximum length (8)" in record.message]
        caplog.clear()
    assert said["base"] == said["looped"]
    assert len(said["looped"]) == 1


def test_lengths_are_those_the_base_has_positions_for():
    config = tiny_looped(max_position_embeddings=256).config
    assert config.max_position_embeddings == 256
    assert longest_input(config, None, 1024) == 256
    assert longest_input(config, None, 128) == 128
    assert longest_input(config, 200, 1024) == 200
    assert longest_input(config, 300, 1024, extrapolate=True) == 300
    with pytest.raises(RecurTraceError, match="max_length is 300, but the base has 256 positions .* set extrapolate"):
        longest_input(config, 300, 1024)
