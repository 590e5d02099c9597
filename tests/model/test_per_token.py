"""Depth chosen for every token: the cache stays whole, and constant choices are the fixed depths."""

import pytest
import torch

from recurtrace.errors import RecurTraceError
from recurtrace.halting.policies import SignalPolicy
from recurtrace.model.per_token import PerTokenCache
from tests.conftest import tiny_looped, tokens

WRITE = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model():
    return tiny_looped()


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_constant_choice_is_the_fixed_depth(model, depth):
    ids = tokens(3, 7)
    always = {"min_depth": depth, "max_depth": depth}
    cache = PerTokenCache(model.config)
    free = model.generate(ids, loops="adaptive", **always, past_key_values=cache, **WRITE)
    assert torch.equal(free, model.generate(ids, loops=depth, **WRITE))
    assert cache.token_depths == [[depth] * 3] * 12


def varied(model, ids, mask=None, signal="kl", threshold=0.01):
    """Generation in which tokens of one sequence take different depths."""
    cache = PerTokenCache(model.config)
    policy = SignalPolicy(signal, threshold, min_depth=1, max_depth=5)
    mask = torch.ones_like(ids) if mask is None else mask
    out = model.generate(ids, attention_mask=mask, loops=policy, past_key_values=cache, **WRITE)
    return out, cache


def test_tokens_take_different_depths_and_the_cache_stays_whole(model):
    _, cache = varied(model, tokens(4, 7))
    by_sequence = list(zip(*cache.token_depths, strict=True))
    assert any(len(set(depths)) > 1 for depths in by_sequence), "the test needs different depths"
    assert len({layer.get_seq_length() for layer in cache.layers}) == 1
    assert {layer.keys.shape[0] for layer in cache.layers} == {4}


def test_a_stopped_token_leaves_its_last_keys_in_every_deeper_slot(model):
    _, cache = varied(model, tokens(4, 7))
    for step, depths in enumerate(cache.token_depths[1:]):
        for row, depth in enumerate(depths):
            for t in range(depth + 1, cache._loops() + 1):
                for j in range(3):
                    at = 7 + step
                    own = cache._slot(depth, j).keys[row, :, at]
                    assert torch.equal(cache._slot(t, j).keys[row, :, at], own)


def test_a_sequence_does_not_depend_on_its_batch(model):
    ids = tokens(4, 7)
    together, cache = varied(model, ids)
    for row in range(4):
        alone, own = varied(model, ids[row : row + 1])
        assert torch.equal(alone[0], together[row])
        assert [depths[0] for depths in own.token_depths] == [depths[row] for depths in cache.token_depths]


def test_left_padding_changes_nothing(model):
    ids = tokens(2, 7)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(2, 3, dtype=torch.long), torch.ones_like(ids)], dim=1)
    assert torch.equal(varied(model, padded, mask)[0][:, 3:], varied(model, ids)[0])


def test_beams_follow(model):
    cache = PerTokenCache(model.config)
    out = model.generate(tokens(2, 7), loops="adaptive", past_key_values=cache, num_beams=3, **WRITE)
    assert out.shape[0] == 2
    assert cache.batch_size == 6


def test_sliding_windows_are_refused():
    with pytest.raises(RecurTraceError, match="full attention"):
        PerTokenCache(tiny_looped("mistral", sliding_window=8).config)


def test_the_first_forward_can_come_in_parts(model):
    """Two forwards of one token each equal what a reset cache gives for them."""
    cache = PerTokenCache(model.config)
    ids = tokens(2, 6)
    with torch.no_grad():
        first = model(ids, loops=3, past_key_values=cache).logits
        cache.reset()
        again = model(ids, loops=3, past_key_values=cache).logits
    assert torch.equal(first, again)
    assert cache.token_depths == [[3, 3]]
