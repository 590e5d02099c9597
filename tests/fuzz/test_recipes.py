"""Bad recipes of data, training and pipelines."""

import pytest

from recurtrace.data.mixture import MixtureRecipe, Source
from recurtrace.pipeline import PipelineRecipe
from recurtrace.training.recipe import TrainRecipe
from tests.fuzz.outcome import outcome, put

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcde", "bcdef", strict=True)
)


@pytest.mark.parametrize("kind", [TrainRecipe, MixtureRecipe])
@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        BOMB + "sources: *f\nsteps: *f\n",
        "- 1",
        "",
        "a: [",
        "a: &a [*a]\nsteps: *a",
        "{" * 2000,
        "!!python/object:os.system {}",
        "steps: 2020-01-01",
        "? [a]\n: b",
        "1: 2",
        "null: 3",
        "\x00",
        "sources: [[[[]]]]",
        "steps: " + "9" * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_yaml(tmp_path, kind, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    assert "recipe.yaml" in outcome(lambda: kind.read(file))


PIPELINE = {"base": "base", "out": "out", "mixture": "mixture.yaml", "train": {"steps": 1}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ablations": {"../../../ESC": {}}}, "a name may have letters, digits, - and _ only"),
        ({"task_heads": ["../x"]}, "a name may have letters, digits, - and _ only"),
        ({"depth": 1000000}, "depth goes to 1,000,000, beyond the limit of 64"),
        ({"loops": [1, 100000]}, "loops goes to 100,000, beyond the limit of 64"),
        ({"train": {"steps": 1, "evaluate_depths": [1, 100000]}}, "train.evaluate_depths goes to 100,000"),
        ({"distill": {"probe_depths": []}}, "probe_depths"),
    ],
)
def test_pipelines(fields, said):
    assert said in outcome(lambda: PipelineRecipe.check({**PIPELINE, **fields}, "recipe"))


def test_a_deeper_pipeline_can_be_asked_for():
    train = {"steps": 1, "loop": {"loop_depth_limit": 200}}
    assert PipelineRecipe.check({**PIPELINE, "train": train, "depth": 100}, "recipe").depth == 100


RECIPE = {"model": "base", "data": "data", "out": "out", "steps": 1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"betas": [2, 3]}, "betas"),
        ({"evaluate_depths": []}, "evaluate_depths"),
        ({"evaluate_depths": [1, 0]}, "evaluate_depths"),
    ],
)
def test_recipes_of_training(fields, said):
    assert said in outcome(lambda: TrainRecipe.check({**RECIPE, **fields}, "recipe"))


def test_a_source_that_is_described_elsewhere_is_called_by_its_own_name(tmp_path):
    put(tmp_path, {"own.yaml": "{file: own.jsonl, prompt: q, answer: a}", "own.jsonl": '{"q": "1?", "a": 1}\n'})
    assert Source(task=f"{tmp_path}/../{tmp_path.name}/own.yaml").name == "own"
