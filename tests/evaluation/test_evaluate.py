"""Records of every item: the model's own numbers, whole after a kill, the same from several processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recurtrace.data.collate import Encoder
from recurtrace.data.synthetic import Sizes, item
from recurtrace.errors import RecurTraceError
from recurtrace.evaluation import evaluate as module
from recurtrace.evaluation.evaluate import evaluate
from recurtrace.files import locked
from recurtrace.records import read_evaluation
from tests.conftest import byte_tokenizer, tiny_looped

SIZES = Sizes(symbols=24, test_symbols=8, mapping=3, registers=2, largest_start=9)
BOUNDS = {"loop_halting_min_depth": 1, "loop_halting_max_depth": 7}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_looped(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **BOUNDS)


@pytest.fixture(scope="module")
def examples():
    return [item(task, "test", i, 0, k, SIZES) for i in range(4) for k in (2, 4) for task in ("p_hop", "arithmetic")]


@pytest.fixture(scope="module")
def found(model, tokenizer, examples, tmp_path_factory):
    probs = []
    for example in examples:  # a threshold that gives different depths
        ids = torch.tensor([tokenizer(example.prompt)["input_ids"]])
        with torch.no_grad():
            out = model(ids, loops="adaptive", threshold=0.0)
        probs.append(out.continue_probs[0])
    model.config.loop_halting_threshold = float(torch.stack(probs)[:, :4].flatten().quantile(0.3))
    out = tmp_path_factory.mktemp("evaluation") / "e"
    evaluate(model, tokenizer, examples, out, [1, 3, "adaptive", "k"], seeds=list(range(len(examples))), batch_size=5)
    return read_evaluation(out)


def test_numbers_are_the_models(found, model, tokenizer, examples):
    by_id = {record.id: record for record in found.records}
    assert len(by_id) == len(examples)
    depths = set()
    for number, (example, encoded) in enumerate(zip(examples, Encoder(tokenizer, 512)(examples), strict=True)):
        record = by_id[example.id]
        ids, labels = torch.tensor([encoded.input_ids[:-1]]), torch.tensor([encoded.labels[:-1]])
        with torch.no_grad():
            chosen = model(ids, labels=labels, loops="adaptive")
            depths.add(chosen.depths.item())
            asked = {"1": 1, "3": 3, "adaptive": chosen.depths.item(), "k": int(example.bucket[2:])}
            for name, depth in asked.items():
                result = record.at(name)
                assert result.depth == depth
                assert result.nll == pytest.approx(model(ids, labels=labels, loops=depth).loss.item(), rel=1e-4)
        probs = chosen.continue_probs[0].tolist()
        assert record.continue_probs == pytest.approx(probs, rel=1e-3)
        assert record.seed == number
        assert (record.reference, record.prompt_hash) == (example.answer, example.prompt_hash)
    assert len(depths) > 1, "the test needs different depths"


def test_a_killed_evaluation_goes_on(found, model, tokenizer, examples, tmp_path, monkeypatch):
    real, calls = module.measure, []

    def dies(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, "measure", dies)
    arguments = (model, tokenizer, examples, tmp_path / "e", [1, 3, "adaptive", "k"])
    options = {"seeds": list(range(len(examples))), "batch_size": 5}
    with pytest.raises(KeyboardInterrupt):
        evaluate(*arguments, **options)
    with pytest.raises(RecurTraceError, match="10 of 16 items"):
        read_evaluation(tmp_path / "e")
    (file,) = (tmp_path / "e").glob("records*")
    file.write_text(file.read_text()[:-30])  # a line half-written
    monkeypatch.setattr(module, "measure", real)
    evaluate(*arguments, **options)
    again = read_evaluation(tmp_path / "e")
    assert [record.id for record in again.records] == [record.id for record in found.records]
    for one, other in zip(again.records, found.records, strict=True):
        assert [r.depth for r in one.results] == [r.depth for r in other.results]
        assert [r.nll for r in one.results] == pytest.approx([r.nll for r in other.results], rel=1e-5)


def test_a_folder_wedged_by_two_processes_is_repaired(model, tokenizer, examples, tmp_path):
    """As an older version left it: records twice, one inside another, the last cut off."""
    evaluate(model, tokenizer, examples, tmp_path / "e", [1], batch_size=5)
    (file,) = (tmp_path / "e").glob("records*")
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    mixed = lines[9][:40] + lines[9] + lines[9][40:]
    file.write_text("".join([*lines[:3], *lines[:9], mixed, *lines[10:], lines[0][:30]]))
    with pytest.raises(RecurTraceError, match="is not a record; run `recurtrace evaluate` again"):
        read_evaluation(tmp_path / "e")
    file.write_text("".join([*lines, *lines[:9]]))
    with pytest.raises(RecurTraceError, match="has 25 of 16 items; run `recurtrace evaluate` again"):
        read_evaluation(tmp_path / "e")
    file.write_text("".join([*lines[:3], *lines[:9], mixed, *lines[10:], lines[0][:30]]))
    evaluate(model, tokenizer, examples, tmp_path / "e", [1], batch_size=5)
    assert sorted(file.read_text().splitlines()) == sorted(whole.splitlines())


def test_one_evaluation_at_a_time(model, tokenizer, examples, tmp_path):
    with locked(tmp_path / "e"), pytest.raises(RecurTraceError, match="is being written by another process"):
        evaluate(model, tokenizer, examples[:2], tmp_path / "e", [1])


def test_no_logit_is_made_that_is_not_read(found, model, tokenizer, examples, tmp_path):
    """At chosen depths alone, the LM head sees every answer position once: at its example's own depth."""
    positions = []

    def count(head, states, logits):
        positions.append(len(logits) if logits.dim() == 2 else 0)  # three are of answers that are written out

    hook = model.lm_head.register_forward_hook(count)
    try:
        evaluate(model, tokenizer, examples, tmp_path / "e", ["adaptive"], batch_size=5)
    finally:
        hook.remove()
    encoded = Encoder(tokenizer, 512)(examples)
    assert sum(positions) == sum(len(item.input_ids) - item.prompt_length for item in encoded)
    own = {record.id: record.at("adaptive") for record in read_evaluation(tmp_path / "e").records}
    for record in found.records:
        result, expected = own[record.id], record.at("adaptive")
        assert (result.depth, result.answer) == (expected.depth, expected.answer)
        assert result.nll == pytest.approx(expected.nll, rel=1e-5)


