"""Nothing waits for an accelerator that need not, and every tensor is made where it is used."""

import pytest
import torch

from tests.conftest import tiny_looped, tokens
from tests.devices import HostReads, HostTraffic, MadeUpReads, OneDevice


@pytest.mark.parametrize("loops", [4, [1, 4, 2]], ids=str)
@torch.no_grad()
def test_decoding_reads_nothing_on_the_host(loops):
    model, ids = tiny_looped(), tokens(3, 17)
    with HostReads() as reads, HostTraffic() as traffic:
        cache = model(ids[:, :7], loops=loops, use_cache=True).past_key_values
        prefill = traffic.made
        for i in range(7, 17):
            model(ids[:, i : i + 1], past_key_values=cache)
    assert reads.count == traffic.waits == 0
    assert traffic.made == prefill, "a decoding step makes tensors on the host"


def test_what_waits_is_seen():
    numbers = torch.arange(4.0)
    for wait in (
        lambda: numbers.max().item(),
        lambda: numbers[numbers > 1],
        lambda: torch.arange(numbers[3]),
        lambda: torch.where(numbers > 1),
        lambda: torch.equal(numbers, numbers),
    ):
        with HostTraffic() as traffic:
            wait()
        assert traffic.waits
    with HostTraffic() as traffic:
        torch.tensor([1, 2])
    assert (traffic.made, traffic.waits) == (1, 0)


@pytest.mark.parametrize("loops", [4, [1, 4, 2]], ids=str)
@torch.no_grad()
def test_a_padded_batch_is_read_as_often_as_by_the_base(loops):
    """transformers looks whether the mask hides anything, once for each forward."""
    model, ids = tiny_looped(), tokens(3, 17)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0

    def reads(loops):
        with HostReads() as reads:
            cache = model(ids[:, :7], attention_mask=mask[:, :7], loops=loops, use_cache=True).past_key_values
            for i in range(7, 17):
                model(ids[:, i : i + 1], attention_mask=mask[:, : i + 1], past_key_values=cache)
        return reads.count

    assert reads(loops) == reads(1) <= 12


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_adaptive_prefill_reads_once_per_loop_that_asks_the_head(masked):
    model, ids = tiny_looped(), tokens(3, 7)
    given = {"attention_mask": torch.ones_like(ids)} if masked else {}
    with HostReads() as base:
        model(ids, loops=1, **given)
    with HostReads() as reads:
        out = model(ids, loops="adaptive", threshold=0.0, min_depth=3, max_depth=6, **given)  # asks after 3, 4 and 5
    assert out.depths.tolist() == [6, 6, 6]
    assert reads.count - base.count == 3


def on_meta(**fields):
    return tiny_looped(**fields).to("meta")


@pytest.mark.parametrize("loops", [1, 4, [1, 4, 2]], ids=str)
def test_forward_and_backward_on_another_device(loops):
    model, ids = on_meta().train(), tokens(3, 7).to("meta")
    with MadeUpReads(labels=6, rows=3), OneDevice():
        for return_logits in (True, False):
            out = model(ids, labels=ids, loops=loops, return_logits=return_logits, use_cache=False)
            out.loss.backward()
    assert {out.loss.device.type, out.depths.device.type} == {"meta"}
    assert all(p.grad is not None for p in model.loop.memory.parameters())


@pytest.mark.parametrize("loops", [4, [1, 4, 2], "adaptive"], ids=str)
@torch.no_grad()
def test_decoding_on_another_device(loops):
    model, ids = on_meta(), tokens(3, 9).to("meta")
    mask = torch.ones_like(ids)
    with MadeUpReads(labels=0, rows=3), OneDevice():
        cache = model(ids[:, :7], attention_mask=mask[:, :7], loops=loops, use_cache=True).past_key_values
        for i in (7, 8):
            out = model(ids[:, i : i + 1], attention_mask=mask[:, : i + 1], past_key_values=cache)
        cache.batch_select_indices(torch.tensor([0, 2], device="meta"))
    assert out.logits.device.type == "meta"
