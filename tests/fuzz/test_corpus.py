"""Bad inputs that were once answered by a traceback, a question, or not at all; each has its sentence now."""

import json
import pickle
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from recurtrace import RecurTraceConfig, RecurTraceForCausalLM
from recurtrace.data.benchmarks import TASKS
from recurtrace.data.loading import load
from recurtrace.data.mixture import MixtureRecipe, Source, mixture_sizes, read_examples
from recurtrace.files import WHOLE
from recurtrace.halting.policies import SignalPolicy
from recurtrace.halting.sweep_files import read_sweep
from recurtrace.model.base import read_config
from recurtrace.model.depth import refuse_depth_like
from recurtrace.model.heads import copy_model, read_heads
from recurtrace.model.loading import load_any
from recurtrace.pipeline import PipelineRecipe
from recurtrace.report import run_tables
from recurtrace.report.workspace import Workspace
from recurtrace.training.recipe import TrainRecipe
from tests.conftest import LOOP, byte_tokenizer, stir, tiny_base
from tests.fuzz.outcome import command, files, outcome, written


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, and a looped model on it."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = byte_tokenizer()
    tiny_base(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id).save_pretrained(folder / "base")
    model = stir(RecurTraceForCausalLM.from_base(folder / "base", **LOOP))
    model.save_pretrained(folder / "looped")
    llama = tiny_base("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    llama.save_pretrained(folder / "llama")
    for name in ("base", "llama", "looped"):
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


@pytest.mark.parametrize("name", ["base", "llama", "looped"])
@pytest.mark.parametrize(("fields", "said"), CONFIGS, ids=lambda value: str(value)[:40])
def test_configs(changed, name, fields, said):
    folder = changed(name, **fields)
    sentence = command("info", folder, *(("--loop-start", 2) if name != "looped" else ()))
    if name != "looped" or said not in ("rope", "hidden_act", "layer_types"):  # of a looped folder it reads sizes alone
        assert said in sentence
    assert said in (
        command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out")
        if name != "looped"
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
    assert {name.split("/")[0] for name in files(models)} == {"base", "llama", "looped"}


OWN = {"calibration/sensor.csv": "1", "model-v1.safetensors": "2", "tokenizer_notes.txt": "3", "thesis.txt": "4"}


def put(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


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


PIPELINE = {"base": "base", "out": "out", "mixture": "mixture.yaml", "train": {"steps": 1}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ablations": {"../../../ESC": {}}}, "a name may have letters, digits, - and _ only"),
        ({"task_heads": ["../x"]}, "a name may have letters, digits, - and _ only"),
        ({"depth": 1000000}, "depth goes to 1,000,000, beyond the limit of 64"),
        ({"loops": [1, 100000]}, "loops goes to 100,000, beyond the limit of 64"),
        ({"train": {"steps": 1, "evaluate_depths": [1, 100000]}}, "train.evaluate_depths goes to 100,000"),
        ({"distill": {"probe_depths": []}}, "probe_depths"),
    ],
)
def test_pipelines(fields, said):
    assert said in outcome(lambda: PipelineRecipe.check({**PIPELINE, **fields}, "recipe"))


def test_a_deeper_pipeline_can_be_asked_for():
    train = {"steps": 1, "loop": {"loop_depth_limit": 200}}
    assert PipelineRecipe.check({**PIPELINE, "train": train, "depth": 100}, "recipe").depth == 100


@pytest.mark.parametrize("head", ["../x", "a/b", "", "a b"])
def test_names_of_heads(models, head):
    for stage in ("distill", "calibrate"):
        said = command(stage, models / "looped", "--sweep", "s", "--head", head)
        assert "a name may have letters, digits, - and _ only" in said


def test_a_source_that_is_described_elsewhere_is_called_by_its_own_name(tmp_path):
    put(tmp_path, {"own.yaml": "{file: own.jsonl, prompt: q, answer: a}", "own.jsonl": '{"q": "1?", "a": 1}\n'})
    assert Source(task=f"{tmp_path}/../{tmp_path.name}/own.yaml").name == "own"


@pytest.mark.parametrize("name", ["base", "looped"])
@pytest.mark.parametrize("value", ["kernels-community/flash-attn", "org/repo@main:f", "nope", 3, {"": "org/repo"}])
def test_kernels_of_the_hub_are_code(changed, monkeypatch, name, value):
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", lambda *_, **__: pytest.fail("fetched"))
    folder = changed(name)
    config = json.loads((folder / "config.json").read_text())
    for field in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        for part in (config, config["text_config"]) if name == "looped" else (config,):
            part[field] = value
            (folder / "config.json").write_text(json.dumps(config))
            said = outcome(lambda: load_any(str(folder)))
            assert f"{field} in the config.json of '{folder}' must be eager, sdpa, flex_attention" in said
            del part[field]
    said = outcome(lambda: RecurTraceForCausalLM.from_base(changed("base"), **LOOP, attn_implementation=value))
    assert "the attention must be eager" in said


@pytest.mark.parametrize("value", [{}, {"quant_method": "gptq", "bits": 4}, {"quant_method": "nope"}, 3, "x"], ids=str)
def test_quantizations(changed, value):
    folder = changed("base", quantization_config=value)
    said = command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out")
    if value != {"quant_method": "nope"}:  # which transformers passes over with a warning
        assert "config.json" in said
        assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("fields", [{"num_attention_heads": 0}, {"num_key_value_heads": 0}, {"head_dim": 0}], ids=str)
def test_a_llama_without_heads(tmp_path, fields):
    folder = tmp_path / "llama"
    tiny_base("llama").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("head_dim")
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    for call in (
        ("info", folder, "--loop-start", 2),
        ("generate", folder, "a"),
        ("convert", folder, "--loop-start", 2, "--out", tmp_path / "out"),
    ):
        assert "config.json" in command(*call)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["x", None, [], 0])
def test_values_that_only_the_model_reads(changed, value):
    for fields in ({"rope_parameters": {"rope_type": "default", "rope_theta": value}}, {"rms_norm_eps": value}):
        folder = changed("base", **fields)
        command("info", folder, "--loop-start", 2)
        command("convert", folder, "--loop-start", 2, "--out", folder.parent / "out", "--overwrite")


def test_weights_of_a_base(models, tmp_path):
    base = shutil.copytree(models / "base", tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    convert = ("convert", base, "--loop-start", 2, "--out", tmp_path / "out")
    for tensor, said in ((torch.zeros(3, 3), "cannot be loaded"), (weights[name].int(), "holds I32 values")):
        save_file({**weights, name: tensor}, base / "model.safetensors", metadata={"format": "pt"})
        assert said in command(*convert)
    (base / "model.safetensors").unlink()
    for text in (
        "[]",
        "{",
        '{"weight_map": 3}',
        '{"weight_map": {"a": "gone.safetensors"}}',
        '{"weight_map": {}}',
        "3",
    ):
        (base / "model.safetensors.index.json").write_text(text)
        assert command(*convert)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["[]", "{", "3", "{}", '{"model": 3}', ""])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_not_replaced_by_the_bases(changed, file, text):
    folder = changed("looped")
    (folder / file).write_text(text)
    said = command("generate", folder, "a", "--max-new-tokens", 1)
    if file == "tokenizer.json" or not text.endswith("}"):  # a config with other fields changes nothing here
        assert "tokenizer of" in said
        assert "cannot be used" in said


def test_the_bases_tokenizer_where_there_is_none(changed):
    folder = changed("looped")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    assert not command("generate", folder, "a", "--max-new-tokens", 1)


@pytest.mark.parametrize(
    "text",
    ["[]", "{", "3", '{"temperature": "x"}', '{"num_beams": -1}', '{"max_new_tokens": -3}', '{"eos_token_id": "x"}'],
)
def test_settings_of_generation(changed, text):
    folder = changed("looped")
    (folder / "generation_config.json").write_text(text)
    assert "generation_config.json" in command("generate", folder, "a", "--max-new-tokens", 1)
    base = changed("base")
    (base / "generation_config.json").write_text(text)
    said = command("convert", base, "--loop-start", 2, "--out", base.parent / "out")
    assert said or text == "{"  # which transformers passes over


@pytest.mark.parametrize("prompt", ["\udcff", "a\ud800b"])
def test_prompts_of_a_trace(models, prompt):
    assert "prompt: is not valid Unicode" in command("trace", models / "looped", prompt)
    assert "reference: is not valid Unicode" in command("trace", models / "looped", "a", "--reference", prompt)


def test_a_trace_stays_within_the_positions_of_the_base(models):
    assert "250 tokens, more than 248" in command("trace", models / "looped", "a" * 250, "--max-loops", 1)
    assert "more than 247" in command("trace", models / "looped", "a" * 250, "--answer-tokens", 9)
    said = command("trace", models / "looped", "a", "--answer-tokens", 256)
    assert "the answer may take 256 of the base's 256 positions" in said


@pytest.mark.parametrize("name", ["n_iter", "iterations", "max_dept", "treshold", "loop", "min_dephts", "heads"])
def test_arguments_that_look_like_depth(models, name):
    model = RecurTraceForCausalLM.from_pretrained(models / "looped")
    ids = torch.ones(1, 3, dtype=torch.long)
    for call in (lambda: model(ids, **{name: 4}), lambda: model.generate(ids, max_new_tokens=1, **{name: 4})):
        assert f"there is no argument '{name}'; the depth is loops" in outcome(call)
    refuse_depth_like(GenerationConfig().to_dict())  # none of transformers' own


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


def test_windows_can_be_ranked_by_distance_alone(models, tmp_path):
    probe = ("probe", models / "base", "--data", "p_hop", "--inputs", 3, "--max-length", 200)
    assert not command(*probe, "--compare", 0, "--windows", "1,2", "--out", tmp_path / "probe.json")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_own_data_has_no_nan(tmp_path, value):
    put(
        tmp_path, {"own.yaml": "{test: own.jsonl, prompt: q, answer: a}", "own.jsonl": f'{{"q": "1?", "a": {value}}}\n'}
    )
    assert "line 1 of" in outcome(lambda: load(str(tmp_path / "own.yaml"), "test"))


def test_a_dataset_that_cannot_be_reached_is_said_so_at_once(monkeypatch):
    def refused(*_, **__):
        raise OSError("refused")

    monkeypatch.setattr("recurtrace.hub.getproxies", dict)
    monkeypatch.setattr("socket.create_connection", refused)
    began = time.monotonic()
    assert "Go online, or pass --data-dir" in command("data", "show", "gsm8k")
    assert time.monotonic() - began < 10


def test_the_name_of_a_base_is_unicode(changed):
    assert "base_model_name_or_path must be valid Unicode" in command(
        "info", changed("looped", base_model_name_or_path="\ud800")
    )


def test_a_head_without_weights(changed):
    folder = changed("looped")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "loop_halting_heads": {"one": {}}}))
    assert "lacks loop.heads.one.weight, which config.json describes" in outcome(lambda: read_heads(folder))


