"""Bad records, sweeps and what else a report reads."""

import json

import pytest

from recurtrace.halting.sweep_files import read_sweep
from recurtrace.report import run_tables
from recurtrace.report.workspace import Workspace
from tests.fuzz.outcome import command, outcome, written


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", "{", "{}", '{"depths": 3}', '{"windows": []}', "[" * 10**5, "\udcff"]
)
def test_foreign_results(tmp_path, text):
    for place in (
        "cost.json",
        "probe.json",
        "analysis/seed-0.json",
        "runs/loop/budget.json",
        "evaluations/loop/evaluation.json",
    ):
        folder = tmp_path / place.replace("/", "-")
        (folder / place).parent.mkdir(parents=True)
        (folder / place).write_bytes(text.encode("utf-8", "surrogateescape"))
        assert place.split("/")[-1] in command("report", folder)
        assert not (folder / "report").exists()


SWEEP = {"split": "train", "depths": [1, 2], "complete": True}


@pytest.mark.parametrize(
    "fields", [{"parts": "x"}, {"split": 5}, {"depths": []}, {"depths": [0]}, {"depths": "1"}, {"x": 1}], ids=str
)
def test_manifests_of_sweeps(models, tmp_path, fields):
    written(tmp_path, "manifest.json", {**SWEEP, **fields})
    assert "manifest.json" in outcome(lambda: read_sweep(tmp_path))
    said = command("distill", models / "looped", "--sweep", tmp_path, "--out", tmp_path / "out")
    assert "manifest.json" in said
    assert not (tmp_path / "out").exists()


SIZES = '"loop_start": 1, "loop_num_layers": 3, "num_hidden_layers": 8, "hidden_size": 64'


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "{}",
        "\udcff",
        '{"model_type": "recurtrace", "text_config": {}}',
        f'{{"model_type": "llama", {SIZES}}}',
    ],
)
def test_configs_in_a_report(tmp_path, text):
    file = tmp_path / "models" / "seed-0" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "config" in command("report", tmp_path)
    assert not (tmp_path / "report").exists()


def test_the_table_of_a_config_that_lacks_fields(tmp_path):
    config = json.loads(f'{{"model_type": "recurtrace", "text_config": {{{SIZES}}}, {SIZES}}}')
    shown = run_tables.model(Workspace(tmp_path, None, None, [], {}, {}, config=config))
    assert ["Looped layers", "1–3"] in shown.rows
