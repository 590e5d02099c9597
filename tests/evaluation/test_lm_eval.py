"""lm-evaluation-harness on a local task: at one loop the base's own numbers, at others the model's."""

import json
import re

import pytest
import torch

from recurtrace import RecurTraceForCausalLM
from recurtrace.errors import RecurTraceError
from tests.conftest import LOOP, byte_tokenizer, stir, tiny_base

lm_eval = pytest.importorskip("lm_eval")

CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["yes", "no", "maybe so"]
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""
WRITE = """
task: tiny_write
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "x"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("harness")
    tokenizer = byte_tokenizer()
    tiny_base(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id).save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")
    model = stir(RecurTraceForCausalLM.from_base(place / "base", **LOOP, loop_halting_min_depth=1))
    words = ("is it so", "a longer question, is it", "no", "what then", "is this one the last of them all")
    with torch.no_grad():  # a threshold that gives different depths
        prompts = [torch.tensor([tokenizer(f"{word}?")["input_ids"]]) for word in words]
        first = [model(prompt, loops="adaptive", threshold=1.0).continue_probs.item() for prompt in prompts]
    model.config.override({"loop_halting_threshold": sorted(first)[2], "loop_halting_max_depth": 6})
    model.save_pretrained(place / "looped")
    file = place / "items.json"
    file.write_text("\n".join(json.dumps({"question": f"{word}?", "answer": i % 3}) for i, word in enumerate(words)))
    (place / "tasks").mkdir()
    (place / "tasks" / "choice.yaml").write_text(CHOICE.format(file=file))
    (place / "tasks" / "write.yaml").write_text(WRITE.format(file=file))
    return place


def run(place, model, arguments):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import recurtrace.evaluation.lm_eval  # noqa: F401

    found = simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=["tiny_choice", "tiny_write"],
        task_manager=TaskManager(include_path=str(place / "tasks"), include_defaults=False),
        batch_size=3,
        device="cpu",
        log_samples=True,
        bootstrap_iters=0,
    )
    choice = [sample["filtered_resps"] for sample in sorted(found["samples"]["tiny_choice"], key=lambda s: s["doc_id"])]
    write = [sample["filtered_resps"] for sample in sorted(found["samples"]["tiny_write"], key=lambda s: s["doc_id"])]
    return choice, write


def test_one_loop_is_the_base(place):
    """To the bit: the same batches through the same harness."""
    theirs = run(place, "hf", f"pretrained={place / 'base'},dtype=float32")
    ours = run(place, "recurtrace", f"pretrained={place / 'looped'},loops=1")
    assert ours == theirs


def test_depth_changes_the_numbers(place):
    one, four = (run(place, "recurtrace", f"pretrained={place / 'looped'},loops={loops}") for loops in (1, 4))
    assert one != four


def test_adaptive_depth_is_chosen_by_the_context(place):
    """Each request scored at the depth that its context alone gets."""
    choice, _ = run(place, "recurtrace", f"pretrained={place / 'looped'},loops=adaptive")
    model = RecurTraceForCausalLM.from_pretrained(place / "looped")
    tokenizer = byte_tokenizer()
    depths = set()
    items = [json.loads(line) for line in (place / "items.json").read_text().splitlines()]
    for item, responses in zip(items, choice, strict=True):
        context = tokenizer(item["question"])["input_ids"]
        with torch.no_grad():
            depth = model(torch.tensor([context]), loops="adaptive").depths.item()
            depths.add(depth)
            for text, (loglikelihood, _) in zip((" yes", " no", " maybe so"), responses, strict=True):
                answer = tokenizer(text)["input_ids"]
                logits = model(torch.tensor([context + answer]), loops=depth).logits[0].log_softmax(-1)
                expected = logits[len(context) - 1 : -1][range(len(answer)), answer].sum().item()
                assert float(loglikelihood) == pytest.approx(expected, rel=1e-4)
    assert len(depths) > 1, "the test needs different depths"


def test_the_command_line(place, tmp_path, monkeypatch):
    import sys

    from typer.testing import CliRunner

    from recurtrace.cli import app

    monkeypatch.setattr(sys, "argv", list(sys.argv))
    options = [
        "--model",
        "recurtrace",
        "--model_args",
        f"pretrained={place / 'looped'},loops=2",
        "--tasks",
        "tiny_choice",
    ]
    options += ["--include_path", str(place / "tasks"), "--output_path", str(tmp_path / "out")]  # and no device
    done = CliRunner().invoke(app, ["lm-eval", "run", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (written,) = tmp_path.rglob("results_*.json")
    assert "acc,none" in json.loads(written.read_text())["results"]["tiny_choice"]
    assert re.search("tiny_choice", done.output)


def test_bad_depths_get_a_sentence(place):
    from recurtrace.evaluation.lm_eval import RecurTraceLM

    with pytest.raises(RecurTraceError, match="depths are whole numbers"):
        RecurTraceLM(str(place / "looped"), loops="many")
    with pytest.raises(RecurTraceError, match="no head 'x'"):
        RecurTraceLM(str(place / "looped"), head="x")
