"""Bad arguments on the command line and in Python."""

import json

import pytest
import torch
from transformers import GenerationConfig

from recurtrace import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.halting.policies import SignalPolicy
from recurtrace.model.base import read_config
from recurtrace.model.depth import refuse_depth_like
from tests.conftest import LOOP
from tests.fuzz.outcome import command, files, outcome, put, written
from tests.fuzz.test_recipes import PIPELINE


def test_prompts(models):
    for prompt in ("\udcff", "a\ud800b"):
        assert "the prompt is not valid Unicode" in command("generate", models / "looped", prompt)
    assert "the prompt is empty" in command("generate", models / "looped", " \n")


@pytest.mark.parametrize("prompt", ["\udcff", "a\ud800b"])
def test_prompts_of_a_trace(models, prompt):
    assert "prompt: is not valid Unicode" in command("trace", models / "looped", prompt)
    assert "reference: is not valid Unicode" in command("trace", models / "looped", "a", "--reference", prompt)


def test_a_trace_stays_within_the_positions_of_the_base(models):
    assert "250 tokens, more than 248" in command("trace", models / "looped", "a" * 250, "--max-loops", 1)
    assert "more than 247" in command("trace", models / "looped", "a" * 250, "--answer-tokens", 9)
    said = command("trace", models / "looped", "a", "--answer-tokens", 256)
    assert "the answer may take 256 of the base's 256 positions" in said


def test_numbers_on_the_command_line(models, tmp_path, tmp_path_factory):
    own = tmp_path_factory.mktemp("own") / "own.yaml"
    own.write_text("{test: own.jsonl, prompt: q, answer: a}")
    own.with_suffix(".jsonl").write_text('{"q": "What is one and one?", "a": 2}\n')
    looped = models / "looped"
    digits = "1" * 24
    for arguments, said in (
        (("generate", looped, "a", "--seed", digits), "seed"),
        (("generate", looped, "a", "--max-new-tokens", digits), "max-new-tokens"),
        (("generate", looped, "a", "--temperature", "nan"), "temperature"),
        (("generate", looped, "a", "--temperature", "inf"), "temperature"),
        (("generate", looped, "a", "--loops", digits), "beyond the limit of 64"),
        (("generate", looped, "a", "--loops", "²"), "depths are whole numbers"),
        (("generate", looped, "a", "--max-depth", digits), "beyond the limit of 64"),
        (("generate", looped, "a", "--threshold", "nan"), "threshold"),
        (("generate", looped, "a", "--device", "none such"), "cannot be used here"),
        (("calibrate", looped, "--sweep", tmp_path, "--max-depth", 0), "max_depth"),
        (("calibrate", looped, "--sweep", tmp_path, "--min-depth", 0), "min_depth"),
        (("calibrate", looped, "--sweep", tmp_path, "--tolerance", "nan"), "tolerance"),
        (("sweep", looped, "--data", own, "--out", tmp_path / "s", "--depths", "1-100000000"), "4,096 depths"),
        (
            (
                "sweep",
                looped,
                "--data",
                own,
                "--out",
                tmp_path / "s",
                "--split",
                "test",
                "--count",
                2,
                "--depths",
                "1-65",
            ),
            "beyond the limit",
        ),
        (("sweep", looped, "--data", own, "--out", tmp_path / "s", "--seed", digits), "seed"),
        (
            ("evaluate", looped, "--data", own, "--out", tmp_path / "e", "--count", 2, "--loops", "100000"),
            "beyond the limit",
        ),
        (("evaluate", looped, "--data", own, "--out", tmp_path / "e", "--max-length", "1024"), "256 positions"),
        (("cost", looped, "--turns", 0), "turns"),
    ):
        assert said in command(*arguments), arguments
    assert not list(tmp_path.iterdir())


