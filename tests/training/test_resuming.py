"""Runs are resumed bit for bit; checkpoints are whole or not there."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from recurtrace import RecurTraceError
from recurtrace.data.packing import open_packed
from recurtrace.files import STAGING
from recurtrace.training import train as training
from recurtrace.training.checkpoints import last_whole_checkpoint, publish
from recurtrace.training.train import train
from tests.training.runs import interrupt_at, same


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "loop"},
        {"method": "plain_loop", "train_block": True, "block_learning_rate": 2e-3},
        {"method": "full"},
        {"method": "adapter"},
    ],
    ids=["loop", "block", "full", "adapter"],
)
def test_a_resumed_run_equals_the_unbroken_one(recipe, monkeypatch, fields):
    whole = train(recipe("whole", **fields))
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe("broken", **fields))
    broken = recipe("broken").out
    assert sorted(path.name for path in broken.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    (broken / STAGING / "checkpoint-6").mkdir(parents=True)  # as if killed while saving
    resumed = train(recipe("broken", **fields))
    if fields["method"] == "adapter":
        files = [load_file(folder / "adapter_model.safetensors") for folder in (whole, resumed)]
        assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    else:
        assert same(whole, resumed)
    assert not (broken / STAGING).exists() or not any((broken / STAGING).iterdir())
    history = [
        json.loads((recipe(name).out / "history.json").read_text())["log_history"] for name in ("whole", "broken")
    ]
    losses = [[entry["loss"] for entry in log if "loss" in entry] for log in history]
    assert losses[0] == losses[1]


def test_kill_9_and_the_same_command_again(recipe, tmp_path):
    file = tmp_path / "recipe.yaml"
    made = recipe("killed", steps=40, save_every=1, evaluate_every=40)
    file.write_text(yaml.safe_dump(made.model_dump(mode="json", exclude_unset=True)))
    command = [sys.executable, "-m", "recurtrace", "train", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while process.poll() is None and not list(made.out.glob("checkpoint-*")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr
    assert "40 steps" in finished.stdout
    whole = train(recipe("whole", steps=40, save_every=1, evaluate_every=40))
    assert same(whole, made.out / "model")


def test_killed_between_the_last_step_and_the_end(recipe, monkeypatch):
    whole = train(recipe("whole"))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("recurtrace.training.run._budget", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe("late"))
    assert same(whole, train(recipe("late")))
    steps = json.loads((recipe("late").out / "history.json").read_text())["global_step"]
    assert steps == 6


def test_a_checkpoint_is_resumed_as_it_was_launched(recipe, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe())
    clock = recipe().out / "checkpoint-4" / "clock.json"
    clock.write_text(clock.read_text().replace("NO with 1", "DEEPSPEED with 8"))
    (clock.parent / "files.json").unlink()  # which has its size
    with pytest.raises(RecurTraceError, match="was written by DEEPSPEED with 8 processes, and this is NO with 1"):
        train(recipe())


def test_a_damaged_checkpoint_is_passed_over(recipe, monkeypatch):
    whole = train(recipe("whole"))
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe())
    out = recipe().out
    assert last_whole_checkpoint(out).name == "checkpoint-4"
    optimizer = out / "checkpoint-4" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1000])
    assert last_whole_checkpoint(out).name == "checkpoint-2"
    (out / "checkpoint-2" / "files.json").write_text("{")
    with pytest.raises(
        RecurTraceError, match="every checkpoint in .* is damaged, the newest in optimizer.pt; remove them"
    ):
        train(recipe())
    (out / "checkpoint-2" / "files.json").unlink()  # as in an older version: taken if it can be opened
    assert same(whole, train(recipe()))


class Mark:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
def test_a_foreign_checkpoint_is_neither_run_nor_a_traceback(recipe, monkeypatch, tmp_path, name):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe())
    out = recipe().out
    newest, older = out / "checkpoint-4", out / "checkpoint-2"
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)  # of the same size
    assert last_whole_checkpoint(out) == older
    publish(newest, newest.with_name("checkpoint-6"))  # someone else's, whose hashes agree
    (newest.with_name("checkpoint-6") / name).write_bytes(pickle.dumps(Mark(tmp_path / "ran")))
    publish(newest.with_name("checkpoint-6"), newest)
    assert last_whole_checkpoint(out) == older
    shutil.rmtree(older)
    with pytest.raises(RecurTraceError, match=f"every checkpoint in .* is damaged, the newest in {name}"):
        train(recipe())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kept", [0, 5, -1, -8])
def test_truncated_data_is_tokenised_again(recipe, monkeypatch, kept, caplog):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 0)
        with pytest.raises(KeyboardInterrupt):
            train(recipe())
        file = recipe().out / "packed" / "train.arrow"
        whole = file.read_bytes()
        file.write_bytes(whole[:kept])
        with pytest.raises(KeyboardInterrupt):
            train(recipe())
    assert file.read_bytes() == whole
    assert "is damaged, so the data is tokenised again" in caplog.text


def test_a_renamed_run_resumes(recipe, monkeypatch):
    whole = train(recipe("whole"))
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(recipe("before"))
    recipe("before").out.rename(recipe("after").out)
    file = recipe("after").out / "recipe.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in fields.items() if name != "clip"}))  # an older version
    monkeypatch.setattr(
        training, "packed", lambda recipe, name, *_, **__: open_packed(recipe.out / "packed" / f"{name}.arrow")
    )
    assert same(whole, train(recipe("after")))
    assert not recipe("before").out.exists()
    monkeypatch.setattr(training, "build_model", lambda recipe: pytest.fail("it was finished"))
    recipe("after").out.rename(recipe("later").out)
    assert train(recipe("later")) == recipe("later").out / "model"
