"""Tables of single stages, against what was written as JSON."""

import json

import numpy as np
import pandas as pd
import pytest

from recurtrace.report.figures import probe_curve
from recurtrace.report.paper import published
from recurtrace.report.workspace import read_studies
from tests.report.cells.expected import cells, check, text
from tests.report.handmade import COSTED, SEEDS


def written_files(folder, pattern):
    return [json.loads(file.read_text()) for file in sorted((folder / "1.7B").glob(pattern))]


def test_the_model_is_its_config(study):
    """The paper's settings are the defaults, so each cell is what the paper prints."""
    table = study[0]["model-1.7B"]
    printed = {row: cell for one in published() if one.table == "model" and one.scale in ("", "1.7B")
               for (row, _), cell in one.cells().items()}  # fmt: skip
    printed["loop_sample_dist"] = "lognormal poisson"
    check(table, {row: {"Value": cell} for row, cell in printed.items()})


def test_what_training_took(study, folder):
    runs = {"full": "Baseline", "loop": "RecurTrace", "plain-loop": "Plain looping", "adapter": "Adapter"}
    stage_2 = {
        "Trained module": "halting head, 2,049 parameters", "Base and loop modules": "frozen",
        "Head: optimizer steps": "200", "Head: learning rate, schedule": "3.0e-04, cosine",
        "Oracle horizon": "depth 16", "Oracle losses": "cached offline, 5,000 examples",
    }  # fmt: skip
    heads = written_files(folder, "models/*/head-budget.json")
    extra = np.mean([head["sweep_flops"] + head["head_flops"] for head in heads])
    expected = {}
    for run, column in runs.items():
        files = written_files(folder, f"runs/{run}/*/budget.json")
        assert len(files) == len(SEEDS)
        flops, seconds, peaks = ([one[name] for one in files] for name in ("total_flops", "seconds", "peak_bytes"))
        trained, tokens = files[0]["trained_parameters"], files[0]["tokens"]
        cells_of_run = {
            "Base weights": "fine-tuned" if run == "full" else "frozen",
            "Trainable parameters": f"{trained:,} (1.5%)", "Optimizer, schedule": "AdamW, cosine",
            "Peak learning rate": "1.0e-04", "Optimizer steps": "25,000", "Global batch (sequences)": "128",
            "Micro-batch × accumulation": "2 × 8", "Max length (tokens)": "1,024", "Training tokens": f"{tokens:,}",
            "Hardware": "8 × NVIDIA H800", "Precision": "bfloat16",
            "Forward layer passes per token": "36.7" if "loop" in run else "28.0",  # 28 + 2.9 · 3
            "Training FLOPs (analytical)": f"{np.mean(flops):.2e}", "Minutes": text(seconds, ".1f", 1 / 60),
            "Peak memory of a process, GiB": f"{max(peaks) / 1024**3:.2f}",
            **(stage_2 if run == "loop" else dict.fromkeys(stage_2, "—")),
            "Sweep and head FLOPs (analytical)": f"{extra:.2e}" if run == "loop" else "—",
            "Extra FLOPs against stage 1": f"{100 * extra / np.mean(flops):.1f}%" if run == "loop" else "—",
        }  # fmt: skip
        for row, cell in cells_of_run.items():
            expected.setdefault(row, {})[column] = cell
    check(study[0]["budget-1.7B"], expected)


def test_what_depth_costs(study, folder):
    (found,) = written_files(folder, "cost.json")
    ratios = {
        "Last logits: FLOPs": "flops_ratio", "Last logits: time": "time_ratio",
        "All logits: FLOPs": "all_logits_flops_ratio", "All logits: time": "all_logits_time_ratio",
    }  # fmt: skip
    expected = {
        str(one["loops"]): {
            "Layer passes": str(one["layer_passes"]), "K/V bytes per token": f"{one['kv_bytes_per_token']:,}",
            **{column: f"{one[name]:.2f}×" for column, name in ratios.items()},
        }
        for one in found["depths"]
    }  # fmt: skip
    assert list(expected) == list(map(str, COSTED))
    check(study[0]["cost-1.7B"], expected)


def test_the_probes_curve_is_that_of_its_file(study, folder):
    (found,) = written_files(folder, "probe.json")
    space = next(one for one in read_studies(folder) if one.scale == "1.7B")
    curve, windows = probe_curve(space.probe).axes
    assert curve.containers[0].lines[0].get_ydata() == pytest.approx(found["distances"])
    assert [bar.get_height() for bar in windows.patches] == pytest.approx([0.1, -0.1])  # of 3–5 and 12–14, over 1.8


def test_full_test(study, folder):
    lines = (folder / "1.7B" / "full-test" / "records-00000-of-00001.jsonl").read_text().splitlines()
    rows = pd.DataFrame([one for line in lines for one in json.loads(line)["results"]])
    means = rows.groupby("loops")[["correct", "depth"]].mean()
    expected = {}
    for asked, method in (("2", "Fixed depth, T=2"), ("adaptive", "RecurTrace")):
        expected[method, "Items"] = str(len(lines))
        expected[method, "Accuracy, %"] = f"{100 * means.correct[asked]:.1f}"
        expected[method, "Loops"] = f"{means.depth[asked]:.2f}"
    assert cells(study[0]["full-test-1.7B"]) == expected
