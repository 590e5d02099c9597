"""The commands as a user types them, on a small model in a folder."""

import json
import os
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from recurtrace import RecurTraceForCausalLM
from recurtrace.cli import app
from recurtrace.cli.fields import CONFIG_SOURCE, documented_fields
from recurtrace.errors import RecurTraceError
from tests.conftest import VOCABULARY, byte_tokenizer, stir, tiny_base

runner = CliRunner(env={"COLUMNS": "200"})


def run(*arguments, stdout=False):
    """Output of a command; errors meant for the user come as exceptions here and as sentences in `main`."""
    result = runner.invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout if stdout else result.output


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "base"
    tiny_base().save_pretrained(folder)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def looped_folder(base, tmp_path_factory):
    """A model with a trained head."""
    folder = tmp_path_factory.mktemp("cli") / "looped"
    run("convert", base, "--out", folder, "--loop-start", 2)
    stir(RecurTraceForCausalLM.from_pretrained(folder)).save_pretrained(folder)
    return folder


def test_convert_writes_an_adapter_with_its_tokenizer(base, tmp_path):
    options = ("--loop-memory-window", 2, "--no-loop-qk-norm", "--loop-gate-init-bias", -2.5)
    out = run("convert", base, "--out", tmp_path / "out", "--loop-start", 1, *options)
    assert "layers 1–3 of 6" in out
    model = RecurTraceForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.loop_memory_window == 2
    assert not model.config.loop_qk_norm
    assert (model.loop.memory[0].gate.bias == -2.5).all()
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_convert_is_deterministic(base, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run("convert", base, "--out", tmp_path / name, "--loop-start", 1, "--seed", seed)
    files = [(tmp_path / name / "recurtrace.safetensors").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


def test_convert_does_not_replace_what_is_there(base, tmp_path):
    out = tmp_path / "out"
    convert = ("convert", base, "--out", out, "--loop-start", 1)
    run(*convert)
    stir(RecurTraceForCausalLM.from_pretrained(out)).save_pretrained(out)
    (out / "calibration").mkdir()
    (out / "calibration" / "head.json").write_text("{}")
    trained = (out / "recurtrace.safetensors").read_bytes()
    with pytest.raises(RecurTraceError, match="already holds a model; choose another folder, or pass --overwrite"):
        run(*convert)
    assert (out / "recurtrace.safetensors").read_bytes() == trained
    (out / "notes.txt").write_text("mine")
    run(*convert, "--overwrite")
    assert (out / "recurtrace.safetensors").read_bytes() != trained
    assert not (out / "calibration").exists()
    assert (out / "notes.txt").read_text() == "mine"

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("mine")
    with pytest.raises(RecurTraceError, match="is not empty and holds no model"):
        run("convert", base, "--out", mine, "--loop-start", 1)
    assert [file.name for file in mine.iterdir()] == ["README.md"]
    for options in ((), ("--merge-base",)):
        with pytest.raises(RecurTraceError, match="full checkpoint|another model"):  # a base, whatever was passed
            run("convert", base, "--out", base, "--loop-start", 1, "--overwrite", *options)


def test_results_do_not_replace_other_files(looped_folder, tmp_path):
    (tmp_path / "thesis.json").write_text('{"chapters": 7}')
    for command in (
        ("cost", looped_folder),
        ("trace", looped_folder, "a"),
        ("compare", looped_folder, "--heldout", tmp_path, "--test", tmp_path),
        ("probe", "embedded/base"),
    ):
        with pytest.raises(RecurTraceError, match="It is not overwritten; choose another --out"):
            run(*command, "--out", tmp_path / "thesis.json")
        with pytest.raises(RecurTraceError, match="is a folder; name a file"):
            run(*command, "--out", tmp_path)


def test_convert_merged(base, tmp_path):
    run("convert", base, "--out", tmp_path / "out", "--loop-start", 1, "--merge-base", "--dtype", "bfloat16")
    model = RecurTraceForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_generate_shows_the_depth(looped_folder):
    for options, depth in (
        (("--loops", 4), "depth 4 (fixed)"),
        (("--loops", "adaptive"), "chosen by the halting head"),
    ):
        out = run("generate", looped_folder, "w5 w6 w7", "--max-new-tokens", 5, *options)
        assert depth in out
        assert "· 5 tokens ·" in out
    assert "chosen by the halting head" in run("generate", looped_folder, "w5", "--max-new-tokens", 2)


def test_generate_writes_what_the_model_says(looped_folder):
    model = RecurTraceForCausalLM.from_pretrained(looped_folder)
    ids = model.generate(torch.tensor([[5, 6, 7]]), loops=3, max_new_tokens=5)[0, 3:]
    expected = " ".join(f"w{i}" if i > 1 else "" for i in ids.tolist())
    written = run("generate", looped_folder, "w5 w6 w7", "--max-new-tokens", 5, "--loops", 3, stdout=True)
    assert written.split() == expected.split()


def test_generate_samples_by_seed(looped_folder):
    def text(seed):
        options = ("--temperature", 1, "--seed", seed, "--loops", 2)
        return run("generate", looped_folder, "w5", *options, stdout=True)

    assert text(1) == text(1) != text(2)


def test_info(looped_folder, base):
    out = run("info", looped_folder)
    assert "layers 2–4 of 6" in out
    assert "K/V bytes per token" in out
    known = json.loads(run("info", looped_folder, "--json", stdout=True))
    model = RecurTraceForCausalLM.from_pretrained(looped_folder)
    assert known["added_parameters"] == sum(parameter.numel() for parameter in model.loop.parameters())
    # The cache of the model itself: 8 numbers × 2 heads × keys and values × 4 bytes × layer passes.
    cache = model(torch.tensor([[5, 6]]), loops=4).past_key_values
    held = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values)) // 2
    assert known["depths"][2]["kv_bytes_per_token"] == held
    assert "layers 2–4 of 6" in run("info", base, "--loop-start", 2)


