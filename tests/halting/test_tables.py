"""The tables of halting belong together: a new method is a row in two of them, and nothing else knows its name."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import recurtrace
from recurtrace.halting.methods import METHODS
from recurtrace.halting.methods import OBJECTIVES as OBJECTIVE_NAMES
from recurtrace.halting.methods import SIGNALS as SIGNAL_NAMES
from recurtrace.halting.objectives import OBJECTIVES
from recurtrace.halting.rule import StoppingRule
from recurtrace.halting.signals import SIGNALS

ROOT = Path(recurtrace.__file__).parent


def test_every_name_has_its_row():
    assert list(OBJECTIVES) == list(OBJECTIVE_NAMES)
    assert set(SIGNALS) == set(SIGNAL_NAMES)
    assert len({method.name for method in METHODS}) == len(METHODS)
    assert {method.signal for method in METHODS if method.objective} == {"head"}


@pytest.mark.parametrize("name", ["pondernet", "loopus", "tah", "top_prob", "state_angle"])
def test_a_method_is_known_in_two_code_files(name):
    """Where its name is written: the table of methods, and the table of objectives or of signals."""
    homes = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value == name
    }
    # Measured there for every answer token too, and what vLLM's log-probabilities say.
    arrays = {"halting/measure.py", "serving/offline.py"} if name == "top_prob" else set()
    assert homes - arrays - {"cli/summary.py"} <= {
        "halting/methods.py", "halting/objectives.py", "halting/signals.py"
    }  # fmt: skip


@pytest.mark.parametrize("stops", ["below", "above"])
def test_the_rule_on_arrays_is_the_rule_loop_by_loop(stops):
    """Live, a sequence leaves at the first loop that halts it; on a sweep the same depth is read off all at once."""
    rng = np.random.default_rng(0)
    values = rng.random((200, 9)).astype(np.float32)
    values[0, 3] = np.nan
    for threshold, floor, budget in ((0.5, 1, 9), (0.2, 3, 6), (0.9, 2, 30), (0.0, 1, 9), (1.0, 9, 9)):
        rule = StoppingRule(threshold, floor, budget, stops)
        depths = []
        for row in torch.from_numpy(values):
            t = 1
            while t < 9 and not bool(rule.halts(t, row[t - 1])):
                t += 1
            depths.append(t)
        assert rule.depths(values).tolist() == depths
        assert all(floor <= depth <= budget for depth in depths)


def test_below_the_floor_and_at_the_budget_nobody_is_asked():
    rule = StoppingRule(0.5, 2, 4)
    assert [rule.asks(t) for t in range(1, 6)] == [False, True, True, False, False]
    assert rule.halts(1, None) is False
    assert rule.halts(4, None) is True
