"""A policy run live chooses what the same policy chooses on a sweep, item by item."""

import numpy as np
import pytest
import torch

from recurtrace.data.answers import first_line
from recurtrace.errors import RecurTraceError
from recurtrace.halting.policies import SignalPolicy, signal_values, stop_depths
from recurtrace.halting.signals import DECODED, SIGNALS, next_token, state_angle, state_change
from recurtrace.halting.sweep import sweep
from recurtrace.halting.sweep_files import read_sweep
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.heads import Head


@pytest.fixture(scope="module")
def swept(byte_model, tokenizer, examples, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "s"
    sweep(byte_model, tokenizer, examples, out, "heldout", depths=range(1, 9), batch_size=8)
    return read_sweep(out)


def most_different(values, signal, floor):
    """The threshold that gives the most different depths, and these."""
    tried = np.quantile(values[np.isfinite(values)], np.linspace(0, 1, 50))
    threshold = float(max(tried, key=lambda t: len(set(stop_depths(values, signal, t, floor, 8)))))
    depths = stop_depths(values, signal, threshold, floor, 8)
    assert len(set(depths)) > 1, "the test needs different depths"
    return threshold, depths


def run_live(model, tokenizer, examples, **choice):
    """Depths and answers of all examples, in one left-padded batch."""
    batch = tokenizer([example.prompt for example in examples], padding=True, return_tensors="pt")
    out = model.generate(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=16,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
        return_dict_in_generate=True,
        **choice,
    )
    texts = tokenizer.batch_decode(out.sequences[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return out.past_key_values.depths, [first_line(text) for text in texts]


@pytest.mark.parametrize("signal", [name for name, signal in SIGNALS.items() if signal.reads != "head"])
@pytest.mark.parametrize("floor", [1, 2])
def test_live_is_the_sweep(signal, floor, byte_model, tokenizer, examples, swept):
    values = signal_values(swept, signal)
    threshold, expected = most_different(values, signal, floor)
    depths, answers = run_live(
        byte_model, tokenizer, examples, loops=SignalPolicy(signal, threshold, floor, max_depth=8)
    )
    assert depths == expected.tolist()
    assert answers == [item.answers[depth - 1] for item, depth in zip(swept.items, expected, strict=True)]


@pytest.mark.parametrize("pooling", ["prompt_mean", "prompt_last"])
def test_the_head_live_is_the_head_on_the_sweep(pooling, byte_model, tokenizer, examples, swept):
    head = byte_model.loop.halting
    settings = HeadSettings(pooling=pooling)
    byte_model.config.loop_halting_pooling = pooling
    values = signal_values(swept, "head", Head(head.weight.detach(), head.bias.detach(), settings))
    threshold, expected = most_different(values, "head", 2)
    bounds = {"threshold": threshold, "min_depth": 2, "max_depth": 8}
    depths, answers = run_live(byte_model, tokenizer, examples, loops="adaptive", **bounds)
    byte_model.config.loop_halting_pooling = "prompt_mean"
    assert depths == expected.tolist()
    assert answers == [item.answers[depth - 1] for item, depth in zip(swept.items, expected, strict=True)]


def test_a_policy_without_a_cache(byte_model, tokenizer, examples, swept):
    policy = SignalPolicy("top_prob", float(np.median(swept["top_prob"])), 1, 8)
    with_cache = run_live(byte_model, tokenizer, examples, loops=policy)
    batch = tokenizer([example.prompt for example in examples], padding=True, return_tensors="pt")
    with torch.no_grad():
        out = byte_model(
            **{name: batch[name] for name in ("input_ids", "attention_mask")}, loops=policy, use_cache=False
        )
    assert out.depths.tolist() == with_cache[0]
    assert out.continue_probs is None


def test_stop_depths_by_hand():
    values = np.array([[0.9, 0.4, 0.3, 0.2], [0.1, 0.9, 0.9, 0.9], [0.9, 0.9, 0.1, 0.9]])
    assert stop_depths(values, "head", 0.5).tolist() == [2, 1, 3]
    assert stop_depths(values, "head", 0.5, min_depth=2).tolist() == [2, 4, 3]
    assert stop_depths(values, "head", 0.5, min_depth=2, max_depth=3).tolist() == [2, 3, 3]
    assert stop_depths(values, "head", 0.0).tolist() == [4, 4, 4]
    assert stop_depths(values, "head", 1.0).tolist() == [1, 1, 1]
    assert stop_depths(values, "top_prob", 0.9).tolist() == [1, 2, 1]


def test_signals_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]))
    before = next_token(logits)
    first = {signal.name: signal.formula(before, None) for signal in DECODED}
    torch.testing.assert_close(first["top_prob"], torch.tensor([0.5, 0.8]))
    torch.testing.assert_close(first["margin"], torch.tensor([0.25, 0.7]))
    torch.testing.assert_close(first["entropy"][0], torch.tensor(1.5 * np.log(2), dtype=torch.float32))
    assert first["kl"].isinf().all()  # nothing to compare with, so nothing has settled
    moved = SIGNALS["kl"].formula(next_token(logits.flip(0)), before)
    expected = 0.8 * np.log(0.8 / 0.5) + 0.2 * np.log(0.1 / 0.25)
    assert moved[0].item() == pytest.approx(expected, rel=1e-5)
    one, other = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, -3.0]])
    assert state_change(other, one).item() == pytest.approx(50**0.5 / 5)
    assert state_angle(other, one).item() == pytest.approx(0.5)
    assert state_angle(one, None).isinf().all()


def test_impossible_policies_get_a_sentence():
    with pytest.raises(RecurTraceError, match="no training-free signal 'head'"):
        SignalPolicy("head", 0.5)
    with pytest.raises(RecurTraceError, match="min_depth"):
        SignalPolicy("top_prob", 0.5, 4, 2)
