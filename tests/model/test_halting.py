"""Algorithm 1 and what may be asked of depth."""

import pytest
import torch

from recurtrace import RecurTraceCache, RecurTraceForCausalLM
from recurtrace.model.halting import HaltingHead, pool_prompt
from tests.conftest import LOOP, tiny_base, tiny_looped, tokens


def set_head(model, weight, bias):
    with torch.no_grad():
        model.loop.halting.weight.copy_(torch.as_tensor(weight).expand(1, 32))
        model.loop.halting.bias.fill_(bias)
    return model


@torch.no_grad()
def algorithm_1(model, ids, min_depth, max_depth, threshold, pooling="prompt_mean"):
    """Depth of one sequence by running every fixed depth and reading the state after the block."""
    for t in range(1, max_depth + 1):
        states = model(ids, loops=t, output_hidden_states=True).hidden_states
        h = states[model.config.loop_start + 3 * t]
        z = h[0].mean(0) if pooling == "prompt_mean" else h[0, -1]
        p = torch.sigmoid(model.loop.halting.weight[0] @ z + model.loop.halting.bias[0])
        if t >= min_depth and p < threshold:
            break
    return t


@pytest.mark.parametrize("pooling", ["prompt_mean", "prompt_last"])
@pytest.mark.parametrize(
    ("min_depth", "max_depth", "threshold"), [(1, 8, 0.45), (2, 16, 0.5), (3, 5, 0.6), (2, 2, 0.5)]
)
def test_depths_are_those_of_algorithm_1(min_depth, max_depth, threshold, pooling):
    model = tiny_looped(loop_halting_pooling=pooling)
    ids = tokens(8, 6)
    rule = {"min_depth": min_depth, "max_depth": max_depth, "threshold": threshold}
    output = model(ids, loops="adaptive", **rule)
    expected = [algorithm_1(model, ids[row : row + 1], **rule, pooling=pooling) for row in range(8)]
    assert output.depths.tolist() == expected
    if (min_depth, max_depth) == (2, 16):
        assert len(set(expected)) > 1, "the test needs different depths"
    for row, depth in enumerate(expected):
        assert output.continue_probs[row].isfinite().tolist() == [t < depth for t in range(max(expected))]


def test_always_and_never_give_the_bounds():
    model = tiny_looped()
    ids = tokens(3, 5)
    assert set_head(model, 0.0, 9.0)(ids, loops="adaptive", max_depth=7).depths.tolist() == [7] * 3
    assert set_head(model, 0.0, -9.0)(ids, loops="adaptive").depths.tolist() == [2] * 3
    assert model(ids, loops="adaptive", min_depth=1).depths.tolist() == [1] * 3
    # A budget below the config's floor lowers the floor.
    assert model(ids, loops="adaptive", max_depth=1).depths.tolist() == [1] * 3


def test_default_depth_is_the_configs_until_a_head_is_trained():
    model = RecurTraceForCausalLM.from_base(tiny_base(), **LOOP, loop_num_loops=3)
    ids = tokens(2, 5)
    assert model(ids).depths.tolist() == [3, 3]
    model.config.loop_halting_trained = True
    assert model(ids).continue_probs is not None


def test_padding_is_not_pooled():
    model = tiny_looped()
    ids, mask = tokens(2, 7), torch.ones(2, 7, dtype=torch.long)
    ids[1, :3], mask[1, :3] = 0, 0
    alone = model(ids[1:, 3:], loops="adaptive")
    together = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), loops="adaptive")
    assert together.depths[1] == alone.depths[0]
    depth = int(alone.depths[0])
    torch.testing.assert_close(together.continue_probs[1, :depth], alone.continue_probs[0, :depth])


def test_the_answer_is_not_pooled():
    """With labels, the depth is that of the prompt alone; so it is with an explicit prompt mask."""
    model = tiny_looped()
    ids = tokens(4, 9)
    labels = ids.masked_fill(torch.arange(9) < 5, -100)
    prompt_mask = (torch.arange(9) < 5).expand(4, 9)
    expected = model(ids[:, :5], loops="adaptive").depths
    for how in ({"labels": labels}, {"prompt_mask": prompt_mask}, {"prompt_mask": prompt_mask[:, :5]}):
        assert torch.equal(model(ids, loops="adaptive", **how).depths, expected)


def test_nothing_after_the_first_label_is_pooled():
    """Neither right padding that is labelled -100 without a mask, nor a later turn's question after an answer."""
    model = tiny_looped()
    ids = tokens(2, 9)
    labels = torch.full_like(ids, -100)
    labels[:, 4:6] = ids[:, 4:6]
    assert torch.equal(model(ids, labels=labels, loops="adaptive").depths, model(ids[:, :4], loops="adaptive").depths)


