"""What cannot be trained is said before anything is written, and folders of others are left alone."""

import json
import os
import shutil

import pytest

from recurtrace import RecurTraceError, RecurTraceForCausalLM
from recurtrace.data.packing import open_packed
from recurtrace.files import locked
from recurtrace.records import BlockProbe, Window
from recurtrace.training import train as training
from recurtrace.training.train import train
from tests.training.runs import interrupt_at, weights


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start_from": "nowhere"}, "start_from is 'nowhere', which holds no looped model; correct it or leave it out"),
        ({"start_from": "BASE"}, "which holds no looped model; correct it or leave it out"),
        ({"report_to": ["nope"]}, "report_to names 'nope', which is no tracker; they are"),
        ({"attention": "nope"}, "attention must be eager, sdpa, flex_attention"),
        ({"attention": "org/kernels"}, "attention must be eager, sdpa, flex_attention"),
        ({"evaluate_depths": [1, 100000]}, "evaluate_depths is 100,000, .* set loop.loop_depth_limit in the recipe"),
        (
            {"max_length": 1024},
            "the base has 256 positions .* lower max_length in the recipe, or set extrapolate there",
        ),
        ({"loop": {"loop_start": 2, "loop_train_max": 100000}}, "loop_train_max is 100,000, beyond the limit of 64"),
    ],
)
def test_what_is_refused_leaves_nothing(recipe, base_folder, fields, message):
    fields = {name: str(base_folder) if value == "BASE" else value for name, value in fields.items()}
    with pytest.raises(RecurTraceError, match=message):
        train(recipe("refused", **fields))
    assert not recipe("refused").out.exists()


def test_a_start_must_fit_the_recipe_before_anything_is_written(recipe, base_folder, tmp_path):
    looped = RecurTraceForCausalLM.from_base(base_folder, loop_start=1, loop_attn_head_dim=8)
    looped.save_pretrained(tmp_path / "looped")
    start, loop = {"start_from": str(tmp_path / "looped")}, {"loop_attn_head_dim": 8}
    for fields, message in (
        (start, "loops other layers than the recipe; leave out loop_start"),
        (start | {"loop": {"loop_attn_head_dim": 16}}, "has another shape; leave out loop_attn_num_heads"),
        (
            start | {"loop": loop, "model": str(tmp_path / "looped")},
            "is a looped model; set model to its base, or leave",
        ),
    ):
        with pytest.raises(RecurTraceError, match=message):
            train(recipe("refused", **fields))
    (tmp_path / "looped" / "recurtrace.safetensors").unlink()
    with pytest.raises(RecurTraceError, match="lacks recurtrace.safetensors"):
        train(recipe("refused", **start, loop=loop))
    assert not recipe("refused").out.exists()


def test_a_probe_of_another_base_is_refused(recipe, tmp_path):
    windows = [Window(2, 0.1)]
    probe = BlockProbe([0.1] * 6, [0.0] * 6, 1, None, None, 3, windows, None, 0, "distance", "other", "0" * 32)
    probe.write(tmp_path / "probe.json")
    fields = {"probe": str(tmp_path / "probe.json"), "loop": {"loop_attn_head_dim": 8}}
    with pytest.raises(RecurTraceError, match="probe.json was measured on another model, other; probe this one"):
        train(recipe("refused", **fields))
    assert not recipe("refused").out.exists()


def test_recipes_are_checked_before_anything_is_written(recipe, tmp_path):
    with pytest.raises(RecurTraceError, match="loop.loop_memroy_window is not a field of the loop's config"):
        train(recipe(loop={"loop_start": 2, "loop_memroy_window": 3}))
    with pytest.raises(RecurTraceError, match="no model found at 'nowhere/nothing'"):
        train(recipe(model="nowhere/nothing"))
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_without_data(recipe, tmp_path):
    with pytest.raises(RecurTraceError, match="holds no mixture"):
        train(recipe(data=str(tmp_path / "nothing")))
    assert not (tmp_path / "run").exists()


def test_impossible_sizes(recipe):
    with pytest.raises(RecurTraceError, match="fewer than one batch of 4096"):
        train(recipe(batch_size=4096))


def test_an_end_of_text_that_the_base_cannot_write_is_refused(recipe, base_folder, tmp_path):
    """As in stories15M, whose LM head has one row for all tokens it never saw; found as a loss that did not fall."""
    from transformers import AutoModelForCausalLM

    from recurtrace.model.tokenizer import load_tokenizer

    folder = shutil.copytree(base_folder, tmp_path / "unseen")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), load_tokenizer(str(folder))
    head = model.get_output_embeddings().weight.data
    head[[7, 9]] = head[tokenizer.eos_token_id].clone()
    model.save_pretrained(folder)
    with pytest.raises(RecurTraceError, match="2 other tokens have the same row in its LM head; set answer_end: line"):
        train(recipe(model=str(folder)))
    train(recipe("line", model=str(folder), answer_end="line"))
    row = open_packed(recipe("line").out / "packed" / "train.arrow")[0]
    assert tokenizer.decode(row["input_ids"][: row["lengths"][0]]).endswith("\n")


def test_a_folder_of_something_else_is_refused(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("…")
    with pytest.raises(RecurTraceError, match="is not empty and holds no run"):
        train(recipe())


def test_two_runs_in_one_folder(recipe):
    with locked(recipe().out), pytest.raises(RecurTraceError, match=f"by another process, {os.getpid()} on "):
        train(recipe())


def test_overwriting_a_run(recipe):
    folder = train(recipe())
    with pytest.raises(RecurTraceError, match="a different run .different steps.; .* pass --overwrite"):
        train(recipe(steps=2))
    (folder.parent / "notes.txt").touch()
    train(recipe(steps=2, overwrite=True))
    assert json.loads((folder.parent / "budget.json").read_text())["steps"] == 2
    assert not (folder.parent / "checkpoint-4").exists()
    assert (folder.parent / "notes.txt").exists()
    assert "overwrite" not in (folder.parent / "recipe.json").read_text()


def test_a_finished_run_is_left_alone_and_another_recipe_refused(recipe, monkeypatch):
    folder = train(recipe())
    before = weights(folder)
    monkeypatch.setattr(training, "build_model", lambda recipe: pytest.fail("it was finished"))
    assert train(recipe()) == folder
    assert weights(folder).keys() == before.keys()
    with pytest.raises(
        RecurTraceError, match="already holds a different run .different learning rate.; choose another folder"
    ):
        train(recipe(learning_rate=3e-3))


def test_a_run_that_trained_nothing_yet_may_change_its_recipe(recipe, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0)
        with pytest.raises(KeyboardInterrupt):
            train(recipe())
    assert (train(recipe(learning_rate=3e-3)) / "recurtrace.safetensors").is_file()
