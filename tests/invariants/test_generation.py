"""Cached = uncached, batched = single, mixed depths = each alone; for greedy, sampling and beams."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurtrace import RecurTraceCache
from tests.conftest import every_attention, every_family, tiny_looped, tokens

close = {"atol": 2e-5, "rtol": 1e-4}
NEW = 6


def left_padded(lengths):
    longest = max(lengths)
    ids, mask = torch.zeros(len(lengths), longest, dtype=torch.long), torch.zeros(len(lengths), longest).long()
    prompts = [tokens(1, n, seed=10 + row) for row, n in enumerate(lengths)]
    for row, prompt in enumerate(prompts):
        ids[row, longest - lengths[row] :], mask[row, longest - lengths[row] :] = prompt[0], 1
    return ids, mask, prompts


@every_attention
@every_family
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    depth=st.one_of(st.integers(1, 5), st.just("adaptive"), st.just("mixed")),
    cached=st.booleans(),
)
def test_batched_is_one_by_one(looped, family, attention, lengths, depth, cached):
    model = looped(family, attention)
    ids, mask, prompts = left_padded(lengths)
    loops = [1 + row % 4 for row in range(len(lengths))] if depth == "mixed" else depth
    how = {"max_new_tokens": NEW, "use_cache": cached}
    together = model.generate(ids, attention_mask=mask, loops=loops, **how)
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt, loops=loops[row] if depth == "mixed" else loops, max_new_tokens=NEW)
        assert together[row, -NEW:].tolist() == alone[0, -NEW:].tolist()


@every_family
@given(
    length=st.integers(2, 12),
    first=st.integers(1, 11),
    depths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_cached_logits_are_the_uncached_ones(looped, family, length, first, depths):
    model, first = looped(family), min(first, length - 1)
    ids = tokens(len(depths), length)
    cache = RecurTraceCache(model.config)
    with torch.no_grad():
        whole = model(ids, loops=depths, use_cache=False).logits
        steps = [model(ids[:, :first], loops=depths, past_key_values=cache).logits]
        for position in range(first, length):
            steps.append(model(ids[:, position : position + 1], loops=depths, past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, **close)


@every_family
def test_depth_is_decided_at_the_prompt_and_kept(looped, family):
    model = looped(family)
    ids = tokens(6, 7)
    threshold = model(ids, loops="adaptive").continue_probs[:, 1].median().item()
    decided = model(ids, loops="adaptive", threshold=threshold).depths.tolist()
    assert len(set(decided)) > 1, "the test needs different depths"
    how = {"loops": "adaptive", "threshold": threshold, "return_dict_in_generate": True}
    output = model.generate(ids, max_new_tokens=NEW, **how)
    assert output.past_key_values.depths == decided
    assert torch.equal(output.sequences, model.generate(ids, loops=decided, max_new_tokens=NEW))


def test_a_slot_holds_only_the_rows_that_reached_its_loop(looped):
    model = looped()
    cache = RecurTraceCache(model.config)
    depths = [1, 3, 2, 3]
    model(tokens(4, 5), loops=depths, past_key_values=cache)
    rows = [layer.keys.shape[0] for layer in cache.layers]
    assert rows == [4] * 6 + [3] * 3 + [2] * 3
    model(tokens(4, 1), loops=depths, past_key_values=cache)
    assert [layer.get_seq_length() for layer in cache.layers] == [6] * 12


@every_family
@pytest.mark.parametrize("loops", [3, "adaptive"])
def test_beam_search_with_and_without_cache(looped, family, loops):
    model = looped(family)
    ids, mask, _ = left_padded([4, 7, 2])
    how = {"attention_mask": mask, "loops": loops, "max_new_tokens": NEW, "num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(model.generate(ids, **how), model.generate(ids, use_cache=False, **how))


@pytest.mark.parametrize("loops", [3, "adaptive"])
def test_sampling_with_and_without_cache(looped, loops):
    model = looped()
    ids, mask, _ = left_padded([4, 7, 2])
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        how = {"do_sample": True, "num_return_sequences": 2, "loops": loops, "max_new_tokens": NEW}
        drawn.append(model.generate(ids, attention_mask=mask, use_cache=use_cache, **how))
    assert torch.equal(*drawn)


@given(
    depths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=7),
)
def test_reordered_cache(looped, depths, order):
    """After a reorder, as after a repeat or a selection, the cache goes on as if the rows had always stood so."""
    model = looped()
    order = [index % len(depths) for index in order]
    ids = tokens(len(depths), 6)
    cache, fresh = RecurTraceCache(model.config), RecurTraceCache(model.config)
    with torch.no_grad():
        model(ids[:, :5], loops=depths, past_key_values=cache)
        cache.reorder_cache(torch.tensor(order))
        new_depths = [depths[index] for index in order]
        assert cache.depths == new_depths
        model(ids[order, :5], loops=new_depths, past_key_values=fresh)
        next_token = ids[order, 5:]
        ours = model(next_token, loops=new_depths, past_key_values=cache).logits
        theirs = model(next_token, loops=new_depths, past_key_values=fresh).logits
    torch.testing.assert_close(ours, theirs, **close)
    assert len(cache.layers) == len(fresh.layers)


def test_repeat_and_select(looped):
    model = looped()
    depths = [2, 1, 3]
    repeated, selected = RecurTraceCache(model.config), RecurTraceCache(model.config)
    model(tokens(3, 5), loops=depths, past_key_values=repeated)
    model(tokens(3, 5), loops=depths, past_key_values=selected)
    repeated.batch_repeat_interleave(2)
    assert repeated.depths == [2, 2, 1, 1, 3, 3]
    assert [layer.keys.shape[0] for layer in repeated.layers] == [6] * 6 + [4] * 3 + [2] * 3
    selected.batch_select_indices(torch.tensor([True, True, False]))
    assert selected.depths == [2, 1]
    assert [layer.keys.shape[0] for layer in selected.layers] == [2] * 6 + [1] * 3
    selected.reset()
    assert selected.depths is None
    assert model(tokens(2, 5), loops=1, past_key_values=selected).depths.tolist() == [1, 1]


@given(depths=st.lists(st.integers(1, 5), min_size=1, max_size=4), drop=st.integers(1, 5))
def test_cropped_cache(looped, depths, drop):
    model = looped()
    ids = tokens(len(depths), 8)
    cache = RecurTraceCache(model.config)
    with torch.no_grad():
        model(ids[:, :7], loops=depths, past_key_values=cache)
        cache.crop(-drop)
        assert cache.get_seq_length() == 7 - drop
        logits = model(ids[:, 7 - drop :], loops=depths, past_key_values=cache).logits
        torch.testing.assert_close(logits, model(ids, loops=depths).logits[:, 7 - drop :], **close)


def test_prompt_lookup_decoding_is_greedy_decoding(looped):
    """Assisted decoding feeds several tokens at once and crops what was not accepted."""
    model = looped()
    ids = tokens(1, 6).repeat(1, 3)
    for loops in (3, "adaptive"):
        plain = model.generate(ids, loops=loops, max_new_tokens=12)
        assert torch.equal(model.generate(ids, loops=loops, max_new_tokens=12, prompt_lookup_num_tokens=3), plain)


def test_a_conversation_goes_on_with_its_cache_and_depth(looped):
    model = looped()
    prompt = tokens(1, 5)
    first = model.generate(prompt, loops="adaptive", max_new_tokens=3, return_dict_in_generate=True)
    cache = first.past_key_values
    depth = cache.depths
    longer = torch.cat([first.sequences, tokens(1, 4, seed=9)], dim=1)
    branch = copy.deepcopy(cache)
    again = model.generate(longer, loops="adaptive", max_new_tokens=3, past_key_values=cache)
    assert cache.depths == depth
    assert torch.equal(again, model.generate(longer, loops=depth, max_new_tokens=3))
    assert torch.equal(again, model.generate(longer, loops="adaptive", max_new_tokens=3, past_key_values=branch))


def test_a_cache_goes_on_at_its_depth_when_none_is_asked_for(looped):
    model = looped()
    ids = tokens(2, 6)
    cache = RecurTraceCache(model.config)
    with torch.no_grad():
        model(ids[:, :4], loops=[3, 1], past_key_values=cache)
        on = model(ids[:, 4:], past_key_values=cache).logits
    torch.testing.assert_close(on, model(ids, loops=[3, 1]).logits[:, 4:], **close)
    assert cache.batch_size == 2


def test_settings_are_resolved_as_transformers_does():
    """use_cache=False in the model's generation config also holds for a call with a partial config of its own."""
    from transformers import GenerationConfig

    model = tiny_looped()
    ids = tokens(2, 5)
    expected = model.generate(ids, loops=3, max_new_tokens=NEW)
    model.generation_config.use_cache = False
    assert torch.equal(model.generate(ids, GenerationConfig(max_new_tokens=NEW), loops=3), expected)
    model.generation_config.use_cache = None
    model.generation_config.cache_implementation = "offloaded"
    with pytest.raises(ValueError, match="has no slots for loops"):
        model.generate(ids, GenerationConfig(max_new_tokens=NEW), loops=3)


