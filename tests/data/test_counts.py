"""How many items an evaluation takes, against the paper's totals."""

import pytest

from recurtrace.data.benchmarks import TASKS, suite
from recurtrace.data.counts import COUNTS, SAMPLES, evaluated, sample_sizes
from recurtrace.data.mixture import MixtureRecipe
from recurtrace.data.selection import sample
from recurtrace.data.synthetic import PAPER, evaluation_items
from recurtrace.pipeline import PipelineRecipe
from tests.cli.test_commands import run


def test_every_benchmark_is_counted():
    listed = {task.name for task in TASKS.values() if "stories" not in task.suites and task.name != "c4"}
    assert COUNTS.keys() == listed
    assert COUNTS["p_hop"].test == sum(1 for _ in evaluation_items("p_hop", 0, sizes=PAPER)) == 4000


def test_samples_come_near_the_papers_45722_4785_2730():
    found = {name: evaluated(suite(name)) for name in SAMPLES}
    assert found["diagnostic"] == SAMPLES["diagnostic"].paper == 2730
    assert found["classic"] == pytest.approx(SAMPLES["classic"].paper, abs=1)
    assert found["train_covered"] == pytest.approx(SAMPLES["train_covered"].paper, rel=0.004)
    assert (SAMPLES["train_covered"].paper, SAMPLES["classic"].paper) == (45_722, 4_785)


def test_the_papers_mixture_of_1_15_million():
    sources = MixtureRecipe.read("paper/mixture").sources
    total = sum(source.count or COUNTS[source.task].train for source in sources)
    assert total == pytest.approx(1.15e6, rel=0.01)


def test_a_sample_has_each_tasks_own_number():
    examples = [example for task in ("p_hop", "arithmetic") for example in evaluation_items(task, 0, per_bucket=4)]
    assert sample_sizes(examples) == {"p_hop": 32, "arithmetic": 32}  # up to 5,000 of each
    assert sample_sizes(examples * 200) == {"p_hop": 5000, "arithmetic": 5000}
    taken = sample(examples, None, {"p_hop": 3, "arithmetic": 5}, 0)
    assert sorted(example.task for example in taken) == ["arithmetic"] * 5 + ["p_hop"] * 3


def test_a_sample_that_is_smaller_than_asked_says_so(caplog):
    examples = list(evaluation_items("p_hop", 0, per_bucket=1))
    assert len(sample(examples, 8, None, 0)) == 8
    assert not caplog.records
    assert len(sample(examples, 9, None, 0)) == 8
    assert [one.getMessage() for one in caplog.records] == ["p_hop: 8 examples are used, not 9: there are no more."]


def test_the_papers_mixture_holds_out_what_the_pipeline_asks_for():
    recipe = PipelineRecipe.read_with("paper/qwen3-1.7b", [])
    kept = MixtureRecipe.read("paper/mixture").heldout
    assert kept == recipe.heldout
    assert all(COUNTS[task].train // 10 >= kept for task in recipe.tasks)


def test_the_list_says_where_ours_differs():
    said = " ".join(run("data", "list").split())
    assert "45,579 sampled test items, 45,722 in the paper." in said
    assert "2,730 sampled test items, 2,730 in the paper." in said
