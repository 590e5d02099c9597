"""Bad inputs that were once answered by a traceback, a question, or not at all; each has its sentence now."""

import json
import pickle
import shutil

import pytest

from recurtrace import RecurTraceForCausalLM
from recurtrace.data.benchmarks import TASKS
from recurtrace.data.loading import load
from recurtrace.data.mixture import MixtureRecipe
from recurtrace.halting.policies import SignalPolicy
from recurtrace.model.loading import load_any
from recurtrace.training.recipe import TrainRecipe
from tests.conftest import LOOP, byte_tokenizer, stir, tiny_base
from tests.fuzz.outcome import command, files, outcome


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, and a looped model on it."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = byte_tokenizer()
    tiny_base(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id).save_pretrained(folder / "base")
    model = stir(RecurTraceForCausalLM.from_base(folder / "base", **LOOP))
    model.save_pretrained(folder / "looped")
    for name in ("base", "looped"):
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def changed(models, tmp_path):
    """A model folder with fields of its config changed; `text_config` of a looped one is the base's."""

    def make(name, **fields):
        shutil.copytree(models / name, tmp_path / name, dirs_exist_ok=True)
        file = tmp_path / name / "config.json"
        config = json.loads(file.read_text())
        inner = config["text_config"] if name == "looped" else config
        for field, value in fields.items():
            (config if field in ("base_model_name_or_path", "dtype") else inner)[field] = value
        file.write_text(json.dumps(config))
        return tmp_path / name

    return make


CONFIGS = [
    ({"dtype": "os.system"}, "dtype"),
    ({"dtype": "nn"}, "dtype"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"hidden_size": "abc"}, "hidden_size"),
    ({"vocab_size": -5}, "vocab_size"),
    ({"num_attention_heads": 0}, "num_attention_heads"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    ({"head_dim": 10**9}, "head_dim"),
    ({"head_dim": 7}, "head_dim"),
    ({"intermediate_size": None}, "intermediate_size"),
    ({"max_position_embeddings": "many"}, "max_position_embeddings"),
    ({"rope_parameters": {"rope_type": "none such"}}, "rope"),
    ({"hidden_act": "none such"}, "hidden_act"),
    ({"layer_types": ["none such"]}, "layer_types"),
]


@pytest.mark.parametrize("name", ["base", "looped"])
@pytest.mark.parametrize(("fields", "said"), CONFIGS, ids=lambda value: str(value)[:40])
def test_configs(changed, name, fields, said):
    folder = changed(name, **fields)
    sentence = command("info", folder, *(("--loop-start", 2) if name == "base" else ()))
    if name == "base" or said not in ("rope", "hidden_act", "layer_types"):  # of a looped folder it reads sizes alone
        assert said in sentence
    assert said in (
        command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out")
        if name == "base"
        else command("generate", folder, "a", "--max-new-tokens", 1)
    )
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("value", [5, ["a"], {}, True])
def test_the_name_of_a_base_is_a_text(changed, value):
    folder = changed("looped", base_model_name_or_path=value)
    assert "base_model_name_or_path must be a text" in command("info", folder)
    assert "base_model_name_or_path must be a text" in command("generate", folder, "a")


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"x"', "{", "", "\udcff", '{"model_type": []}', '{"model_type": 3}', "[" * 10**5]
)
def test_configs_that_are_no_config(changed, text):
    for name in ("base", "looped"):
        folder = changed(name)
        (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert "config.json" in command("info", folder)
        assert "config.json" in command("generate", folder, "a")


def test_prompts(models):
    for prompt in ("\udcff", "a\ud800b"):
        assert "the prompt is not valid Unicode" in command("generate", models / "looped", prompt)
    assert "the prompt is empty" in command("generate", models / "looped", " \n")


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


ROWS = [
    "[1, 2]",
    '"text"',
    "null",
    "7",
    '{"question": null, "answer": "#### 1"}',
    '{"question": 5, "answer": "#### 1"}',
    '{"question": "?", "answer": NaN}',
    '{"question": "?", "answer": ["#### 1"]}',
    '{"question": "\\ud800", "answer": "#### 1"}',
    "[" * 10**5,
    "{",
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[:40])
def test_rows_of_a_benchmark(tmp_path, row):
    file = tmp_path / "openai__gsm8k" / "main" / "test.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"question": "1?", "answer": "#### 1"}\n' + row + "\n")
    said = outcome(lambda: load("gsm8k", "test", tmp_path))
    assert "line 2" in said
    assert file.name in said
    file.write_bytes(b'{"question": "1?", "answer": "#### 1"}\n\xff\xfe\n')
    assert "is not UTF-8" in outcome(lambda: load("gsm8k", "test", tmp_path))


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.hub])
@pytest.mark.parametrize("value", [None, 5, 0.5, [], {}, [None], "", True, {"title": 3}, [[]]], ids=str)
def test_every_benchmark_with_fields_of_another_kind(tmp_path, name, value):
    task = TASKS[name]
    split = next(iter(task.splits))
    file = tmp_path / task.hub.replace("/", "__") / task.configs[0] / f"{task.splits[split]}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(dict.fromkeys(task.columns, value)) + "\n")
    outcome(lambda: load(name, split, tmp_path))


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