def test_more_on_the_command_line(models, tmp_path):
    looped = models / "looped"
    own = tmp_path / "own.yaml"
    put(tmp_path, {"own.yaml": "{test: own.jsonl, prompt: q, answer: a}", "own.jsonl": '{"q": "1?", "a": 1}\n'})
    before = files(tmp_path)
    pipeline = written(tmp_path.parent / "pipelines", "p.yaml", PIPELINE)
    for arguments, said in (
        (("cost", looped, "--tokens", 10**9), "more than 4,194,304"),
        (("cost", looped, "--batch-size", 10**9), "more than 4,194,304"),
        (("cost", looped, "--device", "meta"), "holds no values"),
        (("generate", looped, "a", "--device", "meta"), "holds no values"),
        (("data", "show", "p_hop", "-n", "9" * 20), "2147483647"),
        (("run", pipeline, "--launch", "'"), '--launch "\'" is not a command'),
        (
            ("evaluate", looped, "--data", own, "--tasks", "zzz", "--out", tmp_path / "e"),
            "the data has no zzz; it has own",
        ),
        (("sweep", looped, "--data", own, "--split", "test", "--tasks", "zzz", "--out", tmp_path / "s"), "no zzz"),
        (
            ("convert", models / "base", "--loop-start", 2, "--loop-attn-num-heads", 10**6, "--out", tmp_path / "o"),
            "heads",
        ),
        (("convert", models / "base", "--loop-start", 2, "--loop-attn-num-heads", 0, "--out", tmp_path / "o"), "heads"),
        (("distill", looped, "--sweep", tmp_path / "s", "--set", "probe_depths=[]"), "probe_depths"),
        (("distill", looped, "--sweep", tmp_path / "s", "--set", "steps=[" + "x" * 5000), "is not a YAML value"),
        (("report", tmp_path / "NOPE"), "there is no folder"),
        (("report", tmp_path / "NOPE", "--out", tmp_path / "r"), "there is no folder"),
    ):
        assert said in command(*arguments), arguments
    assert files(tmp_path) == before
    assert not (tmp_path / "NOPE").exists()


@pytest.mark.parametrize("name", ["n_iter", "iterations", "max_dept", "treshold", "loop", "min_dephts", "heads"])
def test_arguments_that_look_like_depth(models, name):
    model = RecurTraceForCausalLM.from_pretrained(models / "looped")
    ids = torch.ones(1, 3, dtype=torch.long)
    for call in (lambda: model(ids, **{name: 4}), lambda: model.generate(ids, max_new_tokens=1, **{name: 4})):
        assert f"there is no argument '{name}'; the depth is loops" in outcome(call)
    refuse_depth_like(GenerationConfig().to_dict())  # none of transformers' own


def test_loops_of_training_have_a_limit(models):
    config = read_config(str(models / "base"))
    said = outcome(lambda: RecurTraceConfig(text_config=config, **LOOP, loop_train_max=100000))
    assert "loop_train_max is 100,000, beyond the limit of 64; lower it, or set loop_depth_limit" in said
    assert RecurTraceConfig(text_config=config, **LOOP, loop_train_max=100, loop_depth_limit=100).depth_limit == 100


@pytest.mark.parametrize("threshold", [float("nan"), "0.5", None])
def test_thresholds_of_a_policy(threshold):
    assert "threshold" in outcome(lambda: SignalPolicy("state_angle", threshold))


def test_a_probe_without_windows(models, tmp_path):
    fields = {"loop_start": 2, "distances": [], "errors": [], "inputs": 1, "encoder_end": None, "decoder_start": None}
    fields |= {"loop_num_layers": 3, "windows": [], "base_nll": None, "compared_on": 0, "compared_by": "distance"}
    (tmp_path / "probe.json").write_text(json.dumps(fields))
    for windows in ([], [{"start": -1, "mean_distance": 0.1}], [{"start": 99, "mean_distance": 0.1}]):
        (tmp_path / "probe.json").write_text(json.dumps(fields | {"windows": windows}))
        said = command("convert", models / "base", "--probe", tmp_path / "probe.json", "--out", tmp_path / "out")
        assert "probe" in said or "outside the 6 layers" in said
    assert not (tmp_path / "out").exists()


def test_windows_can_be_ranked_by_distance_alone(models, tmp_path):
    probe = ("probe", models / "base", "--data", "p_hop", "--inputs", 3, "--max-length", 200)
    assert not command(*probe, "--compare", 0, "--windows", "1,2", "--out", tmp_path / "probe.json")
