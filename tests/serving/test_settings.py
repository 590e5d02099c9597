"""What a looped model cannot have on vLLM is switched off or refused before anything is loaded."""

import json

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-serve")

from safetensors.torch import load_file, save_file
from vllm.engine.arg_utils import EngineArgs

from tests.serving.conftest import complete, engine, prompts


def settings(folder, loops=None, overrides=None, **options):
    given = {**({} if loops is None else {"loops": loops}), **(overrides or {})}
    return EngineArgs(model=str(folder), hf_overrides=given, dtype="float32", **options).create_engine_config()


def test_adaptive_depth_reads_prompts_whole(served):
    made = settings(served().folder, "adaptive", max_model_len=256, max_num_batched_tokens=64, max_num_seqs=4)
    assert made.cache_config.enable_prefix_caching is False
    assert made.scheduler_config.enable_chunked_prefill is False
    assert made.scheduler_config.max_num_batched_tokens == 256
    assert made.model_config.enforce_eager


def test_fixed_depth_keeps_them(served):
    made = settings(served().folder, 2)
    assert made.cache_config.enable_prefix_caching
    assert made.scheduler_config.enable_chunked_prefill
    assert made.model_config.enforce_eager  # on the CPU


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipeline_parallel_size": 2}, "cannot be split into pipeline stages"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative decoding"),
        ({"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "brings its own scheduler class"),
        ({"loops": 4, "overrides": {"max_loops": 2}}, r"loops \(4\) is above max_loops \(2\)"),
        ({"overrides": {"loop_halting_treshold": 0.4}}, "did you mean 'loop_halting_threshold'"),
        ({"overrides": {"head": "mathqa"}}, "this model has no head 'mathqa'"),
        ({"loops": 0}, "loops must be at least 1"),
        ({"kv_offloading_size": 1.0}, "there can be no other"),
    ],
)
def test_refused_with_a_sentence(served, options, said):
    with pytest.raises(ValueError, match=said):
        settings(served().folder, **options)


def test_a_window_shorter_than_the_context(served, tmp_path):
    """vLLM frees what lies before a sliding window, and with it the block by which a request is known."""
    mistral = served("mistral").folder
    assert settings(mistral, max_model_len=256)
    for file in mistral.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((mistral / "config.json").read_text())
    config["text_config"]["sliding_window"] = 64
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="a window of 64 drops them; pass --max-model-len 64"):
        settings(tmp_path, max_model_len=256)
    assert settings(tmp_path, max_model_len=64)


def test_a_budget_below_the_longest_prompt_is_raised(served):
    made = settings(served().folder, "adaptive", max_model_len=256, max_num_scheduled_tokens=32)
    assert made.scheduler_config.max_num_scheduled_tokens is None


def test_a_checkpoint_that_is_not_whole(served, tmp_path):
    whole = served().folder
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(whole / "model.safetensors")
    del tensors["loop.halting.bias"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks loop.halting.bias"):
        settings(tmp_path)


def test_an_adapter_on_another_base(served, tmp_path):
    adapter = served(merged=False)
    other = {name: tensor + 0.01 for name, tensor in load_file(adapter.base / "model.safetensors").items()}
    for file in adapter.base.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(other, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="was made on a base with fingerprint"):
        settings(adapter.folder, overrides={"base_model_name_or_path": str(tmp_path)})


def test_a_traced_graph_gives_the_same_tokens(served, monkeypatch):
    """torch.compile's graph of a forward pass, run without inductor, whose kernels are wrong on the CPU."""
    monkeypatch.setenv("VLLM_CPU_CI_ENV", "1")
    looped, asked = served(), prompts(24)
    with engine(looped.folder, 3) as llm:
        assert not llm.llm_engine.vllm_config.model_config.enforce_eager
        for loops in (None, 2):  # the graph, and what leaves it
            tokens, depths = complete(llm, asked, loops)
            looped.compare(asked, loops or 3, tokens, depths)
