"""Which examples a stage works on."""

import json

import pytest

from recurtrace.data.benchmarks import TASKS, suite
from recurtrace.data.mixture import MixtureRecipe, build
from recurtrace.data.selection import gather, name_of, named_tasks, sample
from recurtrace.errors import RecurTraceError
from tests.data.test_benchmarks import RECORDS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A mixture of a generated task and a language anchor, which has no test."""
    place = tmp_path_factory.mktemp("selection")
    file = place / "data" / "allenai__c4" / "en" / "train.jsonl"
    file.parent.mkdir(parents=True)
    texts = [" ".join(f"w{i}x{j}" for j in range(64)) for i in range(60)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    fields = {"sources": [{"task": "arithmetic", "count": 60}, {"task": "c4", "count": 40}], "audit": [], "heldout": 10}
    build(MixtureRecipe.check(fields, "recipe"), place / "mixture", place / "data")
    return place


@pytest.mark.parametrize("split", ["train", "heldout", "test"])
def test_sources_for_training_alone_are_in_no_split(place, split):
    mixture = str(place / "mixture")
    assert {example.task for example in gather(mixture, place / "data", split=split)} == {"arithmetic"}


def test_they_can_be_named(place):
    mixture = str(place / "mixture")
    assert {example.task for example in gather(mixture, split="heldout", only=["c4"])} == {"c4"}
    assert {example.task for example in gather(mixture)} == {"arithmetic", "c4"}  # the block probe reads all
    with pytest.raises(RecurTraceError, match="c4 has no test split"):
        gather(mixture, place / "data", split="test", only=["c4"])


FURTHER = {
    "strategyqa": {"question": "Is it so?", "answer": True, "facts": ""},
    "c4": {"text": " ".join(f"t{i}" for i in range(64))},
}


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """The paper's own mixture with all of its seventeen sources, small, from local folders."""
    place = tmp_path_factory.mktemp("paper")
    recipe = MixtureRecipe.read("paper/mixture")
    for source in recipe.sources:
        task = TASKS[source.task]
        if task.hub is None:
            continue
        for name in set(task.splits.values()):
            file = place / "data" / task.hub.replace("/", "__") / task.configs[0] / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = [varied(FURTHER.get(task.name) or RECORDS[task.name][0], f"{name}{i}") for i in range(60)]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sources = [{"task": source.task, "count": 30} for source in recipe.sources]
    small = MixtureRecipe.check({"sources": sources, "heldout": 3, "audit": ["gsm8k"]}, "recipe")
    build(small, place / "mixture", place / "data")
    return place


def varied(record, mark):
    """Another record of the same shape: its question says so."""
    field = next(
        name for name in ("question", "problem", "Problem", "query", "story", "text", "theory") if name in record
    )
    if field == "query" and "f_comb" in record:
        field = "story"
    return {**record, field: f"{record[field]} {' '.join(f'{mark}w{i}' for i in range(40))}"}


@pytest.mark.parametrize("split", ["train", "heldout", "test"])
def test_the_papers_mixture_can_be_measured_in_every_split(paper, split):
    found = {example.task for example in gather(str(paper / "mixture"), paper / "data", split=split)}
    assert found == {task.name for task in suite("train_covered")}  # fourteen of the seventeen sources


def test_suites_have_the_names_that_are_listed():
    assert [task.name for task in named_tasks("train-covered")] == [task.name for task in named_tasks("train_covered")]
    assert len(named_tasks("train-covered,classic,gsm8k")) == 22
    with pytest.raises(RecurTraceError, match="gsm9k"):
        named_tasks("gsm9k")


def test_counts_are_in_all_or_of_each_task():
    found = gather("arithmetic,p_hop", split="test", count=10)
    assert len(sample(found, 10, None, 0)) == 10
    each = sample(found, None, 5, 0)
    assert sorted(example.task for example in each) == ["arithmetic"] * 5 + ["p_hop"] * 5
    assert len(sample(found, 6, 5, 0)) == 6


def test_how_results_call_their_data(place):
    assert name_of(str(place / "mixture")) == "mixture"
    assert name_of("gsm8k,math") == "gsm8k,math"


def test_a_task_outside_of_the_mixture_has_a_part_of_its_training_data_held_out(place):
    record = RECORDS["arc_challenge"][0]
    for split, count in (("train", 60), ("test", 8)):
        file = place / "data" / "allenai__ai2_arc" / "ARC-Challenge" / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [varied(record, f"{split}{i}") for i in range(count)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mixture, only = str(place / "mixture"), ["arithmetic", "arc_challenge"]
    found = {split: gather(mixture, place / "data", split=split, only=only) for split in ("train", "heldout", "test")}
    own = {split: {e.id for e in of if e.task == "arc_challenge"} for split, of in found.items()}
    assert [len(own[split]) for split in ("train", "heldout", "test")] == [
        60 - len(own["heldout"]),
        len(own["heldout"]),
        8,
    ]
    assert not own["train"] & own["heldout"]
    assert 4 <= len(own["heldout"]) <= 24
    assert {e.task for e in found["heldout"]} == set(only)
    with pytest.raises(RecurTraceError, match="mmlu has no training data of its own"):
        gather(mixture, place / "data", split="heldout", only=["mmlu"])