def test_pooling():
    h = torch.arange(24.0).view(2, 4, 3)
    mask = torch.tensor([[False, True, True, False], [True, True, True, True]])
    h[0, 0] = torch.nan  # a padded position may hold anything
    torch.testing.assert_close(pool_prompt(h, mask, "prompt_mean")[0], h[0, 1:3].mean(0))
    torch.testing.assert_close(pool_prompt(h, mask, "prompt_last"), torch.stack([h[0, 2], h[1, 3]]))


def test_head_is_float32_in_a_half_precision_model():
    head = HaltingHead(4).to(torch.bfloat16)
    assert head(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_hidden_states_at_mixed_depth():
    """L + (T-1)·k + 1 states; a halted sequence keeps those of its last loop."""
    model = tiny_looped()
    ids = tokens(3, 5)
    states = model(ids, loops=[1, 3, 2], output_hidden_states=True).hidden_states
    assert len(states) == 6 + 2 * 3 + 1
    for row, depth in enumerate([1, 3, 2]):
        alone = model(ids[row : row + 1], loops=depth, output_hidden_states=True).hidden_states
        kept = [*range(3), *range(3 + 3 * (depth - 1), 3 + 3 * depth)]
        for index in kept[:3]:
            torch.testing.assert_close(states[index][row], alone[index][0])
        for j in range(3):  # the block's last outputs, and the decoder after them
            torch.testing.assert_close(states[3 + 6 + j][row], alone[3 + 3 * (depth - 1) + j][0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(states[-1][row], alone[-1][0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"loops": 0}, "loops must be at least 1 .* got 0"),
        ({"loops": -2}, "at least 1"),
        ({"loops": 2.5}, 'a whole number or "adaptive", got 2.5'),
        ({"loops": True}, "a whole number"),
        ({"loops": "deep"}, "got 'deep'"),
        ({"loops": [1, 2, 3]}, "loops has 3 depths for a batch of 2"),
        ({"loops": [1, 0]}, "at least 1"),
        ({"loops": 3, "threshold": 0.5}, 'belong to loops="adaptive"'),
        ({"loops": "adaptive", "threshold": 1.5}, "between 0 and 1, got 1.5"),
        ({"loops": "adaptive", "threshold": "low"}, "between 0 and 1, got 'low'"),
        ({"loops": "adaptive", "min_depth": 5, "max_depth": 3}, r"min_depth \(5\) is above max_depth \(3\)"),
        ({"loops": "adaptive", "min_depth": 0}, "min_depth must be a whole number of at least 1, got 0"),
        ({"loops": "adaptive", "prompt_mask": torch.zeros(2, 5)}, "sequence 0 has no prompt position"),
        ({"loops": "adaptive", "prompt_mask": torch.ones(2, 9)}, r"prompt_mask has shape \[2, 9\]"),
        ({"output_attentions": True}, "output_attentions is not available"),
        ({"inputs_embeds": torch.ones(2, 5, 32)}, "exactly one of input_ids and inputs_embeds"),
    ],
)
def test_impossible_requests(asked, message, looped):
    with pytest.raises(ValueError, match=message):
        looped()(tokens(2, 5), **asked)


def test_adaptive_without_a_trained_head():
    model = RecurTraceForCausalLM.from_base(tiny_base(), **LOOP)
    for call in (model, model.generate):
        with pytest.raises(ValueError, match="needs a trained halting head, and this model has none"):
            call(tokens(1, 4), loops="adaptive")


def test_empty_prompts(looped):
    empty = torch.zeros(1, 0, dtype=torch.long)
    for call in (looped(), looped().generate):
        with pytest.raises(ValueError, match="the prompt is empty"):
            call(empty, loops=2)


def test_a_cache_keeps_its_depth(looped):
    from transformers import DynamicCache

    model = looped()
    cache = RecurTraceCache(model.config)
    model(tokens(2, 4), loops=3, past_key_values=cache)
    with pytest.raises(ValueError, match=r"started at depths \[3, 3\] and cannot continue at \[2, 2\]"):
        model(tokens(2, 1), loops=2, past_key_values=cache)
    with pytest.raises(ValueError, match="holds 2 sequences, the input 1"):
        model(tokens(1, 1), loops=3, past_key_values=cache)
    with pytest.raises(ValueError, match="a slot for each loop, got DynamicCache"):
        model(tokens(2, 4), loops=3, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="has no slots for loops"):
        model.generate(tokens(2, 4), loops=3, cache_implementation="quantized")
