"""Stratified samples and the eight disjoint evaluation seeds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurtrace import RecurTraceError
from recurtrace.data.example import Example
from recurtrace.data.sampling import evaluation_seeds, stratified


def examples(*sizes: int) -> list[Example]:
    return [Example(f"{b}/{i}", "t", "p", "a", bucket=f"b{b}") for b, size in enumerate(sizes) for i in range(size)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.floats(0.1, 1.0), st.integers(0, 5))
def test_every_bucket_has_its_share(sizes, share, seed):
    whole = examples(*sizes)
    count = max(1, int(share * len(whole)))
    sample = stratified(whole, count, seed)
    assert len(sample) == len({e.id for e in sample}) == count
    found = Counter(example.bucket for example in sample)
    for bucket, size in enumerate(sizes):
        assert abs(found[f"b{bucket}"] - size * count / len(whole)) <= 1 + len(sizes) / 2


def test_tasks_with_the_same_buckets_are_strata_of_their_own():
    """Two tasks, both with buckets easy and hard: a small sample of many has each task's hard items in their share."""
    counts = {("one", "easy"): 300, ("one", "hard"): 100, ("two", "easy"): 40, ("two", "hard"): 360}
    whole = [Example(f"{t}{b}{i}", t, "p", "a", bucket=b) for (t, b), size in counts.items() for i in range(size)]
    found = Counter((example.task, example.bucket) for example in stratified(whole, 80))
    for stratum, size in counts.items():
        assert abs(found[stratum] - size / 10) <= 1


def test_eight_disjoint_seeds_of_300():
    whole = examples(2000, 600, 385)  # as many as MathQA's test
    seeds = evaluation_seeds(whole)
    assert [len(items) for items in seeds] == [300] * 8
    assert len({e.id for items in seeds for e in items}) == 2400
    for items in seeds:
        assert abs(Counter(e.bucket for e in items)["b0"] - 300 * 2000 / 2985) <= 2
    assert seeds == evaluation_seeds(whole)
    assert seeds != evaluation_seeds(whole, seed=1)


def test_too_few_items():
    with pytest.raises(RecurTraceError, match="8 seeds of 300 items need 2400 different ones, but there are 254"):
        evaluation_seeds(examples(254))
