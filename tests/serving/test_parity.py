"""vLLM's greedy tokens are those of `generate`, at every depth, in every way vLLM may run a request."""

import os

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-serve")

from vllm.exceptions import VLLMValidationError

from tests.serving.conftest import NEW_TOKENS, complete, engine, metric, prompts

DEPTHS = (1, 2, 4, "adaptive")


def computed(asked, depths) -> int:
    """Token-loops of requests at these depths: the last new token is never read."""
    return sum((len(prompt) + NEW_TOKENS - 1) * depth for prompt, depth in zip(asked, depths, strict=True))


@pytest.fixture(scope="module")
def hundred():
    return prompts(100)


def test_every_depth_and_adaptive_in_one_batch(served, hundred):
    """Four hundred requests of mixed lengths and depths come and go, sixteen at a time."""
    looped = served()
    asked = [prompt for prompt in hundred for _ in DEPTHS]
    with engine(looped.folder, "adaptive") as llm:
        tokens, depths = complete(llm, asked, [depth for _ in hundred for depth in DEPTHS])
        assert metric(llm, "recurtrace_token_loops") == computed(asked, depths)
        assert metric(llm, "recurtrace_token_loops_saved") == computed(asked, [6] * len(asked)) - computed(
            asked, depths
        )
        histogram = metric(llm, "recurtrace_request_loops")
        assert (histogram.count, histogram.sum) == (len(depths), sum(depths))
        from vllm import SamplingParams

        ended = llm.generate(  # an answer that ends at a stop string ends in the front end
            [{"prompt_token_ids": hundred[0]}],
            SamplingParams(
                temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, stop=list("abcdefghijklmnopqrstuvwxyz ")
            ),
            use_tqdm=False,
        )[0]
        assert ended.kv_transfer_params == {"loops": depths[3]}
        first, at = complete(llm, hundred[:8], "adaptive", new_tokens=1)  # ends with the pass that decides
        assert at == depths[3 : 8 * 4 : 4]
        assert first == [tokens[i][:1] for i in range(3, 8 * 4, 4)]
        with pytest.raises(VLLMValidationError, match="from 1 to this server's maximum of 6"):
            complete(llm, hundred[:1], 7)
    for i, loops in enumerate(DEPTHS):
        looped.compare(hundred, loops, tokens[i::4], depths[i::4])
    assert len(set(depths[3::4])) >= 4  # the head has something to say


def test_fixed_depth_with_prefix_caching_and_chunked_prefill(served, hundred):
    """Prompts that share their beginning, asked again at other depths: a prefix is one of its depth."""
    looped = served()
    beginning = prompts(1, seed=7, longest=200)[0][:64]
    asked = [(beginning + prompt)[:100] for prompt in hundred]
    options = {"max_num_batched_tokens": 48, "enable_prefix_caching": True, "enable_chunked_prefill": True}
    with engine(looped.folder, 4, **options) as llm:
        for loops in (None, 1, 2, 4):
            tokens, depths = complete(llm, asked, loops)
            looped.compare(asked, loops or 4, tokens, depths)
        assert metric(llm, "prefix_cache_hits") > 64 * 100
        with pytest.raises(VLLMValidationError, match="this server runs at a fixed depth; ask for 1 to 4 loops"):
            complete(llm, hundred[:1], "adaptive")


def test_preempted_requests_keep_their_depth(served, hundred):
    """A cache too small for the batch: requests are thrown out, and come back as prompt and answer in one."""
    looped = served()
    asked = [prompt[:40] for prompt in hundred[:32]]
    with engine(looped.folder, "adaptive", num_gpu_blocks_override=12) as llm:
        tokens, depths = complete(llm, asked, new_tokens=60)
        assert metric(llm, "num_preemptions") > 0
    looped.compare(asked, "adaptive", tokens, depths, new_tokens=60)


def test_tensor_parallel(served, hundred, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1" if (os.cpu_count() or 1) > 1 else "nobind")
    looped = served()
    with engine(looped.folder, "adaptive", tensor_parallel_size=2) as llm:
        tokens, depths = complete(llm, hundred)
        looped.compare(hundred, "adaptive", tokens, depths)
        assert metric(llm, "recurtrace_token_loops") == computed(hundred, depths)  # once, not for each rank
        tokens, depths = complete(llm, hundred, 4)
        looped.compare(hundred, 4, tokens, depths)


@pytest.mark.parametrize("family", ["qwen2", "llama", "mistral"])
def test_other_families(served, hundred, family):
    looped = served(family)
    with engine(looped.folder, "adaptive") as llm:
        for loops in ("adaptive", 3):
            tokens, depths = complete(llm, hundred[:24], loops)
            looped.compare(hundred[:24], loops, tokens, depths)


def test_an_adapter_beside_its_base(served, hundred):
    looped = served(merged=False)
    assert sorted(file.name for file in looped.folder.glob("*.safetensors")) == ["recurtrace.safetensors"]
    with engine(looped.folder, 3) as llm:
        tokens, depths = complete(llm, hundred[:24])
        looped.compare(hundred[:24], 3, tokens, depths)


def test_one_loop_is_the_base(served, hundred):
    """vLLM's own model of the base, given the same prompts."""
    looped = served()
    with engine(looped.folder, 1) as llm:
        tokens, _ = complete(llm, hundred)
    with engine(looped.base, enforce_eager=True) as llm:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in hundred], params, use_tqdm=False)
    base = [list(out.outputs[0].token_ids) for out in outputs]
    looped.same_up_to_ties(hundred, base, tokens, [1] * len(hundred))
