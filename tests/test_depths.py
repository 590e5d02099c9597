"""Depths as people write them, in commands and recipes."""

import pytest

from recurtrace.depths import format_depths, parse_depth, parse_depths
from recurtrace.errors import RecurTraceError

WORDS = ("adaptive", "k")


def test_depths_are_read_and_written():
    assert parse_depths("1-3,8,adaptive", WORDS) == [1, 2, 3, 8, "adaptive"]
    assert parse_depths([1, 2, "k"], WORDS) == [1, 2, "k"]
    assert parse_depths("2, 2,1") == [2, 1]
    assert format_depths(range(1, 17)) == "1-16"
    for text in ("1-3,8,adaptive", "4", "1-16", "k", "1,2"):
        asked = parse_depths(text, WORDS)
        assert parse_depths(format_depths(asked), WORDS) == asked


def test_one_depth():
    assert [parse_depth(value) for value in (None, "adaptive", "4", 4)] == [None, "adaptive", 4, 4]
    with pytest.raises(RecurTraceError, match="one depth is needed"):
        parse_depth("1-4")


@pytest.mark.parametrize("wrong", ["4-2", "adaptive-3", "0", "deep", "", "1.5", [True], [0], ["-1"]])
def test_what_is_no_depth_gets_a_sentence(wrong):
    with pytest.raises(RecurTraceError, match="depths are whole numbers from 1, ranges, adaptive and k"):
        parse_depths(wrong, WORDS)
