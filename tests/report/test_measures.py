"""The best-likelihood loop, and runs side by side by their training seeds."""

import statistics

import pytest

from recurtrace.records import DepthResult, Evaluation, EvaluationManifest, ItemRecord
from recurtrace.report.contents import all_tables
from recurtrace.report.measures import best_loop
from recurtrace.report.workspace import read_workspace
from tests.report.handmade import FEWER, RUNS, write_evaluation


def evaluated(losses, tasks=("a",)):
    """A run whose items have these losses, by what was asked for: a number for all tasks, or one for each."""
    records = []
    for number, task in enumerate(tasks):
        of_task = {asked: loss if isinstance(loss, float) else loss[number] for asked, loss in losses.items()}
        results = [DepthResult(asked, 1, loss, True, "x") for asked, loss in of_task.items()]
        records.append(ItemRecord(task, task, "", -1, "h", "x", 1, results, []))
    return Evaluation(EvaluationManifest(len(records), list(losses)), records)


def test_the_best_loop_is_that_of_lowest_loss():
    assert best_loop([evaluated({"1": 3.0, "2": 2.0, "4": 1.0, "8": 2.0})], ["a"]) == "4"


def test_one_loop_does_not_count():
    assert best_loop([evaluated({"1": 0.1, "2": 2.0, "4": 1.0})], ["a"]) == "4"


def test_the_smallest_of_equal_loops_is_the_best():
    """By their numbers, in whatever order they were asked for."""
    assert best_loop([evaluated({"16": 1.0, "8": 1.0, "2": 2.0})], ["a"]) == "8"


def test_the_best_loop_is_a_fixed_one_that_every_seed_has():
    losses = {"2": 2.0, "4": 1.5, "adaptive": 0.1, "k": 0.1}
    assert best_loop([evaluated(losses | {"8": 1.0}), evaluated(losses)], ["a"]) == "4"


def test_the_best_loop_is_of_means_over_seeds_and_tasks():
    seeds = [evaluated({"2": 1.0, "4": 1.4}), evaluated({"2": 2.0, "4": 1.5})]  # means 1.5 and 1.45
    assert [best_loop([seed], ["a"]) for seed in seeds] == ["2", "4"]
    assert best_loop(seeds, ["a"]) == "4"
    run = [evaluated({"2": [1.0, 9.0], "4": [2.0, 1.0]}, ("a", "b"))]
    assert (best_loop(run, ["a"]), best_loop(run, ["a", "b"])) == ("2", "4")


@pytest.fixture
def renamed(tmp_path):
    """A study in which the baseline has the training seeds 1, 2 and 3, the others 0, 1 and 2."""
    for run, (kind, loops) in RUNS.items():
        for seed in range(3):
            write_evaluation(tmp_path / "study" / "evaluations" / run / f"seed-{seed}", kind, loops, FEWER, "b")
    (tmp_path / "study/evaluations/full/seed-0").rename(tmp_path / "study/evaluations/full/seed-3")
    return read_workspace(tmp_path / "study")


def test_runs_are_compared_at_the_training_seeds_they_share(renamed):
    tables = {table.name: table for table in all_tables(renamed)}
    said = "Of the training seeds that all have; left out are 0 of loop and 3 of full."
    for name in ("scaling", "suites", "task-gains"):
        assert said in tables[name].note, name
    assert "2 training seeds." in tables["task-gains"].note
    assert "0 of loop and 3 of full and 0 of adapter" in tables["capacity"].note
    assert "3 training seeds." in tables["depths"].note  # both looped runs have all three
    assert "left out" not in tables["depths"].note

    def accuracy(run, seed, asked):
        (found,) = [one for one in renamed.evaluations[run] if one.seed == seed]
        return found.measures["gsm8k"][asked].accuracy

    gains = [accuracy("loop", seed, "2") - accuracy("full", seed, "1") for seed in (1, 2)]
    row = next(row for row in tables["task-gains"].rows if row[0] == "gsm8k")
    assert row[5] == f"{statistics.mean(gains):+.1f} ± {statistics.stdev(gains):.1f}"
    assert "Overall gains seed by seed: b " in tables["suites"].note


def test_runs_with_the_same_seeds_leave_nothing_out(tmp_path):
    for run, (kind, loops) in RUNS.items():
        for seed in (0, 2):
            write_evaluation(tmp_path / "study" / "evaluations" / run / f"seed-{seed}", kind, loops, FEWER, "b")
    tables = {table.name: table for table in all_tables(read_workspace(tmp_path / "study"))}
    assert not [name for name, table in tables.items() if "left out" in table.note]