def test_help_is_made_from_the_config():
    out = run("convert", "--help")
    for name in ("loop_start", "loop_memory_window", "loop_gates_open"):
        text = documented_fields(CONFIG_SOURCE, "RecurTraceConfig")[name][2]
        assert "--" + name.replace("_", "-") in out
        assert text.split(":")[0][:20] in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "BASE", "--out", "OUT"], "no block is known for a 6-layer qwen3"),
        (["convert", "BASE", "--out", "OUT", "--loop-start", "5"], "block 5–7 is outside the 6 layers"),
        (["convert", "BASE", "--out", "BASE", "--loop-start", "2"], "holds a full checkpoint"),
        (["convert", "/no/such/folder", "--out", "OUT"], "no model found at '/no/such/folder'"),
        (["generate", "LOOPED", ""], "the prompt is empty"),
        (["generate", "LOOPED", "w5", "--loops", "0"], "depths are whole numbers"),
        (["generate", "LOOPED", "w5", "--loops", "many"], "adaptive, such as 1,2,4 or 1-16; got 'many'"),
        (["generate", "LOOPED", "w5", "--loops", "2", "--threshold", "0.3"], 'belong to loops="adaptive"'),
        (["generate", "LOOPED", "w5", "--chat"], "this tokenizer has no chat template"),
        (["generate", "BASE", "w5"], "is a qwen3 model without loops"),
        (["generate", "LOOPED", "w5", "--device", "abacus"], "the device 'abacus' cannot be used here"),
        (["convert", "BASE", "--out", "/proc/out", "--loop-start", "2"], "/proc/out"),
        (["info", "LOOPED", "--loop-start", "3"], "is looped already, from layer 2"),
        (["info", "/no/such/folder"], "no model found at '/no/such/folder'"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(arguments, message, base, looped_folder, tmp_path, capsys):
    from recurtrace.cli import main

    places = {"BASE": str(base), "LOOPED": str(looped_folder), "OUT": str(tmp_path / "out")}
    sys.argv, before = ["recurtrace", *[places.get(a, a) for a in arguments]], sys.argv
    try:
        with pytest.raises(SystemExit) as stopped:
            main()
    finally:
        sys.argv = before
    *progress, error = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 1
    assert error.startswith("error: ")
    assert message in error
    assert all("Loading weights" in line for line in progress if line)
    assert not (tmp_path / "out").exists()


def test_as_a_module():
    out = subprocess.run(
        [sys.executable, "-m", "recurtrace", "--version"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert out.stdout.strip() == "0.1.0"


def test_data_list_and_show(tmp_path):
    out = run("data", "list")
    for title in ("train-covered (14)", "classic (8)", "diagnostic (8)"):
        assert title in out
    shown = run("data", "show", "arithmetic", "-n", 2)
    assert shown.count("Steps:") == 2
    file = tmp_path / "openai__gsm8k" / "main" / "test.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"question": "2+3?", "answer": "#### 5"}) + "\n")
    assert "Question: 2+3?\nAnswer: 5" in run("data", "show", "gsm8k", "--data-dir", tmp_path)


def test_probe_then_convert(tmp_path):
    base = tmp_path / "base"
    tiny_base(vocab_size=300, num_hidden_layers=8).save_pretrained(base)
    byte_tokenizer().save_pretrained(base)
    options = ("--data", "p_hop,arithmetic", "--inputs", 12, "--compare", 4, "--out", tmp_path / "probe.json")
    out = run("probe", base, *options)
    assert "NLL of two loops" in out
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "probe.json").read_text())
    assert found["inputs"] == 12
    run("convert", base, "--probe", tmp_path / "probe.json", "--out", tmp_path / "looped")
    assert RecurTraceForCausalLM.from_pretrained(tmp_path / "looped").config.loop_start == found["loop_start"]

    with pytest.raises(ValueError, match="leave out --loop-start"):
        run("convert", base, "--probe", tmp_path / "probe.json", "--out", tmp_path / "no", "--loop-start", 2)
    tiny_base(vocab_size=300, num_hidden_layers=8, seed=9).save_pretrained(base)
    with pytest.raises(ValueError, match="was measured on another model"):
        run("convert", base, "--probe", tmp_path / "probe.json", "--out", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_data_build(tmp_path):
    (tmp_path / "recipe.yaml").write_text("sources: [{task: p_hop, count: 30}]\naudit: [p_hop]\n")
    out = run("data", "build", "--recipe", tmp_path / "recipe.yaml", "--out", tmp_path / "mix")
    assert "Audited against 4,000 test questions of 1 tasks." in out
    assert "p_hop" in out