def test_assistants(looped):
    with pytest.raises(ValueError, match="an assistant model does not support loops"):
        looped().generate(tokens(1, 4), loops=2, assistant_model=looped())


def test_prompt_lookup_past_the_edge_of_a_sliding_window():
    model = tiny_looped("mistral", sliding_window=6)
    ids = tokens(1, 5).repeat(1, 3)
    plain = model.generate(ids, loops=3, max_new_tokens=12)
    assert torch.equal(model.generate(ids, loops=3, max_new_tokens=12, prompt_lookup_num_tokens=3), plain)


def test_inference_mode_and_then_not(looped):
    model = looped()
    ids = tokens(1, 6)
    cache = RecurTraceCache(model.config)
    with torch.inference_mode():
        for position in range(4):
            model(ids[:, position : position + 1], loops=2, past_key_values=cache)
    with torch.no_grad():
        for position in range(4, 6):
            last = model(ids[:, position : position + 1], loops=2, past_key_values=cache).logits
    torch.testing.assert_close(last, model(ids, loops=2).logits[:, -1:], **close)


def test_a_slot_grows_past_its_room(looped):
    model = looped()
    ids = tokens(2, 80)
    cache = RecurTraceCache(model.config)
    with torch.no_grad():
        steps = [model(ids[:, i : i + 1], loops=[2, 3], past_key_values=cache).logits for i in range(80)]
        torch.testing.assert_close(torch.cat(steps, 1), model(ids, loops=[2, 3]).logits, **close)


