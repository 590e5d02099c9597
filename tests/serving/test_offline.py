"""vLLM as an engine of `evaluate` and `sweep`: the answers, depths and losses of the default one."""

import shutil

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-serve")

from recurtrace import RecurTraceError, stages
from recurtrace.data.selection import gather, sample
from recurtrace.halting.rule import StoppingRule
from recurtrace.halting.sweep_files import read_sweep
from recurtrace.model.heads import change_head, read_head
from tests.conftest import byte_tokenizer

COMMON = {"data": "arithmetic", "count": 12, "dtype": "float32", "max_length": 256}


@pytest.fixture(scope="module")
def both(served, tmp_path_factory):
    """An evaluation on each engine, with a head that stops these items at different depths."""
    place = tmp_path_factory.mktemp("engines")
    folder = shutil.copytree(served().folder, place / "model")
    tokenizer, examples = byte_tokenizer(), sample(gather("arithmetic", split="test"), COMMON["count"], None, 0)
    prompts = [torch.tensor([tokenizer(example.prompt)["input_ids"]]) for example in examples]
    probs = [served().model(ids, loops="adaptive", threshold=0.0).continue_probs[0, 0].detach() for ids in prompts]
    rule = StoppingRule(float(torch.stack(probs).quantile(0.5)), 1, 6)  # half of them stop at once
    change_head(folder, None, read_head(folder, None).settings.with_rule(rule))
    asked = {"model": str(folder), "loops": "1,3,adaptive", **COMMON}
    found = {name: stages.evaluate(**asked, engine=name, out=place / name) for name in ("torch", "vllm")}
    return place, folder, asked, found


def test_records_are_those_of_the_default_engine(both):
    _, _, _, found = both
    one, other = found["torch"].records, found["vllm"].records
    assert [record.id for record in one] == [record.id for record in other]
    differ = 0
    for a, b in zip(one, other, strict=True):
        assert [result.depth for result in a.results] == [result.depth for result in b.results]
        assert [result.nll for result in a.results] == pytest.approx([result.nll for result in b.results], rel=1e-4)
        differ += sum(x.answer != y.answer for x, y in zip(a.results, b.results, strict=True))
        assert b.continue_probs == []
    assert differ <= len(one) * 3 // 20  # ties
    assert len({record.at("adaptive").depth for record in other}) > 1


def test_as_many_loops_as_steps(served, tmp_path):
    asked = {"model": str(served().folder), **COMMON, "count": 6, "loops": "k"}
    one, other = (stages.evaluate(**asked, engine=name, out=tmp_path / name).records for name in ("torch", "vllm"))
    for a, b in zip(one, other, strict=True):
        assert b.at("k").depth == a.at("k").depth == int(a.bucket.removeprefix("k="))
        assert b.at("k").nll == pytest.approx(a.at("k").nll, rel=1e-4)


def test_neither_engine_resumes_what_the_other_began(both):
    place, _, asked, _ = both
    with pytest.raises(RecurTraceError, match="different versions"):
        stages.evaluate(**asked, engine="torch", out=place / "vllm")


def test_a_sweep_without_states(served, tmp_path):
    asked = {"model": str(served().folder), "split": "test", "depths": [1, 2, 4], "states": False, **COMMON}
    for name in ("torch", "vllm"):
        stages.sweep(**asked, engine=name, out=tmp_path / name)
    one, other = read_sweep(tmp_path / "torch"), read_sweep(tmp_path / "vllm")
    assert other.manifest.loop_fingerprint == one.manifest.loop_fingerprint
    assert other.manifest.signals == ["top_prob", "margin"]
    assert set(one.arrays) - set(other.arrays) == {"entropy", "kl"}
    for name, array in other.arrays.items():
        if name not in ("correct", "token_accuracy"):
            assert array == pytest.approx(one[name], abs=2e-4), name
    with pytest.raises(RecurTraceError, match="did not measure entropy"):
        other["entropy"]
    assert (one["correct"] != other["correct"]).mean() < 0.05


def test_bad_requests_get_a_sentence(served, tmp_path, monkeypatch):
    asked = {"model": str(served().folder), "out": tmp_path / "x", **COMMON}
    with pytest.raises(RecurTraceError, match="pass --no-states"):
        stages.sweep(**asked, engine="vllm")
    with pytest.raises(RecurTraceError, match="up to the head's budget of 6, and 8 loops are above it"):
        stages.evaluate(**asked, engine="vllm", loops="8,adaptive")
    with pytest.raises(RecurTraceError, match="leave out --device"):
        stages.evaluate(**asked, engine="vllm", loops="1", device="cpu")
    with pytest.raises(RecurTraceError, match="needs one"):
        stages.evaluate(**{**asked, "model": "some/hub-id"}, engine="vllm", loops="1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecurTraceError, match="without accelerate"):
        stages.evaluate(**asked, engine="vllm", loops="1")
