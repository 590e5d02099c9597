"""Runs: resumed bit for bit, checkpoints whole or not there, depths by index, a stop at the first bad loss."""

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

from recurtrace import RecurTraceError, RecurTraceForCausalLM
from recurtrace.data.packing import open_packed
from recurtrace.files import STAGING, locked
from recurtrace.records import BlockProbe, Window
from recurtrace.training import run
from recurtrace.training.budget import Clock
from recurtrace.training.checkpoints import last_whole_checkpoint, publish
from recurtrace.training.depth_sampler import DepthSampler
from recurtrace.training.run import pretrain, train
from recurtrace.training.trainer import LoopTrainer
from tests.conftest import SIZES


def weights(folder):
    name = "recurtrace.safetensors" if (folder / "recurtrace.safetensors").is_file() else "model.safetensors"
    return load_file(folder / name)


def same(one, other) -> bool:
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def interrupt_at(monkeypatch, step: int) -> None:
    original = LoopTrainer.training_step

    def training_step(self, *arguments, **options):
        if self.state.global_step == step:
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    monkeypatch.setattr(LoopTrainer, "training_step", training_step)


@pytest.mark.parametrize(
    "fields",
    [{"method": "loop"}, {"method": "plain_loop", "train_block": True}, {"method": "full"}, {"method": "adapter"}],
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
        patch.setattr(run, "_budget", killed)
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
        run, "_packed", lambda recipe, name, *_, **__: open_packed(recipe.out / "packed" / f"{name}.arrow")
    )
    assert same(whole, train(recipe("after")))
    assert not recipe("before").out.exists()
    monkeypatch.setattr(run, "build_model", lambda recipe: pytest.fail("it was finished"))
    recipe("after").out.rename(recipe("later").out)
    assert train(recipe("later")) == recipe("later").out / "model"


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


def test_two_runs_in_one_folder(recipe):
    with locked(recipe().out), pytest.raises(RecurTraceError, match=f"by another process, {os.getpid()} on "):
        train(recipe())