def test_chunked_prefill_at_fixed_depth(looped):
    model = looped()
    ids = tokens(2, 9)
    plain = model.generate(ids, loops=3, max_new_tokens=4)
    assert torch.equal(model.generate(ids, loops=3, max_new_tokens=4, prefill_chunk_size=4), plain)
    with pytest.raises(ValueError, match="decided from the whole prompt"):
        model.generate(ids, loops="adaptive", max_new_tokens=4, prefill_chunk_size=4)


def test_generation_from_embeddings(looped):
    model = looped()
    ids = tokens(2, 6)
    embeds = model.model.embed_tokens(ids)
    for loops in (3, "adaptive"):
        from_ids = model.generate(ids, loops=loops, max_new_tokens=4)[:, -4:]
        assert torch.equal(model.generate(inputs_embeds=embeds, loops=loops, max_new_tokens=4), from_ids)


def test_sliding_window_past_its_edge_at_mixed_depth():
    model = tiny_looped("mistral", sliding_window=5)
    ids = tokens(3, 9)
    together = model.generate(ids, loops=[1, 4, 2], max_new_tokens=NEW)
    for row, depth in enumerate([1, 4, 2]):
        assert torch.equal(together[row], model.generate(ids[row : row + 1], loops=depth, max_new_tokens=NEW)[0])
