"""The budget table of both stages, with the numbers of the paper's 8B table."""

from dataclasses import replace
from pathlib import Path

import pytest

from recurtrace.records import Budget, HeadBudget
from recurtrace.report.budget_table import STAGE_1, STAGE_2, budget
from recurtrace.report.workspace import Workspace

FULL = Budget(
    method="full", parameters=8_200_000_000, trained_parameters=8_200_000_000, steps=800, batch_size=128,
    max_length=1024, tokens=800 * 128 * 1024, mean_depth=1.0, forward_flops=1.7e18, total_flops=5.2e18, seconds=3600.0,
    peak_bytes=2**36, processes=8, device="NVIDIA H800", precision="bf16", micro_batch_size=2, learning_rate=1e-5,
    layers=36, looped_layers=3,
)  # fmt: skip
LOOP = replace(FULL, method="loop", trained_parameters=125_800_000, mean_depth=3.9, total_flops=5.0e18)
HEAD = HeadBudget(4097, 200, 256, 3e-4, 5000, 16, sweep_flops=1.5e17, head_flops=2e10)


def table(budgets, heads=(HEAD,)):
    return budget(Workspace(Path(), None, None, [], {}, budgets, head_budgets=list(heads)))


def cells(made):
    return {row[0]: row[1:] for row in made.rows}


def test_the_papers_rows_at_8b():
    made = table({"full": [FULL], "loop": [LOOP], "window-1": [LOOP]})
    assert made.columns == ["", "Baseline", "RecurTrace"]
    found = cells(made)
    assert found["Base weights"] == ["fine-tuned", "frozen"]
    assert found["Trainable parameters"] == ["8,200,000,000 (100.0%)", "125,800,000 (1.5%)"]
    assert found["Optimizer, schedule"] == ["AdamW, cosine"] * 2
    assert found["Peak learning rate"] == ["1.0e-05"] * 2
    assert found["Optimizer steps"] == ["800", "800"]
    assert found["Global batch (sequences)"] == ["128", "128"]
    assert found["Micro-batch × accumulation"] == ["2 × 8", "2 × 8"]
    assert found["Max length (tokens)"] == ["1,024"] * 2
    assert found["Training tokens"] == ["104,857,600", "104,857,600"]
    assert found["Hardware"] == ["8 × NVIDIA H800"] * 2
    assert found["Precision"] == ["bfloat16"] * 2
    assert found["Forward layer passes per token"] == ["36.0", "44.7"]  # L and L + (T - 1) k: 1.24 times
    assert float(found["Forward layer passes per token"][1]) / 36 == pytest.approx(1.24, abs=0.005)
    assert found["Training FLOPs (analytical)"] == ["5.20e+18", "5.00e+18"]
    assert found["Minutes"] == ["60.0"] * 2
    assert found["Peak memory of a process, GiB"] == ["64.00"] * 2
    assert found["Trained module"] == ["—", "halting head, 4,097 parameters"]
    assert found["Base and loop modules"] == ["—", "frozen"]
    assert found["Head: optimizer steps"] == ["—", "200"]
    assert found["Head: learning rate, schedule"] == ["—", "3.0e-04, cosine"]
    assert found["Oracle horizon"] == ["—", "depth 16"]
    assert found["Oracle losses"] == ["—", "cached offline, 5,000 examples"]
    assert found["Sweep and head FLOPs (analytical)"] == ["—", "1.50e+17"]
    assert found["Extra FLOPs against stage 1"] == ["—", "3.0%"]  # the paper: below 20 %
    assert len(found) == len(STAGE_1) + len(STAGE_2) + 2
    assert "Not shown: window-1" in made.note


def test_over_seeds_and_older_files():
    slow = replace(LOOP, seconds=7200.0, total_flops=5.2e18)
    made = table({"loop": [LOOP, slow]}, [replace(HEAD, sweep_flops=0.0)])
    found = cells(made)
    assert found["Minutes"] == ["90.0 ± 42.4"]
    assert found["Training FLOPs (analytical)"] == ["5.10e+18"]
    assert found.keys() == {*STAGE_1, *STAGE_2}  # without FLOPs of a sweep that does not say
    both = cells(table({"loop": [LOOP, slow]}, [HEAD, replace(HEAD, sweep_flops=2.5e17)]))
    assert both["Sweep and head FLOPs (analytical)"] == ["2.00e+17"]
    assert both["Extra FLOPs against stage 1"] == ["3.9%"]  # of 5.1e18
    assert "Means over 2 training seeds." in made.note
    old = replace(LOOP, micro_batch_size=None, learning_rate=None, layers=None)
    assert cells(table({"loop": [old]}, []))["Forward layer passes per token"] == ["—"]
    assert table({"window-1": [LOOP]}).missing


def test_a_trained_block_is_not_called_frozen():
    found = cells(table({"full": [FULL], "loop": [replace(LOOP, train_block=True)]}))
    assert found["Base weights"] == ["fine-tuned", "frozen but for the looped layers"]
