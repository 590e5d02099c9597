"""Files of the user stay as they are."""

import pytest

from recurtrace import RecurTraceForCausalLM
from recurtrace.model.heads import copy_model
from tests.fuzz.outcome import command, files, outcome, put

OWN = {"calibration/sensor.csv": "1", "model-v1.safetensors": "2", "tokenizer_notes.txt": "3", "thesis.txt": "4"}


@pytest.mark.parametrize("name", ["README.md", "config.json", "tokenizer.json", "calibration/head.json"])
def test_files_of_the_user_are_not_replaced(models, tmp_path, name):
    """Neither by `convert --overwrite` nor by the copy that `distill --out` makes."""
    mine = tmp_path / "mine"
    put(mine, {**OWN, name: "{}"})
    before = files(mine)
    said = command("convert", models / "base", "--loop-start", 2, "--out", mine, "--overwrite")
    assert f"{name}' is not part of a model and would be replaced" in said
    assert f"{name}' is not part of a model" in outcome(lambda: copy_model(models / "looped", mine, overwrite=True))
    assert files(mine) == before


@pytest.mark.parametrize("merged", [False, True])
def test_files_beside_a_model_stay(models, tmp_path, merged):
    mine = tmp_path / "mine"
    put(mine, OWN)
    convert = ("convert", models / "base", "--loop-start", 2, "--out", mine, *(["--merge-base"] if merged else []))
    assert "not empty" in command(*convert)
    assert not command(*convert, "--overwrite")
    put(mine, {"calibration/head.json": "{}"})
    assert not command(*convert, "--overwrite")
    kept = files(mine)
    assert {name: kept[name].decode() for name in OWN} == OWN
    assert "calibration/head.json" not in kept  # the old model's
    RecurTraceForCausalLM.from_pretrained(mine).save_pretrained(mine, merge_base=merged)
    assert {name: files(mine)[name].decode() for name in OWN} == OWN


def test_a_model_saved_beside_a_readme_leaves_it(models, tmp_path):
    put(tmp_path, {"README.md": "mine", "model-v1.safetensors": "mine"})
    model = RecurTraceForCausalLM.from_pretrained(models / "looped")
    model.save_pretrained(tmp_path, merge_base=True)
    assert (tmp_path / "README.md").read_text() == (tmp_path / "model-v1.safetensors").read_text() == "mine"


def test_a_figure_of_the_user_is_not_replaced(models, tmp_path):
    put(tmp_path, {"probe.png": "mine"})
    said = command("probe", models / "base", "--data", "p_hop", "--out", tmp_path / "probe.json")
    assert "probe.png' exists, where the figure would be written" in said
    assert files(tmp_path) == {"probe.png": b"mine"}
