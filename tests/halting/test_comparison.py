"""Methods side by side, on sweeps whose outcome is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recurtrace.errors import RecurTraceError
from recurtrace.halting.comparison import ceilings, compare
from recurtrace.halting.oracle import Oracle
from recurtrace.halting.signals import DECODED
from recurtrace.halting.sweep_files import Sweep, SweepManifest
from recurtrace.model.configuration_recurtrace import HeadSettings
from recurtrace.model.heads import Head
from tests.conftest import sweep_items

N, T, D = 120, 16, 4
MODEL = {"loop_fingerprint": "a", "base_fingerprint": "b", "depths": list(range(1, T + 1))}


def made(split: str, seed: int) -> Sweep:
    """A third of the items are right at five loops only, the others at two and three; feature 0 says so."""
    hard = np.random.default_rng(seed).random(N) < 1 / 3
    t = np.arange(1, T + 1)
    best = np.where(hard, 5, 2)[:, None]
    correct = np.where(hard[:, None], t == 5, (t == 2) | (t == 3))
    loss = (0.1 + 0.1 * np.abs(t - best)).astype(np.float32)
    states = np.zeros((N, T, D), dtype=np.float32)
    states[..., 0] = np.where(t < best, 1.0, -1.0)
    states[..., 1] = t
    flat = np.full((N, T), 0.5, dtype=np.float32)
    arrays = {"loss": loss, "correct": correct, "state_mean": states, "state_last": states}
    arrays |= dict.fromkeys((signal.name for signal in DECODED), flat)
    return Sweep(
        SweepManifest(split=split, **MODEL), sweep_items(N, split, answers=[f"answer {t}" for t in range(T)]), arrays
    )


def head(weight, bias=0.0, objective="oracle"):
    return Head(torch.tensor([[weight, 0.0, 0.0, 0.0]]), torch.tensor([bias]), HeadSettings(objective))


def by_name(results):
    return {result.method.name: result for result in results}


def test_every_method_gets_its_depths():
    heldout, test = made("heldout", 0), made("test", 1)
    heads = {None: head(2.0), "act": head(0.0, -9.0, "act"), "tah": head(-2.0, 0.0, "tah")}
    found = by_name(compare(heldout, test, heads))
    hard = (~test["correct"][:, 1]).mean()
    assert found["fixed-2"].accuracy == pytest.approx(1 - hard)
    assert found["recurtrace"].accuracy == 1.0
    assert found["recurtrace"].mean_depth == pytest.approx(2 + 3 * hard)
    assert found["recurtrace"].floor == 2
    assert (found["act"].mean_depth, found["act-floor"].mean_depth) == (1.0, 2.0)  # collapsed, with and without floor
    assert found["calm-margin"].mean_depth == 2.0  # a flat signal: stop at the floor
    assert found["ceiling-correct"].accuracy == 1.0
    assert found["ceiling-loss"].accuracy == 1.0
    assert "pondernet" not in found  # no such head in the folder
    assert found["fixed-3"].mean_depth == 3  # every depth, so that the best fixed one is among them
    wrong = by_name(compare(heldout, test, {None: head(2.0, 0.0, "act")}))
    assert "recurtrace" not in wrong  # a head trained otherwise is not the oracle's
    assert list(found)[-2:] == ["ceiling-correct", "ceiling-loss"]


def test_every_threshold_can_be_chosen_on_heldout_items():
    """A head of ACT that knows the hard items but never says more than one half of them."""
    heldout, test = made("heldout", 0), made("test", 1)
    heads = {"act": head(1.0, -2.0, "act")}
    own, chosen = (by_name(compare(heldout, test, heads, every_threshold=every)) for every in (False, True))
    assert (own["act"].threshold, own["act"].mean_depth) == (0.5, 1.0)
    assert chosen["act"].threshold < 0.5
    assert chosen["act"].accuracy == chosen["act-floor"].accuracy == 1.0
    assert chosen["calm-margin"].threshold == own["calm-margin"].threshold


def test_heads_under_other_names_have_rows_of_their_own():
    heads = {None: head(2.0), "act-0.1": head(0.0, -9.0, "act"), "mathqa": head(2.0)}
    found = by_name(compare(made("heldout", 0), made("test", 1), heads))
    assert found["act-0.1"].mean_depth == 1.0
    assert found["mathqa"].accuracy == found["recurtrace"].accuracy
    assert found["mathqa"].method.title == "RecurTrace: mathqa"


def test_ceilings_are_not_passed():
    test = made("test", 3)
    right, lowest = ceilings(test, Oracle())
    assert right.accuracy >= max(test["correct"][:, t].mean() for t in range(T))
    assert lowest.nll.mean() <= test["loss"].mean(axis=0).min()


def test_sweeps_that_do_not_belong_together_are_refused():
    heldout, test = made("heldout", 0), made("test", 1)
    with pytest.raises(RecurTraceError, match="never fitted"):
        compare(test, test, {})
    other = replace(test, manifest=replace(test.manifest, loop_fingerprint="x"))
    with pytest.raises(RecurTraceError, match="differ in their loop fingerprint"):
        compare(heldout, other, {})


def test_a_floor_may_be_given():
    heldout, test = made("heldout", 0), made("test", 1)
    heads = {None: head(2.0), "act": head(0.0, -9.0, "act")}
    found = by_name(compare(heldout, test, heads, floor=4))
    assert (found["recurtrace"].floor, found["act-floor"].mean_depth, found["calm-margin"].floor) == (4, 4.0, 4)
    assert (found["recurtrace-no-floor"].floor, found["act"].mean_depth) == (1, 1.0)  # those have one of their own


def test_a_budget_may_be_given():
    heldout, test = made("heldout", 0), made("test", 1)
    found = by_name(compare(heldout, test, {None: head(2.0), "act": head(9.0, 9.0, "act")}, max_depth=3))
    assert max(found["recurtrace"].depths) == 3
    assert found["act"].mean_depth == 3.0  # never stops by itself
    assert found["fixed-16"].mean_depth == 16
