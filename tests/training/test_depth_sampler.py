"""The training depth: the appendix's distribution, and a pure function of (seed, index)."""

from collections import Counter

import pytest

from recurtrace.training.depth_sampler import DepthSampler


def test_depth_distribution_matches_appendix():
    depths = [DepthSampler(seed=0)(index) for index in range(40_000)]
    shares = Counter(depths)
    for depth, percent in enumerate((10, 19, 20, 17, 12, 8, 5, 8), start=1):
        assert 100 * shares[depth] / len(depths) == pytest.approx(percent, abs=0.9)
    assert sum(depths) / len(depths) == pytest.approx(3.9, abs=0.05)
    assert sorted(depths)[len(depths) // 2] in (3, 4)  # the median lies on the border of the two
    assert sum(depth >= 6 for depth in depths) / len(depths) == pytest.approx(0.2, abs=0.02)


def test_a_pure_function_of_seed_and_index():
    assert [DepthSampler(3)(i) for i in range(50)] == [DepthSampler(3)(i) for i in reversed(range(50))][::-1]
    assert [DepthSampler(3)(i) for i in range(50)] != [DepthSampler(4)(i) for i in range(50)]
    assert all(DepthSampler(0, maximum=2)(i) <= 2 for i in range(50))
