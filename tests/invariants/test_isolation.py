"""No path from future tokens, from other rows, from padding, or from other packed samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import VOCABULARY, every_attention, every_family, tokens

close = {"atol": 2e-5, "rtol": 1e-4}


@every_attention
@every_family
@given(length=st.integers(2, 12), cut=st.integers(1, 11), loops=st.integers(2, 6))
def test_no_path_from_future_tokens(looped, family, attention, length, cut, loops):
    cut = min(cut, length - 1)
    model = looped(family, attention)
    ids = tokens(1, length)
    changed = ids.clone()
    changed[:, cut:] = (ids[:, cut:] + 7) % VOCABULARY
    with torch.no_grad():
        before = model(ids, loops=loops).logits[:, :cut]
        assert torch.equal(before, model(changed, loops=loops).logits[:, :cut])


@every_family
def test_no_gradient_from_future_tokens(looped, family):
    model = looped(family)
    embeds = model.model.embed_tokens(tokens(1, 6)).detach().requires_grad_()
    model(inputs_embeds=embeds, loops=4).logits[0, 2].sum().backward()
    assert embeds.grad[0, :3].abs().sum() > 0
    assert embeds.grad[0, 3:].abs().sum() == 0


@every_attention
@every_family
@given(depths=st.lists(st.integers(1, 6), min_size=2, max_size=5), other=st.integers(3, 90))
def test_a_row_does_not_depend_on_its_batch_mates(looped, family, attention, depths, other):
    model = looped(family, attention)
    ids = tokens(len(depths), 7)
    changed = ids.clone()
    changed[1:] = (ids[1:] + other) % VOCABULARY
    with torch.no_grad():
        assert torch.equal(model(ids, loops=depths).logits[0], model(changed, loops=depths).logits[0])


@every_attention
@every_family
@given(
    lengths=st.lists(st.integers(1, 10), min_size=1, max_size=4),
    loops=st.integers(1, 5),
    side=st.sampled_from(["left", "right"]),
)
def test_padding_changes_nothing(looped, family, attention, lengths, loops, side):
    model = looped(family, attention)
    longest = max(lengths) + 2
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    alone = [tokens(1, n, seed=row) for row, n in enumerate(lengths)]
    spans = [slice(longest - n, longest) if side == "left" else slice(0, n) for n in lengths]
    for row, span in enumerate(spans):
        ids[row, span], mask[row, span] = alone[row][0], 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        together = model(ids, attention_mask=mask, position_ids=positions, loops=loops).logits
        for row, span in enumerate(spans):
            torch.testing.assert_close(together[row, span], model(alone[row], loops=loops).logits[0], **close)


@pytest.mark.parametrize("use_cache", [True, False])
@every_attention
@every_family
def test_packed_samples_do_not_see_each_other(looped, family, attention, use_cache):
    model = looped(family, attention)
    samples = [tokens(1, n, seed=n) for n in (4, 1, 7)]
    positions = torch.cat([torch.arange(sample.shape[1]) for sample in samples])[None]
    with torch.no_grad():
        for loops in (1, 2, 5):
            packed = model(torch.cat(samples, 1), position_ids=positions, loops=loops, use_cache=use_cache).logits
            separate = torch.cat([model(sample, loops=loops).logits for sample in samples], 1)
            torch.testing.assert_close(packed, separate, **close)


def test_adaptive_depth_refuses_packed_rows(looped):
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with pytest.raises(ValueError, match="a row cannot hold several packed samples"):
        looped()(tokens(1, 7), position_ids=positions, loops="adaptive")
