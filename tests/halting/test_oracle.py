"""Labels against loss tables worked out by hand, and against Eq. 6 written as it stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recurtrace.errors import RecurTraceError
from recurtrace.halting.oracle import continue_labels, correctness_depths, target_depths

LOSSES = np.array(
    [
        [1.00, 0.50, 0.60, 0.40],  # 2 is better than 1; 4 than 2 and 3
        [0.50, 0.495, 0.60, 0.70],  # better by less than the margin
        [0.50, 0.489, 0.60, 0.70],  # by more
        [0.30, 0.40, 0.35, 0.36],  # the first is best, but 3 is better than 2
    ]
)


def test_labels_by_hand():
    expected = [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert continue_labels(LOSSES, margin=0.01).astype(int).tolist() == expected
    assert target_depths(continue_labels(LOSSES)).tolist() == [4, 1, 2, 1]


def test_the_horizon_hides_what_lies_beyond():
    assert continue_labels(LOSSES, horizon=3).astype(int)[0].tolist() == [1, 0, 0, 0]
    assert target_depths(continue_labels(LOSSES, horizon=3)).tolist() == [2, 1, 2, 1]


def test_a_price_on_loops():
    # At 0.15 a loop, 4 would have to be 0.30 + margin below 2; 2 still is 0.15 + margin below 1.
    assert continue_labels(LOSSES, depth_cost=0.15).astype(int)[0].tolist() == [1, 0, 1, 0]


@given(
    hnp.arrays(np.float64, (3, 6), elements=st.floats(0, 4)),
    st.floats(0, 0.5),
    st.floats(0, 0.3),
    st.integers(1, 6),
)
def test_labels_are_equation_6(losses, margin, cost, horizon):
    labels = continue_labels(losses, margin, horizon, cost)
    for i in range(3):
        for t in range(1, 7):
            deeper = [losses[i, s - 1] + cost * (s - t) for s in range(t + 1, horizon + 1)]
            gap = min(deeper, default=np.inf) - (losses[i, t - 1] - margin)
            if abs(gap) > 1e-9:
                assert labels[i, t - 1] == (gap < 0)


def test_the_correctness_ceiling_takes_the_first_right_depth():
    correct = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)
    assert correctness_depths(correct).tolist() == [2, 1, 1]


def test_losses_that_are_not_finite_are_refused():
    with pytest.raises(RecurTraceError, match="not finite"):
        continue_labels(np.array([[1.0, np.nan]]))
