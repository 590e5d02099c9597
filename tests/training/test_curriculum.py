"""Lessons: which rows are let in when, and that a run resumes in the same order."""

import json

import pytest
import torch

from recurtrace.data.example import Example
from recurtrace.data.packing import open_packed
from recurtrace.errors import RecurTraceError
from recurtrace.training.curriculum import CurriculumSampler
from recurtrace.training.lessons import Lesson, difficulty, first_lesson
from recurtrace.training.train import train

LESSONS = [
    Lesson(until=0.25, tasks=["p_hop"], hardest=4),
    Lesson(until=0.5, hardest=8),
]


def example(task="p_hop", bucket="k=2"):
    return Example("1", task, "a", "b", bucket=bucket)


def test_difficulty_is_the_number_of_a_bucket():
    assert difficulty("facts=3") == 3
    assert difficulty("algebra") == difficulty("") == float("inf")


def test_examples_packed_together_wait_for_the_hardest():
    assert first_lesson(LESSONS, [example(), example(bucket="k=4")]) == 0
    assert first_lesson(LESSONS, [example(), example(bucket="k=6")]) == 1
    assert first_lesson(LESSONS, [example("arithmetic")]) == 1
    assert first_lesson(LESSONS, [example(bucket="k=12")]) == 2
    assert first_lesson(LESSONS, [example(bucket="")]) == 2


def test_rows_are_let_in_lesson_by_lesson_and_each_once_before_any_again():
    lessons = [0] * 5 + [1] * 5 + [2] * 10
    drawn = list(CurriculumSampler(lessons, [0.25, 0.5], 80, seed=1))
    assert len(drawn) == 80
    first, second, rest = drawn[:20], drawn[20:40], drawn[40:]
    assert [sorted(first[i : i + 5]) for i in range(0, 20, 5)] == [list(range(5))] * 4
    assert sorted(second[:10]) == sorted(second[10:]) == list(range(10))
    assert sorted(rest[:20]) == sorted(rest[20:]) == list(range(20))
    assert drawn == list(CurriculumSampler(lessons, [0.25, 0.5], 80, seed=1))
    assert drawn != list(CurriculumSampler(lessons, [0.25, 0.5], 80, seed=2))


def test_a_run_with_lessons_packs_them_apart_and_resumes_to_the_same_weights(recipe):
    lessons = [{"until": 0.5, "tasks": ["p_hop"], "hardest": 8}]
    whole = train(recipe("whole", curriculum=lessons))
    rows = open_packed(whole.parent / "packed" / "train.arrow")
    assert {name.split("/")[0] for row in rows if row["lesson"] == 0 for name in row["ids"]} == {"p_hop"}
    assert set(rows["lesson"]) == {0, 1}

    broken = recipe("broken", curriculum=lessons)
    train(broken)
    for gone in ("model", "checkpoint-6"):
        for file in (broken.out / gone).iterdir():
            file.unlink()
        (broken.out / gone).rmdir()
    (broken.out / "budget.json").unlink()
    resumed = train(broken)
    assert (resumed / "recurtrace.safetensors").read_bytes() == (whole / "recurtrace.safetensors").read_bytes()
    assert json.loads((whole.parent / "budget.json").read_text())["steps"] == 6


@pytest.mark.parametrize("method", ["full", "adapter"])
def test_baselines_draw_the_same_rows(recipe, method):
    lessons = [{"until": 0.5, "tasks": ["p_hop"]}]
    torch.manual_seed(0)
    folder = train(recipe(method, method=method, curriculum=lessons, steps=2))
    assert (folder.parent / "budget.json").is_file()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"curriculum": [{"until": 0.5}, {"until": 0.2}]}, "lessons must end one after the other, not at 0.5, 0.2"),
        ({"curriculum": [{"until": 0.5}], "steps": None, "epochs": 1}, "give steps instead of epochs"),
        ({"curriculum": [{"until": 1.5}]}, "until: input should be less than 1"),
    ],
)
def test_impossible_lessons_are_refused(recipe, fields, says):
    with pytest.raises(RecurTraceError, match=says):
        recipe(**fields)


def test_a_lesson_without_examples_is_refused(recipe):
    with pytest.raises(RecurTraceError, match=r"is for the lesson until 0\.5 of the run; check its tasks and hardest"):
        train(recipe(curriculum=[{"until": 0.5, "tasks": ["gsm8k"]}]))