def test_a_probe_without_windows(models, tmp_path):
    fields = {"loop_start": 2, "distances": [], "errors": [], "inputs": 1, "encoder_end": None, "decoder_start": None}
    fields |= {"loop_num_layers": 3, "windows": [], "base_nll": None, "compared_on": 0, "compared_by": "distance"}
    (tmp_path / "probe.json").write_text(json.dumps(fields))
    for windows in ([], [{"start": -1, "mean_distance": 0.1}], [{"start": 99, "mean_distance": 0.1}]):
        (tmp_path / "probe.json").write_text(json.dumps(fields | {"windows": windows}))
        said = command("convert", models / "base", "--probe", tmp_path / "probe.json", "--out", tmp_path / "out")
        assert "probe" in said or "outside the 6 layers" in said
    assert not (tmp_path / "out").exists()


class Mark:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_pickles_are_neither_loaded_nor_a_traceback(models, tmp_path):
    folder, mark = tmp_path / "peft", tmp_path / "ran"
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(models / "base"),
        "target_modules": ["q_proj"],
        "r": 2,
    }
    config |= {"task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Mark(mark)))
    assert "safetensors" in outcome(lambda: load_any(str(folder)))
    base = tmp_path / "base"
    shutil.copytree(models / "base", base)
    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(Mark(mark)))
    assert "safetensors" in command("convert", base, "--loop-start", 2, "--out", tmp_path / "out")
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", '{"peft_type": "NONE"}', '{"peft_type": "LORA"}', '{"peft_type": 3}']
)
def test_empty_peft_configs(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    assert "adapter_config.json" in outcome(lambda: load_any(str(tmp_path)))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcde", "bcdef", strict=True)
)


@pytest.mark.parametrize("kind", [TrainRecipe, MixtureRecipe])
@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        BOMB + "sources: *f\nsteps: *f\n",
        "- 1",
        "",
        "a: [",
        "a: &a [*a]\nsteps: *a",
        "{" * 2000,
        "!!python/object:os.system {}",
        "steps: 2020-01-01",
        "? [a]\n: b",
        "1: 2",
        "null: 3",
        "\x00",
        "sources: [[[[]]]]",
        "steps: " + "9" * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_yaml(tmp_path, kind, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    assert "recipe.yaml" in outcome(lambda: kind.read(file))


@pytest.mark.parametrize("threshold", [float("nan"), "0.5", None])
def test_thresholds_of_a_policy(threshold):
    assert "threshold" in outcome(lambda: SignalPolicy("state_angle", threshold))


def test_an_adapter_without_its_weights(changed):
    folder = changed("looped")
    (folder / "recurtrace.safetensors").unlink()
    for said in (command("generate", folder, "a"), command("calibrate", folder, "--sweep", folder)):
        assert "lacks recurtrace.safetensors" in said
    (folder / "recurtrace.safetensors").write_bytes(b"x" * 100)
    assert "not a whole safetensors file" in command("generate", folder, "a")


def test_nothing_is_written_outside(models, tmp_path):
    """The inputs of all tests above stay as they were."""
    assert {name.split("/")[0] for name in files(models)} == {"base", "looped"}
