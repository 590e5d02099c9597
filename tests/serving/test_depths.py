"""What a server offers and a request may ask for; `recurtrace serve` without vLLM."""

import json

import pytest
import torch
from typer.testing import CliRunner

from recurtrace import RecurTraceForCausalLM
from recurtrace.errors import RecurTraceError
from recurtrace.serving.depths import ServedDepths
from recurtrace.serving.launch import command_line
from tests.conftest import LOOP, tiny_base, tiny_looped


def config(**changes):
    made = tiny_looped().config
    for name, value in {"loop_halting_max_depth": 8, **changes}.items():
        setattr(made, name, value)
    return made


def test_the_models_own_policy_is_the_default():
    assert ServedDepths.of(config()) == ServedDepths(None, 8, 2, None, adaptive=True)
    assert ServedDepths.of(config(loop_halting_trained=False)) == ServedDepths(2, 2)


def test_overrides():
    assert ServedDepths.of(config(loops=4)) == ServedDepths(4, 4)
    assert ServedDepths.of(config(loops=4, max_loops=6)) == ServedDepths(4, 6)
    assert ServedDepths.of(config(max_loops=3)).maximum == 3
    assert ServedDepths.of(config(max_loops=1)).minimum == 1  # the floor gives way to a smaller budget


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loops": 0}, "at least 1"),
        ({"loops": "deep"}, 'a whole number or "adaptive"'),
        ({"loops": [1, 2]}, "2 depths|one default depth"),
        ({"max_loops": 0}, "max_loops must be"),
        ({"loops": 4, "max_loops": 3}, "above max_loops"),
        ({"loops": 4, "head": "x"}, "head"),
        ({"loop_num_loop": 3}, "did you mean 'loop_num_loops'"),
        ({"loop_halting_threshold": 2.0}, "probability"),
    ],
)
def test_impossible_servers(changes, said):
    with pytest.raises(RecurTraceError, match=said):
        ServedDepths.of(config(**changes))


def test_what_a_request_may_ask_for():
    adaptive, fixed = ServedDepths(None, 8, 2, adaptive=True), ServedDepths(2, 4)
    assert [adaptive.asked(loops) for loops in (None, "adaptive", 1, 8)] == [None, None, 1, 8]
    assert [fixed.asked(loops) for loops in (None, 1, 4)] == [2, 1, 4]
    for loops in (0, 9, True, 2.0, "4"):
        with pytest.raises(RecurTraceError, match="this server's maximum of 8"):
            adaptive.asked(loops)
    with pytest.raises(RecurTraceError, match="runs at a fixed depth"):
        fixed.asked("adaptive")


def test_command_line(tmp_path):
    tiny_looped(loop_halting_max_depth=8).save_pretrained(tmp_path, merge_base=True)
    arguments, said = command_line(str(tmp_path), {"loops": 4, "head": None}, ["--port", "8001"])
    assert arguments == [str(tmp_path), "--hf-overrides", json.dumps({"loops": 4}), "--port", "8001"]
    assert "depth 4; keys and values for 4 loops take 2.50× the base's memory" in said
    given = ["--hf-overrides", '{"loop_halting_threshold": 0.4}', "--dtype", "float32"]
    arguments, _ = command_line(str(tmp_path), {"loops": "adaptive"}, given)
    assert json.loads(arguments[2]) == {"loop_halting_threshold": 0.4, "loops": "adaptive"}
    assert arguments[3:] == ["--dtype", "float32"]
    for spelt in (
        ["--hf-overrides", '{"loops": 5}'],
        ['--hf-overrides={"loops": 5}'],
        ["--hf_overrides", '{"loops": 5}'],
    ):
        arguments, said = command_line(str(tmp_path), {"loops": 4}, spelt)  # ours, whatever vLLM would take last
        assert (json.loads(arguments[2]), len(arguments)) == ({"loops": 4}, 3)
        assert command_line(str(tmp_path), {}, spelt)[1].startswith(f"Serving {tmp_path} at depth 5")
    for wrong in ("loops", "4", "[1]"):
        with pytest.raises(RecurTraceError, match="takes a JSON object"):
            command_line(str(tmp_path), {}, ["--hf-overrides", wrong])
    with pytest.raises(RecurTraceError, match="as one JSON object"):
        command_line(str(tmp_path), {}, ["--hf-overrides.loops", "4"])
    with pytest.raises(RecurTraceError, match="the model comes first"):
        command_line("--port", {}, ["8001", str(tmp_path)])


def test_an_adapters_tokenizer_is_its_bases(tmp_path):
    base = tmp_path / "base"
    tiny_base().save_pretrained(base)
    RecurTraceForCausalLM.from_base(str(base), **LOOP).save_pretrained(tmp_path / "looped")
    arguments, _ = command_line(str(tmp_path / "looped"), {}, [])
    assert arguments[1:] == ["--tokenizer", str(base)]
    arguments, _ = command_line(str(tmp_path / "looped"), {}, ["--tokenizer=there"])
    assert arguments[1:] == ["--tokenizer", "there"]


def test_without_vllm_it_says_what_to_install(tmp_path, monkeypatch):
    from recurtrace.cli import app
    from recurtrace.serving import launch

    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    torch.manual_seed(0)
    tiny_looped().save_pretrained(tmp_path, merge_base=True)
    result = CliRunner().invoke(app, ["serve", str(tmp_path)])
    assert result.exit_code != 0
    assert "pip install 'recurtrace[serve]'" in str(result.exception)
