"""The audit finds exactly what a plain double loop over sets finds."""

import random

from hypothesis import given
from hypothesis import strategies as st

from recurtrace.data import overlap
from recurtrace.data.overlap import GRAM, OverlapIndex, grams, jaccard, normalized

WORDS = [f"word{i}" for i in range(400)]


def sentence(rng, length):
    return " ".join(rng.choices(WORDS, k=length))


def test_planted_near_duplicates_around_the_threshold():
    """Without its last 22 words a text of 150 grams is 0.853 similar, without 23 it is 0.847."""
    rng = random.Random(0)
    tests = [sentence(rng, 150 + GRAM - 1) for _ in range(2)]
    above, below = " ".join(tests[0].split()[:-22]), " ".join(tests[1].split()[:-23])
    assert 0.85 < jaccard(grams(tests[0]), grams(above)) < 0.86
    assert 0.84 < jaccard(grams(tests[1]), grams(below)) < 0.85
    index = OverlapIndex([("first", tests[0]), ("second", tests[1])])
    (found,) = index.audit([below, above])
    assert (found.index, found.test_id, found.kind) == (1, "first", "near")


def test_exact_match_after_lower_casing_and_stripping_white_space():
    index = OverlapIndex([("a", "How many  apples?"), ("b", "Something else")])
    found = list(index.audit(["unrelated", "how MANY\napples?", "How many apples"]))
    assert [(match.index, match.kind, match.test_id) for match in found] == [(1, "exact", "a")]
    assert found[0].question == "how MANY\napples?"
    assert normalized(" A b\tC\n") == "abc"


def test_short_questions_match_as_a_whole_only():
    index = OverlapIndex([("a", "one two three")])
    assert [match.index for match in index.audit(["one two", "one two three four", "one two three"])] == [2]


def test_an_empty_audit():
    assert not list(OverlapIndex([]).audit(["a question"]))
    assert not list(OverlapIndex([("a", "text")]).audit([]))


@given(seed=st.integers(0, 10**6), batch=st.sampled_from([1, 3, 4096]))
def test_same_as_the_double_loop(seed, batch):
    rng = random.Random(seed)
    tests = [sentence(rng, rng.randint(5, 50)) for _ in range(12)]
    train = []
    for _ in range(40):
        words = rng.choice(tests).split()
        for _ in range(rng.randint(0, 3)):  # edits at the ends keep most grams, edits inside lose thirteen
            words = rng.choice([words[:-1], words[1:], [*words, rng.choice(WORDS)], words + words[-GRAM:]])
        train.append(" ".join(words))
    expected = []
    for i, question in enumerate(train):
        best = max(jaccard(grams(question), grams(test)) for test in tests)
        if best > 0.85 or normalized(question) in map(normalized, tests):
            expected.append((i, round(best, 9)))
    before, overlap.BATCH = overlap.BATCH, batch
    try:
        found = [
            (match.index, round(match.similarity, 9))
            for match in OverlapIndex(list(zip("abcdefghijkl", tests, strict=True))).audit(train)
        ]
    finally:
        overlap.BATCH = before
    assert found == expected
