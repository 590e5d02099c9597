"""What a run does: depths by index, losses at each depth, a stop at the first bad one, its budget."""

import json

import pytest
import torch

from recurtrace import RecurTraceError
from recurtrace.data.packing import open_packed
from recurtrace.training import train as training
from recurtrace.training.clock import Clock
from recurtrace.training.depth_sampler import DepthSampler
from recurtrace.training.pretrain import pretrain
from recurtrace.training.train import train
from recurtrace.training.trainer import LoopTrainer
from tests.conftest import SIZES
from tests.training.runs import weights


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
    assert [entry["step"] for entry in logged] == [3, 6]
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
    build, step = training.build_model, LoopTrainer.training_step

    def build_model(recipe):
        model = build(recipe)
        head = next(part for name, part in model.named_modules() if name.endswith("lm_head"))
        head.register_forward_hook(lambda _, __, logits: rows.append(logits.shape[:-1].numel()))
        return model

    def training_step(self, model, inputs, *rest):
        labels.append(int((inputs["labels"] != -100).sum()))
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(training, "build_model", build_model)
    monkeypatch.setattr(LoopTrainer, "training_step", training_step)
    made = recipe(method=method, evaluate_every=6)
    train(made)
    held_out = open_packed(made.out / "packed" / "heldout.arrow")
    held_out_labels = sum(sum(row["lengths"]) - sum(row["prompt_lengths"]) for row in held_out)
    depths = len(made.evaluate_depths) if method == "loop" else 1
    assert rows[: len(labels)] == labels
    assert sum(rows[len(labels) :]) == depths * held_out_labels  # evaluated once after the last step


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


def test_epochs_count_what_their_last_step_had(recipe):
    made = recipe(steps=None, epochs=2)
    train(made)
    budget = json.loads((made.out / "budget.json").read_text())
    rows = len(open_packed(made.out / "packed" / "train.arrow"))
    assert budget["tokens"] == 2 * (rows // 4) * 4 * 64
    assert budget["steps"] == 2 * -(-(rows // 4) // 2)


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
