"""Calibration on profiles made so that the right choice is known."""

import numpy as np
import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.halting.calibrate import best_fixed, calibrate, operating_points, thresholds
from recurtrace.halting.policies import stop_depths
from recurtrace.halting.sweep_files import Sweep, SweepManifest
from tests.conftest import sweep_items

N, T = 160, 6


def made(loss, correct=None, split="heldout", seeds=None) -> Sweep:
    correct = loss < 0.5 if correct is None else correct
    manifest = SweepManifest(split, list(range(1, T + 1)))
    return Sweep(manifest, sweep_items(len(loss), seeds=seeds), {"loss": loss, "correct": correct})


@pytest.fixture
def easy_and_hard():
    """Three of four examples are best at two loops and get worse; the others are best at five.

    The signal knows which is which, and says when it is enough.
    """
    hard = np.arange(N) % 4 == 0
    best = np.where(hard, 5, 2)
    loss = 0.2 + 0.3 * np.abs(np.arange(1, T + 1) - best[:, None])
    values = np.where(np.arange(1, T + 1) < best[:, None], 0.83, 0.17) + 0.0 * loss
    return made(loss), values, best


def test_floor_and_threshold_are_found(easy_and_hard):
    sweep, values, best = easy_and_hard
    assert best_fixed(sweep["loss"]) == 2
    found = calibrate(sweep, values, "head")
    assert found.point.min_depth == 2
    assert 0.17 < found.point.threshold <= 0.83
    depths = stop_depths(values, "head", found.point.threshold, 2, T)
    assert depths.tolist() == best.tolist()
    assert found.point.mean_depth == best.mean()
    assert found.point.nll == pytest.approx(0.2)
    assert found.fixed[2]["nll"] == pytest.approx(0.2 + 0.25 * 0.9)


def test_leave_one_out_gives_the_gain_of_every_fold(easy_and_hard):
    sweep, values, _ = easy_and_hard
    found = calibrate(sweep, values, "head", folds=8)
    assert len(found.folds) == 8
    for fold in found.folds:
        assert fold["nll_gain"] == pytest.approx(0.25 * 0.9)
        assert fold["accuracy_gain"] == pytest.approx(0.25)


def test_folds_are_the_evaluation_seeds_where_there_are_some(easy_and_hard):
    sweep, values, _ = easy_and_hard
    seeded = made(sweep["loss"], seeds=np.arange(N) % 5)
    assert len(calibrate(seeded, values, "head").folds) == 5
    assert seeded.folds().tolist() == (np.arange(N) % 5).tolist()
    assert sweep.folds(4).tolist() == sorted([0, 1, 2, 3] * (N // 4))


def test_a_signal_that_knows_nothing_stays_at_the_floor(easy_and_hard):
    sweep, values, _ = easy_and_hard
    blind = np.random.default_rng(0).permutation(values.reshape(-1)).reshape(values.shape)
    blind[:, 1] = 0.5  # at the floor, the same for all
    found = calibrate(sweep, blind, "head")
    assert found.point.mean_depth == 2
    assert found.point.nll == pytest.approx(found.fixed[2]["nll"])


def test_the_accuracy_selector():
    """Where likelihood and accuracy want different depths, each selector gets its own."""
    loss = np.tile([0.5, 0.2, 0.3, 0.4, 0.5, 0.6], (N, 1))
    correct = np.tile([False, False, False, True, True, False], (N, 1))
    values = np.tile([0.9, 0.8, 0.7, 0.4, 0.3, 0.2], (N, 1))
    sweep = made(loss, correct)
    assert calibrate(sweep, values, "head", select="nll").point.mean_depth == 2
    chosen = calibrate(sweep, values, "head", select="accuracy").point
    assert (chosen.mean_depth, chosen.accuracy) == (4, 1.0)


def test_tolerance_buys_shallower_depth(easy_and_hard):
    sweep, values, _ = easy_and_hard
    assert calibrate(sweep, values, "head", tolerance=1.0).point.mean_depth == 2


def test_a_ration_of_loops_is_spent_and_not_exceeded(easy_and_hard):
    sweep, values, _ = easy_and_hard
    rng = np.random.default_rng(0)
    values = values - rng.uniform(0, 0.1, values.shape)  # so that thresholds differ
    for ration in (2, 2.5, 3):
        point = calibrate(sweep, values, "head", mean_loops=ration).point
        depths = stop_depths(values, "head", point.threshold, 1, T)
        deeper = stop_depths(values, "head", point.threshold - 0.02, 1, T)
        assert depths.mean() == point.mean_depth <= ration < deeper.mean()
        assert point.min_depth == 1
    assert calibrate(sweep, values, "head", mean_loops=3, min_depth=2).point.min_depth == 2
    assert 0 <= calibrate(sweep, values, "head", mean_loops=99).point.threshold <= 1
    with pytest.raises(RecurTraceError, match="no threshold spends 2 loops or fewer, the least is 3.00"):
        calibrate(sweep, values, "head", mean_loops=2, min_depth=3)
    with pytest.raises(RecurTraceError, match="no threshold spends 2 loops or fewer"):  # a head beyond doubt
        calibrate(sweep, np.ones_like(values), "head", mean_loops=2)
    with pytest.raises(RecurTraceError, match="the least is 2.00"):  # nothing has changed before the second loop
        calibrate(sweep, np.where(np.arange(T) == 0, np.inf, values), "kl", mean_loops=1.5)


def test_signals_that_stop_above(easy_and_hard):
    sweep, values, best = easy_and_hard
    found = calibrate(sweep, 1 - values, "top_prob")
    assert found.point.mean_depth == best.mean()


def test_signals_without_a_scale_get_quantiles(easy_and_hard):
    sweep, values, best = easy_and_hard
    moved = 40 * values
    moved[:, 0] = np.inf
    found = calibrate(sweep, moved, "state_l2")
    assert found.point.mean_depth == best.mean()
    candidates = thresholds(moved, "kl")
    assert stop_depths(moved, "kl", candidates[-1], 2).max() == 2  # one always stops
    assert stop_depths(moved, "kl", candidates[0], 2).min() == T  # one never does


def test_points_are_what_the_policy_gives(easy_and_hard):
    sweep, values, _ = easy_and_hard
    for point in operating_points(values, sweep["loss"], sweep["correct"], "head", 1, T):
        depths = stop_depths(values, "head", point.threshold, 1, T)
        assert point.mean_depth == depths.mean()
        assert point.nll == sweep["loss"][range(N), depths - 1].mean()


def test_test_items_are_refused(easy_and_hard):
    sweep, values, _ = easy_and_hard
    for split in ("test", "train"):
        with pytest.raises(RecurTraceError, match=f"{split} items"):
            calibrate(made(sweep["loss"], split=split), values, "head")
    broken = sweep["loss"].copy()
    broken[3, 4] = np.nan
    with pytest.raises(RecurTraceError, match="not finite"):
        calibrate(made(broken), values, "top_prob")
    with pytest.raises(RecurTraceError, match="between 1 and the budget"):
        calibrate(sweep, values, "head", min_depth=9)