def test_another_evaluation_in_the_folder_is_refused(model, tokenizer, examples, tmp_path):
    evaluate(model, tokenizer, examples[:2], tmp_path / "e", [1])
    with pytest.raises(RecurTraceError, match="different loops"):
        evaluate(model, tokenizer, examples[:2], tmp_path / "e", [2])
    with pytest.raises(RecurTraceError, match="different items"):
        evaluate(model, tokenizer, examples[:3], tmp_path / "e", [1])
    evaluate(model, tokenizer, examples[:2], tmp_path / "e", [1], about={"model": "elsewhere"})  # it was renamed
    evaluate(model, tokenizer, examples[:2], tmp_path / "e", [2], overwrite=True)
    assert read_evaluation(tmp_path / "e").manifest.loops == ["2"]
    with pytest.raises(RecurTraceError, match="two examples have the same id"):
        evaluate(model, tokenizer, examples[:1] * 2, tmp_path / "f", [1])


def test_bad_requests_get_a_sentence(model, tokenizer, examples, tmp_path):
    with pytest.raises(RecurTraceError, match='"adaptive" or "k"'):
        evaluate(model, tokenizer, examples, tmp_path / "e", ["deep"])
    with pytest.raises(RecurTraceError, match="at least 1"):
        evaluate(model, tokenizer, examples, tmp_path / "e", [0])
    with pytest.raises(RecurTraceError, match="no head 'x'"):
        evaluate(model, tokenizer, examples, tmp_path / "e", ["adaptive"], head="x")
    with pytest.raises(RecurTraceError, match="holds no evaluation"):
        read_evaluation(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "evaluation.json").write_text(json.dumps({"items": 1}))
    (tmp_path / "b" / "records-00000-of-00001.jsonl").write_text("{}\n")
    with pytest.raises(RecurTraceError, match="line 1 of .* is not a record"):
        read_evaluation(tmp_path / "b")


def test_two_processes_give_the_same_records(model, tokenizer, tmp_path):
    from tests.cli.test_commands import run
    from tests.training.test_processes import free_port

    model.save_pretrained(tmp_path / "model", merge_base=True)
    tokenizer.save_pretrained(tmp_path / "model")
    common = ("evaluate", tmp_path / "model", "--data", "arithmetic", "--loops", "1,2")
    said = run(*common, "--out", tmp_path / "one", "--seeds", 3, "--per-seed", 8)
    assert "24 records" in said
    config = Path(__file__).parents[2] / "recurtrace/recipes/accelerate/two-cpu.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    launch += ["--main_process_port", free_port(), "-m", "recurtrace"]
    options = [*map(str, common), "--out", str(tmp_path / "two"), "--seeds", "3", "--per-seed", "8"]
    subprocess.run([*launch, *options], check=True, capture_output=True, text=True)
    one, two = read_evaluation(tmp_path / "one"), read_evaluation(tmp_path / "two")
    assert len(list((tmp_path / "two").glob("records-*-of-00002.jsonl"))) == 2
    assert [record.id for record in one.records] == [record.id for record in two.records]
    assert {record.seed for record in one.records} == {0, 1, 2}
    for a, b in zip(one.records, two.records, strict=True):
        assert a.at("2").nll == pytest.approx(b.at("2").nll, rel=1e-5)


def test_baselines_go_through_the_same_command(model, tokenizer, tmp_path):
    """A base, and a PEFT adapter on it: at one loop, the records of the looped model on that base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from recurtrace import RecurTraceForCausalLM
    from tests.cli.test_commands import run
    from tests.conftest import LOOP, tiny_base

    tiny_base(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    RecurTraceForCausalLM.from_base(tmp_path / "base", **LOOP).save_pretrained(tmp_path / "looped")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    found = []
    for kind in ("base", "looped", "adapter"):
        options = ("--data", "arithmetic", "--count", 6, "--loops", 1, "--out", tmp_path / f"e-{kind}")
        run("evaluate", tmp_path / kind, *options)
        found.append(read_evaluation(tmp_path / f"e-{kind}"))
    assert found[0].records == found[1].records == found[2].records  # a fresh adapter changes nothing
    assert [evaluation.manifest.kind for evaluation in found] == ["base", "looped", "adapter"]
    with pytest.raises(RecurTraceError, match="has no loops"):
        run("evaluate", tmp_path / "base", "--data", "arithmetic", "--count", 6, "--out", tmp_path / "x")
