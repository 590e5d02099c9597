"""From a base to a report by one recipe; done again only where something changed."""

import json

import pytest
import yaml

from recurtrace.errors import RecurTraceError
from recurtrace.pipeline import Pipeline, PipelineRecipe
from tests.cli.test_commands import run
from tests.training.conftest import SIZES


@pytest.fixture(scope="module")
def recipe(base_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("pipeline")
    sources = [{"task": task, "count": 200} for task in ("p_hop", "arithmetic")]
    mixture = {"sources": sources, "audit": [], "heldout": 20, "sizes": SIZES}
    (place / "mixture.yaml").write_text(yaml.safe_dump(mixture))
    train = {
        "loop": {"loop_attn_head_dim": 8}, "steps": 3, "batch_size": 4, "micro_batch_size": 4, "max_length": 64,
        "precision": "fp32", "evaluate_depths": [1, 2],
    }  # fmt: skip
    fields = {
        "base": str(base_folder), "out": str(place / "out"), "mixture": str(place / "mixture.yaml"), "probe": 20,
        "train": train, "baselines": ["plain_loop", "full", "adapter"], "heldout": 40, "test": 24, "depth": 8,
        "heads": ["oracle", "act"], "loops": [1, 2, "adaptive"], "max_length": 128,
    }  # fmt: skip
    (place / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return place / "recipe.yaml"


def stages_run(recipe, monkeypatch, *changes):
    """Names of the stages that did something."""
    ran = []
    pipeline = Pipeline(PipelineRecipe.read_with(recipe, list(changes)))
    stages = pipeline.stages()
    for stage in stages:
        stage.run = lambda stage=stage, work=stage.run: (ran.append(stage.name), work())
    monkeypatch.setattr(pipeline, "stages", lambda: stages)
    pipeline.run()
    return ran


def test_the_whole_story(recipe, monkeypatch):
    said = run("run", recipe)
    out = recipe.parent / "out"
    assert "RecurTrace" in said
    page = (out / "report" / "report.html").read_text()
    for title in ("Adaptive depth: every way to choose it", "Loop memory against plain looping", "What training took"):
        assert title in page
    assert {folder.name for folder in (out / "evaluations").iterdir()} == {
        "base",
        "loop",
        "plain-loop",
        "full",
        "adapter",
    }
    assert json.loads((out / "probe.json").read_text())["loop_start"] >= 0
    assert (out / "report" / "figures" / "loops.png").is_file()

    assert stages_run(recipe, monkeypatch) == []  # nothing changed
    loops = "loops=[1, 2, 4, adaptive]"
    assert stages_run(recipe, monkeypatch, loops) == ["evaluate loop", "evaluate plain-loop", "report"]
    heads = [loops, "distill.steps=20"]
    assert stages_run(recipe, monkeypatch, *heads) == ["distil", "compare", "evaluate loop", "report"]
    fewer = [*heads, "baselines=[plain_loop, full]"]
    assert stages_run(recipe, monkeypatch, *fewer) == ["report"]  # nothing that was trained is trained again


def test_a_folder_of_someone_else_is_left_alone(recipe, tmp_path):
    (tmp_path / "out" / "mixture").mkdir(parents=True)
    (tmp_path / "out" / "mixture" / "precious").touch()
    with pytest.raises(RecurTraceError, match="was not made by this pipeline"):
        Pipeline(PipelineRecipe.read_with(recipe, [f"out={tmp_path / 'out'}"])).run()
    assert (tmp_path / "out" / "mixture" / "precious").exists()


def test_bad_recipes_get_a_sentence(recipe):
    fields = yaml.safe_load(recipe.read_text())
    for changed, message in (
        ({"train": {"model": "x"}}, "train.model is filled in"),
        ({"heads": ["act"]}, "must have oracle"),
        ({"stepz": 3}, "no field 'stepz'"),
        ({"distill": {"stepz": 3}}, "no field 'stepz'"),
        ({"depth": 4}, "deeper than depth 4"),
        ({"train": fields["train"] | {"step": 3}}, "no field 'step'"),
    ):
        with pytest.raises(RecurTraceError, match=message):
            PipelineRecipe.check(fields | changed, "recipe")