RECIPE = {"model": "base", "data": "data", "out": "out", "steps": 1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"betas": [2, 3]}, "betas"),
        ({"evaluate_depths": []}, "evaluate_depths"),
        ({"evaluate_depths": [1, 0]}, "evaluate_depths"),
    ],
)
def test_recipes_of_training(fields, said):
    assert said in outcome(lambda: TrainRecipe.check({**RECIPE, **fields}, "recipe"))


def test_loops_of_training_have_a_limit(models):
    config = read_config(str(models / "base"))
    said = outcome(lambda: RecurTraceConfig(text_config=config, **LOOP, loop_train_max=100000))
    assert "loop_train_max is 100,000, beyond the limit of 64; lower it, or set loop_depth_limit" in said
    assert RecurTraceConfig(text_config=config, **LOOP, loop_train_max=100, loop_depth_limit=100).depth_limit == 100


MIXTURE = {"recipe": {"sources": [{"task": "p_hop"}]}, "complete": True, "audit": {"sha256": ""}}


@pytest.mark.parametrize(
    "manifest",
    [
        {"sources": {"p_hop": 5}},
        {"sources": {"p_hop": {"files": [], "train": 1}}},
        {"sources": {"p_hop": {"files": {"heldout/p_hop.parquet": 3}, "train": 1}}},
        {"sources": []},
        {"sources": {}, "audit": []},
        {"sources": {}, "recipe": 3},
    ],
    ids=str,
)
def test_manifests_of_mixtures(tmp_path, manifest):
    written(tmp_path, "manifest.json", {**MIXTURE, **manifest})
    for call in (lambda: read_examples(tmp_path, "heldout"), lambda: mixture_sizes(tmp_path)):
        assert "is not the manifest of a mixture" in outcome(call)


def test_a_table_of_a_mixture_that_was_changed(tmp_path):
    facts = {"train": 1, "files": {"heldout/p_hop.parquet": {"bytes": 4}}}
    written(tmp_path, "manifest.json", {**MIXTURE, "sources": {"p_hop": facts}})
    put(tmp_path, {"heldout/p_hop.parquet": "PAR1"})
    assert "p_hop.parquet is damaged" in outcome(lambda: read_examples(tmp_path, "heldout"))


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


def test_a_model_that_was_being_written(models, tmp_path):
    """config.json moves last: readers refuse such a folder, and the next that writes there finishes it."""
    folder = shutil.copytree(models / "looped", tmp_path / "model")
    (folder / WHOLE).mkdir()
    (folder / "config.json").rename(folder / WHOLE / "config.json")
    assert "was being written when its process was killed" in command("generate", folder, "a")
    assert "holds no model" in command("info", folder)
    assert "already holds a model" in command("convert", models / "base", "--out", folder, "--loop-start", 1)
    assert command("generate", folder, "a", "--max-new-tokens", 1) == ""
