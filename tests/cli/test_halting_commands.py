"""From a trained model to a head that picks depths, as a user types it."""

import json
import re

import pytest

from recurtrace import RecurTraceForCausalLM
from recurtrace.data.little_world import build_tokenizer
from recurtrace.data.mixture import MixtureRecipe, build
from recurtrace.data.synthetic import Sizes
from recurtrace.errors import RecurTraceError
from recurtrace.files import locked
from recurtrace.halting.policies import signal_values, stop_depths
from recurtrace.halting.sweep_files import read_sweep
from recurtrace.model.heads import read_head
from tests.cli.test_commands import run
from tests.conftest import stir, tiny_base

SIZES = {"symbols": 24, "test_symbols": 8, "mapping": 4, "registers": 2, "largest_start": 10, "modulus": 11}
OBJECTIVES = ("oracle", "act", "pondernet", "loopus", "tah")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A looped model, a mixture, and sweeps of what the mixture held out and of its test."""
    place = tmp_path_factory.mktemp("halting")
    tokenizer = build_tokenizer(Sizes(**SIZES))
    tiny_base(vocab_size=len(tokenizer), eos_token_id=1).save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")
    run("convert", place / "base", "--out", place / "model", "--loop-start", 2, "--loop-attn-head-dim", 8)
    model = stir(RecurTraceForCausalLM.from_pretrained(place / "model"), halting=False)
    model.config.loop_halting_trained = False
    model.save_pretrained(place / "model")
    sources = [{"task": task, "count": 400} for task in ("p_hop", "arithmetic")]
    fields = {"sources": sources, "audit": [], "heldout": 40, "sizes": SIZES}
    build(MixtureRecipe.check(fields, "recipe"), place / "mixture")
    common = ("--data", place / "mixture", "--depths", "1-8", "--batch-size", 16)
    said = run("sweep", place / "model", *common, "--out", place / "heldout")
    assert "34 layer passes for a prompt token, 5.7 times the base's 6" in said  # 2 + 8 · 3 + 8 · 1
    run("sweep", place / "model", *common, "--split", "test", "--count", 48, "--out", place / "test")
    run("sweep", place / "model", *common, "--split", "train", "--count", 80, "--out", place / "train")
    return place


def test_a_sweep_of_a_mixtures_test_has_its_sizes_and_its_mark(place):
    test = read_sweep(place / "test")
    assert test.split == "test"
    assert {item.task for item in test.items} == {"p_hop", "arithmetic"}
    assert all("/test/" in item.id for item in test.items)
    assert len(test) == 48
    assert read_sweep(place / "heldout").manifest.examples == 80


def test_a_copy_goes_to_a_folder_of_its_own(place, tmp_path):
    distill = ("distill", place / "model", "--sweep", place / "train", "--set", "steps=2", "--out", tmp_path / "copy")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    with pytest.raises(RecurTraceError, match="is not empty and holds no model"):
        run(*distill)
    run(*distill, "--overwrite")
    calibration = tmp_path / "copy" / "calibration" / "head.json"
    run("calibrate", tmp_path / "copy", "--sweep", place / "heldout")
    assert calibration.is_file()
    run(*distill)  # into the copy that is there; the threshold was the other head's
    assert not calibration.exists()
    model = stir(RecurTraceForCausalLM.from_pretrained(tmp_path / "copy"), seed=5)
    model.save_pretrained(tmp_path / "copy")
    with pytest.raises(RecurTraceError, match="already holds another model than .* pass --overwrite"):
        run(*distill)
    run(*distill, "--overwrite")
    assert (tmp_path / "copy" / "notes.txt").read_text() == "mine"
    with (
        locked(tmp_path / "copy"),
        pytest.raises(RecurTraceError, match="is being written by another process"),
    ):
        run("calibrate", tmp_path / "copy", "--sweep", place / "heldout")


def test_distill_calibrate_compare(place, tmp_path):
    model = place / "model"
    for objective in OBJECTIVES:
        options = ("--sweep", place / "train", "--objective", objective, "--set", "steps=30")
        said = run("distill", model, *options)  # a head of another objective is named after it
        assert "30 steps on 80 examples" in said
    said = run("calibrate", model, "--sweep", place / "heldout")
    threshold, floor = re.search(r"threshold ([\d.]+), floor (\d)", said).groups()
    head = read_head(model)
    settings = head.settings
    assert (settings.threshold, settings.min_depth) == (float(threshold), int(floor))
    assert json.loads((model / "calibration" / "head.json").read_text())["point"]["threshold"] == float(threshold)
    run("calibrate", model, "--sweep", place / "heldout", "--signal", "margin", "--select", "accuracy")
    assert (model / "calibration" / "margin.json").is_file()
    run("calibrate", model, "--sweep", place / "heldout", "--head", "tah", "--tasks", "p_hop")

    table = run(
        "compare", model, "--heldout", place / "heldout", "--test", place / "test", "--out", tmp_path / "t.json"
    )
    for title in ("RecurTrace", "ACT + floor", "CALM (margin)", "LoopUS-Conf", "TaH-Mismatch", "Correctness oracle"):
        assert title in table
    found = json.loads((tmp_path / "t.json").read_text())
    rows = {row["name"]: row for row in found["methods"]}
    assert sum(found["histogram"].values()) == found["items"] == 48
    assert {task["task"] for task in found["tasks"]} == {"p_hop", "arithmetic"}
    test = read_sweep(place / "test")
    depths = stop_depths(signal_values(test, "head", head), "head", settings.threshold, settings.min_depth)
    assert rows["recurtrace"]["mean_depth"] == pytest.approx(depths.mean())
    assert rows["fixed-8"]["mean_depth"] == 8
    assert "fixed-16" not in rows  # deeper than the sweep

    out = run("generate", model, "Start: 3 mod 11\nSteps: +2\nEnd:", "--max-new-tokens", 2)
    assert "chosen by the halting head)" in out
    out = run("generate", model, "Start: 3 mod 11\nSteps: +2\nEnd:", "--max-new-tokens", 2, "--head", "act")
    assert "chosen by the halting head act)" in out
    assert "act" in run("info", model)


def test_bad_input_gets_a_sentence(place, tmp_path):
    with pytest.raises(RecurTraceError, match="test items"):
        run("distill", place / "model", "--sweep", place / "test")
    with pytest.raises(RecurTraceError, match="train items"):
        run("calibrate", place / "model", "--sweep", place / "train", "--signal", "margin")
    with pytest.raises(RecurTraceError, match="held-out examples come from a mixture"):
        run("sweep", place / "model", "--data", "arithmetic", "--out", tmp_path / "x")
    with pytest.raises(RecurTraceError, match="name of a method"):
        run("distill", place / "model", "--sweep", place / "train", "--head", "kl")
    with pytest.raises(RecurTraceError, match="no field 'stepz'"):
        run("distill", place / "model", "--sweep", place / "heldout", "--set", "stepz=3")
    with pytest.raises(RecurTraceError, match="holds no sweep"):
        run("distill", place / "model", "--sweep", tmp_path)
    with pytest.raises(RecurTraceError, match="whole numbers from 1, ranges"):
        run("sweep", place / "model", "--data", place / "mixture", "--out", tmp_path / "x", "--depths", "a")
    run("convert", place / "base", "--out", tmp_path / "other", "--loop-start", 1, "--loop-attn-head-dim", 8)
    with pytest.raises(RecurTraceError, match="other loop modules"):
        run("distill", tmp_path / "other", "--sweep", place / "heldout")
    with pytest.raises(RecurTraceError, match="no model folder"):
        run("distill", tmp_path / "nowhere", "--sweep", place / "heldout")


def test_a_sweep_without_states_says_what_is_missing(place, tmp_path):
    options = ("--data", place / "mixture", "--depths", "1-4", "--count", 8, "--no-states", "--out", tmp_path / "s")
    run("sweep", place / "model", *options, "--split", "train", "--tasks", "p_hop")
    assert {item.task for item in read_sweep(tmp_path / "s").items} == {"p_hop"}
    with pytest.raises(RecurTraceError, match="kept no pooled states"):
        run("distill", place / "model", "--sweep", tmp_path / "s")