def test_epochs_count_what_their_last_step_had(recipe):
    made = recipe(steps=None, epochs=2)
    train(made)
    budget = json.loads((made.out / "budget.json").read_text())
    rows = len(open_packed(made.out / "packed" / "train.arrow"))
    assert budget["tokens"] == 2 * (rows // 4) * 4 * 64
    assert budget["steps"] == 2 * -(-(rows // 4) // 2)


def test_recipes_are_checked_before_anything_is_written(recipe, tmp_path):
    with pytest.raises(RecurTraceError, match="loop.loop_memroy_window is not a field of the loop's config"):
        train(recipe(loop={"loop_start": 2, "loop_memroy_window": 3}))
    with pytest.raises(RecurTraceError, match="no model found at 'nowhere/nothing'"):
        train(recipe(model="nowhere/nothing"))
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_left_alone_and_another_recipe_refused(recipe, monkeypatch):
    folder = train(recipe())
    before = weights(folder)
    monkeypatch.setattr(run, "build_model", lambda recipe: pytest.fail("it was finished"))
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


def test_nothing_is_written_without_data(recipe, tmp_path):
    with pytest.raises(RecurTraceError, match="holds no mixture"):
        train(recipe(data=str(tmp_path / "nothing")))
    assert not (tmp_path / "run").exists()


def test_a_folder_of_something_else_is_refused(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("…")
    with pytest.raises(RecurTraceError, match="is not empty and holds no run"):
        train(recipe())


def test_depths_follow_the_index_of_the_forward_pass(recipe, monkeypatch):
    seen = []
    original = LoopTrainer.compute_loss

    def compute_loss(self, model, inputs, *rest, **options):
        seen.append(inputs["loops"])
        return original(self, model, inputs, *rest, **options)

    monkeypatch.setattr(LoopTrainer, "compute_loss", compute_loss)
    train(recipe())
    assert seen == [DepthSampler(0)(index) for index in range(12)]  # 6 steps of 2 passes


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_stops_the_run(recipe, monkeypatch, what):
    original = LoopTrainer.training_step

    def training_step(self, model, inputs, *rest):
        if self.state.global_step == 3:
            with torch.no_grad():
                if what == "loss":
                    self.model.loop.injection.alpha.fill_(torch.nan)
        loss = original(self, model, inputs, *rest)
        if self.state.global_step == 3 and what == "gradient":
            self.model.loop.injection.alpha.grad.fill_(torch.inf)
        return loss

    monkeypatch.setattr(LoopTrainer, "training_step", training_step)
    monkeypatch.setattr(DepthSampler, "__call__", lambda self, index: 2)
    made = recipe()
    expected = "the loss is nan" if what == "loss" else "the gradient's norm is (inf|nan)"
    with pytest.raises(RecurTraceError, match=rf"{expected} in step 4 at depth 2, in a batch of \w+/train/0/\d+"):
        train(made)
    assert all(tensor.isfinite().all() for tensor in weights(made.out / "checkpoint-2").values())


def test_evaluation_is_the_loss_per_answer_token_at_each_depth(recipe):
    from recurtrace import RecurTraceForCausalLM

    made = recipe()
    folder = train(made)
    history = json.loads((made.out / "history.json").read_text())["log_history"]
    logged = [entry for entry in history if "eval_nll_1" in entry]
    assert [entry["step"] for entry in logged] == [3, 6, 6]
    model = RecurTraceForCausalLM.from_pretrained(folder)
    rows = open_packed(made.out / "packed" / "heldout.arrow")
    for depth in (1, 2, 4):
        total = tokens = 0
        for row in rows:
            start = 0
            for length, prompt in zip(row["lengths"], row["prompt_lengths"], strict=True):
                ids = torch.tensor([row["input_ids"][start : start + length]])
                labels = ids.clone()
                labels[:, :prompt] = -100
                with torch.no_grad():
                    total += model(ids, labels=labels, loops=depth).loss * (length - prompt)
                tokens += length - prompt
                start += length
        assert logged[-1][f"eval_nll_{depth}"] == pytest.approx(float(total / tokens), abs=1e-4)


@pytest.mark.parametrize("method", ["loop", "full", "adapter"])
def test_training_makes_logits_of_labelled_positions_only(recipe, monkeypatch, method):
    """In the steps and in the evaluations between them."""
    rows, labels = [], []
    build, step = run.build_model, LoopTrainer.training_step

    def build_model(recipe):
        model = build(recipe)
        head = next(part for name, part in model.named_modules() if name.endswith("lm_head"))
        head.register_forward_hook(lambda _, __, logits: rows.append(logits.shape[:-1].numel()))
        return model

    def training_step(self, model, inputs, *rest):
        labels.append(int((inputs["labels"] != -100).sum()))
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(run, "build_model", build_model)
    monkeypatch.setattr(LoopTrainer, "training_step", training_step)
    made = recipe(method=method, evaluate_every=6)
    train(made)
    held_out = open_packed(made.out / "packed" / "heldout.arrow")
    held_out_labels = sum(sum(row["lengths"]) - sum(row["prompt_lengths"]) for row in held_out)
    depths = len(made.evaluate_depths) if method == "loop" else 1
    assert rows[: len(labels)] == labels
    assert sum(rows[len(labels) :]) == 2 * depths * held_out_labels  # evaluated after the last step and at the end


def test_budget(recipe):
    made = recipe()
    train(made)
    budget = json.loads((made.out / "budget.json").read_text())
    assert budget["steps"] == 6
    assert budget["tokens"] == 6 * 8 * 64
    depths = [DepthSampler(0)(index) for index in range(12)]
    assert budget["mean_depth"] == pytest.approx(sum(depths) / 12)
    assert budget["forward_flops"] < budget["total_flops"]
    assert 0 < budget["trained_parameters"] < budget["parameters"]
    assert budget["seconds"] > 0
    assert budget["peak_bytes"] > 2**20


def test_the_clock_goes_on(tmp_path):
    Clock(seconds=100.0).write(tmp_path, "NO")
    assert Clock.read(tmp_path).seconds >= 100.0
    assert Clock.read(tmp_path).launched == "NO"
    assert Clock.read(None).seconds < 100.0


def test_windows_of_the_probe_are_compared_by_training(recipe):
    from recurtrace.probe.window_trial import try_windows
    from recurtrace.records import BlockProbe, Window

    windows = [Window(start, 0.1) for start in (1, 2, 3)]
    probe = BlockProbe([0.1] * 6, [0.0] * 6, 1, None, None, 3, windows, None, 0, "distance")
    made = recipe(steps=2, loop={"loop_attn_head_dim": 8})
    probe = try_windows(probe, made, 2)
    assert {window.start for window in probe.windows} == {1, 2}
    assert probe.windows[0].nll <= probe.windows[1].nll
    assert probe.base_nll is not None
    assert probe.compared_by == "training"
    assert (made.out / "window-1" / "budget.json").is_file()


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


def test_questions_about_one_story_share_it(recipe, tmp_path):
    from recurtrace.data.mixture import MixtureRecipe, build

    sources = [{"task": "where_thing", "count": 200}]
    build(MixtureRecipe.check({"sources": sources, "audit": [], "heldout": 12}, "recipe"), tmp_path / "stories")
    fields = {"data": str(tmp_path / "stories"), "max_length": 256, "batch_size": 4, "share_beginnings": True}
    out = train(recipe(**fields)).parent
    history = json.loads((out / "history.json").read_text())["log_history"]
    assert any("eval_nll_4" in entry for entry in history)
    shared, apart = open_packed(out / "packed" / "train.arrow"), recipe("apart", **fields | {"share_beginnings": False})
    train(apart)
    assert len(shared) < len(open_packed(apart.out / "packed" / "train.arrow"))
    with pytest.raises(RecurTraceError, match="share_beginnings needs an attention that takes a mask"):
        recipe(share_beginnings=True, attention="flash_attention_2")


def test_pretraining(tmp_path):
    from recurtrace.training.recipe import PretrainRecipe

    architecture = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    fields = {
        "architecture": architecture, "examples": 400, "sizes": SIZES, "out": str(tmp_path / "base"), "steps": 4,
        "batch_size": 8, "micro_batch_size": 8, "max_length": 64, "precision": "fp32", "evaluate_on": 50,
    }  # fmt: skip
    folder = pretrain(PretrainRecipe.check(fields, "recipe"))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = "Map: AA BB\nEnd: é"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert model.config.vocab_size >= len(tokenizer)
    second = fields | {"out": str(tmp_path / "second"), "start_from": str(folder), "learning_rate": 1e-12, "walks": 0.5}
    lesson = AutoModelForCausalLM.from_pretrained(pretrain(PretrainRecipe.check(second, "recipe")))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(lesson.state_dict()[name], tensor, rtol=0, atol=1e-6)
    for changed, message in (
        ({"architecture": {"hiden_size": 3}}, "architecture.hiden_size is not a field of Qwen3Config"),
        ({"architecture": {"vocab_size": 3}}, "architecture.vocab_size is not a field of Qwen3Config that can be set"),
        ({"k": []}, "at least 1 item"),
        ({"variety": 0.9}, "must not exceed 1 together"),
    ):
        with pytest.raises(RecurTraceError, match=message):
            PretrainRecipe.check(fields | changed, "recipe")
