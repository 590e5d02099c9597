"""Data of one's own: as a task by itself and in a mixture, scored as it says."""

import json

import pytest

from recurtrace import RecurTraceError
from recurtrace.data.benchmarks import is_right, longest_answer
from recurtrace.data.loading import load
from recurtrace.data.mixture import MixtureRecipe, build, read_examples
from recurtrace.data.own import OwnTask
from recurtrace.data.selection import gather, name_of

FIELDS = {"prompt": "Q: {question} ({level})", "answer": "answer", "scorer": "number", "max_new_tokens": 5}


@pytest.fixture
def home(tmp_path):
    """A folder with records, and a YAML file that describes them."""
    for name, first in (("train", 0), ("test", 1000)):
        rows = [{"question": f"{i} of {name}?", "level": i % 3, "answer": i} for i in range(first, first + 60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"name": "mine", "file": "train.jsonl", "test": "test.jsonl", "bucket": "level", **FIELDS}
    (tmp_path / "mine.yaml").write_text(json.dumps(own))
    return tmp_path


def test_a_file_becomes_a_task(home):
    found = load(str(home / "mine.yaml"), "test").examples
    assert len(found) == 60
    assert (found[4].id, found[4].task, found[4].bucket) == ("mine/test/4", "mine", "2")
    assert (found[4].prompt, found[4].answer) == ("Q: 1004 of test? (2)", "1004")
    assert is_right(found[4], "It is 1,004.")
    assert not is_right(found[4], "4")
    assert longest_answer(found[4]) == 5
    assert {example.task for example in gather(f"{home / 'mine.yaml'},p_hop", split="test")} == {"mine", "p_hop"}
    assert name_of(f"{home / 'mine.yaml'},p_hop") == "mine,p_hop"


def test_without_a_test_file_a_tenth_is_kept_for_it(home):
    task = OwnTask(file=home / "train.jsonl", **FIELDS).row
    train, test = ({example.prompt for example in load(task, split).examples} for split in ("train", "test"))
    assert task.name == "train"
    assert len(train | test) == 60
    assert not train & test
    assert 1 <= len(test) <= 15


def test_it_can_be_part_of_a_mixture(home):
    task = {"name": "mine", "file": "train.jsonl", "test": "test.jsonl", **FIELDS}
    sources = [{"task": task}, {"task": "arithmetic", "count": 20}]
    (home / "recipe.yaml").write_text(json.dumps({"sources": sources, "audit": [], "heldout": 3}))
    with (home / "train.jsonl").open("a") as lines:  # a test question, which the audit removes
        lines.write((home / "test.jsonl").read_text().splitlines()[0] + "\n")
    manifest = build(MixtureRecipe.read(home / "recipe.yaml"), home / "out")
    facts = manifest["sources"]["mine"]
    assert (facts["train"], facts["heldout"], facts["removed_exact"]) == (57, 3, 1)
    assert manifest["audit"]["tasks"] == {"mine": 60}
    heldout = {example.task: example for example in read_examples(home / "out", "heldout")}
    assert (heldout["mine"].scorer, heldout["mine"].max_new_tokens) == ("number", 5)
    assert heldout["arithmetic"].scorer == ""
    test = gather(str(home / "out"), split="test", only=["mine"])
    assert len(test) == 60
    assert is_right(test[0], "1000.0")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"scorer": "best"}, "scorer: must be one of exact, text, number, letter, math"),
        ({"name": "gsm8k"}, "gsm8k is the name of another task"),
        ({"name": "a b"}, "name may have letters, digits, - and _ only, got 'a b'"),
        ({"file": None}, "needs file, its records, or test"),
        ({"prompt": ""}, "prompt: string should have at least 1 character"),
        ({"colour": 1}, "there is no field 'colour'"),
    ],
)
def test_descriptions_that_cannot_be(home, fields, sentence):
    own = {"name": "mine", "file": str(home / "train.jsonl"), **FIELDS, **fields}
    with pytest.raises(RecurTraceError, match=sentence):
        OwnTask.check(own, "mine.yaml")
    with pytest.raises(RecurTraceError, match=sentence):
        MixtureRecipe.check({"sources": [{"task": own}]}, "recipe")


def test_what_is_wrong_with_the_records_is_said(home):
    def of(**fields):
        return OwnTask(**{"file": home / "train.jsonl", "test": home / "test.jsonl", **FIELDS, **fields}).row

    with pytest.raises(RecurTraceError, match=r"records of train lack text \(they have question, level, answer\)"):
        load(of(prompt="{text}?"), "train")
    with pytest.raises(RecurTraceError, match="there is no file .*none.jsonl"):
        load(of(test=home / "none.jsonl"), "test")
    with (home / "test.jsonl").open("a") as lines:
        lines.write('{"question": null, "level": 1, "answer": 3}\n')
    with pytest.raises(RecurTraceError, match=r"line 61 of .* \(TypeError: question is neither a text nor a number\)"):
        load(of(), "test")
    with pytest.raises(RecurTraceError, match="train is for testing only"):
        MixtureRecipe.check({"sources": [{"task": {"name": "train", "test": "x.jsonl", **FIELDS}}]}, "recipe")
