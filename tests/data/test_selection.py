"""Which examples a stage works on."""

import json

import pytest

from recurtrace.data.mixture import MixtureRecipe, build
from recurtrace.data.selection import gather, name_of, named_tasks, sample
from recurtrace.errors import RecurTraceError


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
