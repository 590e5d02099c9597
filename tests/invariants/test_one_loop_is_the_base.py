"""One loop is the base model bit for bit, before and after the loop modules change."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recurtrace import RecurTraceForCausalLM
from tests.conftest import LOOP, every_attention, every_family, stir, tiny_base, tokens


def padded(rows: int, length: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row one token shorter than the one before."""
    ids, mask = tokens(rows, length), torch.ones(rows, length, dtype=torch.long)
    for row in range(rows):
        where = slice(0, row) if side == "left" else slice(length - row, length)
        ids[row, where], mask[row, where] = 0, 0
    return ids, mask


@every_attention
@every_family
@given(rows=st.integers(1, 4), length=st.integers(4, 20), side=st.sampled_from(["none", "left", "right"]))
def test_bit_for_bit(family, attention, rows, length, side):
    base = tiny_base(family, attention)
    model = RecurTraceForCausalLM.from_base(base, **LOOP)
    ids, mask = padded(rows, length, side) if side != "none" else (tokens(rows, length), None)
    expected = base(ids, attention_mask=mask).logits
    assert torch.equal(model(ids, attention_mask=mask, loops=1).logits, expected)
    assert torch.equal(stir(model)(ids, attention_mask=mask, loops=1).logits, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_family
def test_half_precision(family, dtype):
    base = tiny_base(family).to(dtype)
    model = stir(RecurTraceForCausalLM.from_base(base, **LOOP))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    ids = tokens(2, 9)
    assert torch.equal(model(ids, loops=1).logits, base(ids).logits)
    assert model(ids, loops=4).logits.isfinite().all()


@every_family
def test_conversion_leaves_the_base_untouched(family):
    base = tiny_base(family)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    config = base.config.to_dict()
    ids = tokens(2, 9)
    logits = base(ids).logits
    stir(RecurTraceForCausalLM.from_base(base, **LOOP))(ids, loops=3)
    assert base.config.to_dict() == config
    assert base.config._attn_implementation == "sdpa"
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert torch.equal(base(ids).logits, logits)


def test_everything_a_base_forward_takes():
    base = tiny_base()
    model = stir(RecurTraceForCausalLM.from_base(base, **LOOP))
    ids = tokens(2, 9)
    embeds = base.model.embed_tokens(ids)
    labels = ids.masked_fill(torch.arange(9) < 4, -100)
    for inputs in (
        {"input_ids": ids, "labels": labels},
        {"input_ids": ids, "labels": labels, "num_items_in_batch": torch.tensor(7)},
        {"inputs_embeds": embeds},
        {"input_ids": ids, "logits_to_keep": 3},
        {"input_ids": ids, "logits_to_keep": torch.tensor([0, 4])},
        {"input_ids": ids, "output_hidden_states": True},
        {"input_ids": ids, "position_ids": torch.arange(3, 12)[None]},
        {"input_ids": ids, "use_cache": False},
    ):
        theirs, ours = base(**inputs), model(**inputs, loops=1)
        assert torch.equal(ours.logits, theirs.logits)
        if "labels" in inputs:
            assert torch.equal(ours.loss, theirs.loss)
        if theirs.hidden_states is not None:
            assert len(ours.hidden_states) == len(theirs.hidden_states)
            assert all(map(torch.equal, ours.hidden_states, theirs.hidden_states))
        assert (ours.past_key_values is None) == (theirs.past_key_values is None)
    assert torch.equal(model(ids, loops=1, return_dict=False)[0], base(ids).logits)


def test_generate_at_one_loop_is_the_bases():
    base = tiny_base()
    model = stir(RecurTraceForCausalLM.from_base(base, **LOOP))
    ids = tokens(3, 6)
    for how in ({}, {"num_beams": 3}, {"do_sample": True, "top_k": 20}):
        torch.manual_seed(0)
        theirs = base.generate(ids, max_new_tokens=8, **how)
        torch.manual_seed(0)
        assert torch.equal(model.generate(ids, max_new_tokens=8, loops=1, **how), theirs)


@pytest.mark.parametrize("window", [4, 32])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_sliding_windows(family, window):
    sliding = {"sliding_window": window}
    if family != "mistral":
        sliding |= {"use_sliding_window": True, "max_window_layers": 0}
    base = tiny_base(family, **sliding)
    model = stir(RecurTraceForCausalLM.from_base(base, **LOOP))
    ids = tokens(2, 12)
    assert torch.equal(model(ids, loops=1).logits, base(ids).logits)
    together = model.generate(ids, max_new_tokens=6, loops=3)
    assert torch.equal(together, model.generate(ids, max_new_tokens=6, loops=3, use_cache=False))
