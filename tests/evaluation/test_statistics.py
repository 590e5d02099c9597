"""Every statistic by another route, and against the counts the paper prints."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurtrace.errors import RecurTraceError
from recurtrace.evaluation.statistics import (
    Deepened,
    Transitions,
    as_many,
    by_seed,
    composition,
    deepened,
    depth_histogram,
    gap_closed,
    hard_easy_gap,
    head_calibration,
    histogram_mean,
    mean_gap,
    paired_bootstrap,
    threshold_sweep,
    transitions,
)

PAPER = Transitions(both=1310, gained=56, lost=3, neither=1031)


class TestPaper:
    """Figures of the paper that can be recomputed from its own tables."""

    def test_transitions_give_the_gain_and_its_significance(self):
        assert PAPER.items == 2400
        assert (PAPER.both + PAPER.gained, PAPER.both + PAPER.lost) == (1366, 1313)
        assert PAPER.net == 53
        assert round(PAPER.points, 1) == 2.2
        assert PAPER.p_value < 0.001
        expected = 2 * sum(math.comb(59, k) for k in range(4)) / 2**59
        assert PAPER.p_value == pytest.approx(expected)

    def test_accuracies_of_the_main_table(self):
        for correct, accuracy in ((1199, 49.96), (1313, 54.71), (1287, 53.62), (1141, 47.54), (1273, 53.04),
                                  (1299, 54.12), (1326, 55.25), (1336, 55.67), (1366, 56.92)):  # fmt: skip
            assert 100 * correct / 2400 == pytest.approx(accuracy, abs=0.006)

    def test_the_histogram_gives_the_mean_depth(self):
        histogram = {2: 2335, 3: 48, 4: 10, 5: 3, 6: 2, 7: 1, 8: 1}
        assert sum(histogram.values()) == 2400
        assert histogram_mean(histogram) == pytest.approx(2.04)
        assert sum(count for depth, count in histogram.items() if depth > 2) == 65
        assert round(100 * 2335 / 2400, 1) == 97.3

    def test_rates_of_the_deepened_items(self):
        found = Deepened(
            items=65, oracle_positive=55, flipped=56, population_positive=153, population=2400, wrong_at_floor=1087,
            recoverable=151,
        )  # fmt: skip
        assert round(100 * found.precision) == 85
        assert round(100 * found.flip_rate) == 86
        assert round(100 * found.recall) == 36
        assert round(100 * found.positive_base_rate, 1) == 6.4
        assert round(100 * found.flip_base_rate, 1) == 13.9
        assert found.precision / found.positive_base_rate == pytest.approx(13, abs=0.5)
        assert found.flip_rate / found.flip_base_rate > 6

    def test_the_ceiling(self):
        assert 1464 - 1313 == 151
        assert round(100 * 1464 / 2400, 1) == 61.0
        assert gap_closed(54.71, 56.92, 61.0) == pytest.approx(1 / 3, abs=0.02)

    def test_the_threshold_sweep(self):
        """Loop cut from the mean depth, accuracy from the gain over sixteen loops."""
        table = {0.01: (9.24, 42.3, 85), 0.05: (4.13, 74.2, 135), 0.10: (2.80, 82.5, 146), 0.20: (1.90, 88.1, 139),
                 0.30: (1.39, 91.3, 100), 0.50: (1.06, 93.4, 56)}  # fmt: skip
        for mean, cut, _ in table.values():
            assert 100 * (1 - mean / 16) == pytest.approx(cut, abs=0.06)
        assert 1141 + table[0.10][2] == 1287  # the reconciliation table's 53.6 %
        assert 1141 + table[0.50][2] == 1197  # within two of one loop's 1199

    def test_gaps_of_the_seeds(self):
        easy = [2.00, 2.77, 3.16, 1.97, 2.02, 2.42, 2.04, 3.65]
        hard = [2.01, 4.12, 4.31, 2.12, 2.54, 3.02, 2.26, 4.40]
        printed = [0.01, 1.35, 1.15, 0.15, 0.51, 0.59, 0.22, 0.75]
        for a, b, gap in zip(easy, hard, printed, strict=True):
            assert b - a == pytest.approx(gap, abs=0.0151)
        assert np.mean(easy) == pytest.approx(2.50, abs=0.006)
        assert np.mean(hard) == pytest.approx(3.10, abs=0.006)
        assert np.mean(printed) == pytest.approx(0.59, abs=0.006)

    def test_loops_saved_per_task(self):
        """Per-task heads against eight loops: 65 to 87 percent."""
        cuts = [1 - loops / 8 for loops in (1.72, 1.88, 1.14, 1.06, 2.76)]
        assert (round(100 * min(cuts)), round(100 * max(cuts))) == (66, 87)


def test_transitions_by_counting():
    before = np.array([1, 0, 1, 0, 0, 1], dtype=bool)
    now = np.array([1, 1, 0, 0, 1, 1], dtype=bool)
    assert transitions(before, now) == Transitions(both=2, gained=2, lost=1, neither=1)
    assert transitions(before, before).p_value == 1.0


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_by_enumerating(gained, lost):
    """Every way the differing pairs could have gone, the ones no likelier than what was seen."""
    found = Transitions(5, gained, lost, 5).p_value
    n = gained + lost
    ways = [math.comb(n, k) for k in range(n + 1)]
    expected = sum(way for way in ways if way <= ways[gained]) / 2**n
    assert found == pytest.approx(expected)


def test_bootstrap_by_enumerating_all_samples():
    differences = np.array([1.0, 0.0, 0.0, -1.0, 1.0])
    means = np.array([np.mean(sample) for sample in itertools.product(differences, repeat=5)])
    found = paired_bootstrap(differences, samples=200_000)
    assert found.mean == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.01)


def test_bootstrap_over_clusters_draws_whole_clusters():
    differences = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    clusters = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    values = {(0, 0): 1.0, (0, 1): 0.3, (1, 0): 0.3, (1, 1): 0.0}
    expected = np.quantile(list(values.values()), [0.025, 0.975], method="inverted_cdf")
    found = paired_bootstrap(differences, clusters, samples=20_000)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    with pytest.raises(RecurTraceError, match="at least two"):
        paired_bootstrap(differences, np.zeros(10))


def test_a_difference_that_is_always_the_same_has_no_width():
    found = paired_bootstrap(np.full(50, 0.5))
    assert (found.low, found.mean, found.high) == (0.5, 0.5, 0.5)


def test_auroc_and_balanced_accuracy_by_pairs():
    rng = np.random.default_rng(0)
    labels = rng.random((60, 4)) < 0.3
    labels[:, 3] = False
    probs = 0.5 * rng.random((60, 4)) + 0.3 * labels
    rows = head_calibration(probs, labels, supervised=[1, 3], threshold=0.4)
    assert [row.supervised for row in rows] == [True, False, True, False]
    for row in rows[:3]:
        wanted, p = labels[:, row.depth - 1], probs[:, row.depth - 1]
        pairs = [(a > b) + 0.5 * (a == b) for a in p[wanted] for b in p[~wanted]]
        assert row.auroc == pytest.approx(np.mean(pairs))
        rates = ((p >= 0.4)[wanted].mean() + (p < 0.4)[~wanted].mean()) / 2
        assert row.balanced_accuracy == pytest.approx(rates)
    assert rows[3].auroc is None  # one class only


def test_gap_histogram_seeds():
    depths = np.array([2, 2, 3, 5])
    right = np.array([1, 1, 0, 0])
    found = hard_easy_gap(depths, right)
    assert (found.easy, found.hard, found.gap) == (2, 4, 2)
    everything_easy = hard_easy_gap(depths, np.ones(4))
    assert (everything_easy.easy, everything_easy.hard, everything_easy.gap) == (3, None, None)
    assert depth_histogram(depths) == {2: 2, 3: 1, 5: 1}
    assert histogram_mean(depth_histogram(depths)) == depths.mean()
    assert by_seed(right, np.array([0, 1, 0, 1])) == {0: 0.5, 1: 0.5}


def test_deepened_and_composition_by_hand():
    correct = np.array([[0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 0, 1]], dtype=bool)
    labels = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 0], [1, 1, 0]], dtype=bool)
    depths = np.array([3, 2, 3, 2])
    found = deepened(depths, correct, labels, floor=2)
    assert found == Deepened(
        items=2, oracle_positive=2, flipped=1, population_positive=3, population=4, wrong_at_floor=3, recoverable=2
    )
    who = composition(depths, correct[:, 0], ["a", "b", "a", "b"], np.array([1, 2, 5, 9]), floor=2)
    assert (who.items, who.hard, who.buckets) == (2, 2, {"a": 2})
    assert (who.median_answer_tokens, who.median_answer_tokens_of_all) == (3, 3.5)


def test_threshold_sweep_by_hand():
    probs = np.array([[0.9, 0.2, 0.1], [0.3, 0.9, 0.1]])
    correct = np.array([[0, 1, 0], [1, 0, 1]], dtype=bool)
    always, middle, never = threshold_sweep(probs, correct, np.array([0, 0]), [1.0, 0.25, 0.0])
    assert (always.mean_depth, always.gain) == (1.0, 0)
    assert always.loop_cut == pytest.approx(2 / 3)
    assert (middle.mean_depth, middle.gain, middle.gap) == (2.5, 1, -1)
    assert (never.mean_depth, never.gain, never.seeds_without_loss) == (3.0, 0, 1)


def test_the_gap_is_a_mean_over_evaluation_seeds():
    depths, right = np.array([2, 4, 2, 2, 8, 3]), np.array([1, 0, 1, 1, 0, 1])
    found = mean_gap(depths, right, np.array([0, 0, 1, 1, 1, 2]))  # the third seed has no hard item
    assert (found.easy, found.hard, found.gap) == (pytest.approx(7 / 3), 6, 4)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_fixed_depths_of_as_many_loops(depths):
    fixed = as_many(np.array(depths), lots=5)
    assert fixed.shape == (5, len(depths))
    assert (fixed.sum(axis=1) == sum(depths)).all()
    assert fixed.max() - fixed.min() <= 1
    assert fixed.max() <= max(depths)  # no deeper than the budget
