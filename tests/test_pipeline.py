"""From a base to a report by one recipe; done again only where something changed."""

import contextlib
import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from recurtrace.errors import RecurTraceError
from recurtrace.pipeline import Pipeline, PipelineRecipe, Stage
from recurtrace.stages.settings import StageSettings
from tests.cli.test_commands import run
from tests.conftest import SIZES


def small_recipe(base_folder, place):
    """Everything of a pipeline, with a few steps and items."""
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
        "head_examples": 40, "heads": ["oracle", "act"], "loops": [1, 2, "adaptive"], "max_length": 128,
    }  # fmt: skip
    (place / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return place / "recipe.yaml"


@pytest.fixture(scope="module")
def recipe(base_folder, tmp_path_factory):
    return small_recipe(base_folder, tmp_path_factory.mktemp("pipeline"))


def stages_run(recipe, *changes):
    """Names of the stages that did something."""
    told = []
    Pipeline(PipelineRecipe.read_with(recipe, list(changes)), lambda *one: told.append(one)).run()
    return [name for name, why_not in told if not why_not]


def test_the_whole_study(recipe):
    said = run("run", recipe)
    out = recipe.parent / "out"
    assert "RecurTrace" in said
    page = (out / "report" / "report.html").read_text()
    for title in ("Adaptive depth: all methods", "Loop memory against plain looping", "What training took"):
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

    assert stages_run(recipe) == []  # nothing changed
    loops = "loops=[1, 2, 4, adaptive]"
    assert stages_run(recipe, loops) == ["evaluate loop 0", "evaluate plain-loop 0", "report"]
    heads = [loops, "distill.steps=20"]
    assert stages_run(recipe, *heads) == ["distill 0", "compare 0", "evaluate loop 0", "report"]
    fewer = [*heads, "baselines=[plain_loop, full]"]
    assert stages_run(recipe, *fewer) == ["report"]  # nothing that was trained is trained again
    whole = [*fewer, "full_test=true", "tasks=[p_hop]"]
    assert stages_run(recipe, *whole, "heldout=20", "test=12")[-2:] == ["evaluate full-test", "report"]
    assert "Adaptive depth on the whole test set" in (out / "report" / "report.md").read_text()


def test_a_block_that_is_named_is_not_the_probes(recipe):
    named = PipelineRecipe.read_with(recipe, ["train.loop.loop_start=1"])
    plan = {stage.name: stage for stage in Pipeline(named).stages()}
    assert "probe" in plan["report"].after
    assert "probe" not in plan["train loop 0"].after
    assert plan["train loop 0"].steps[0][1].probe is None
    of_probe = {stage.name: stage for stage in Pipeline(PipelineRecipe.read(recipe)).stages()}
    assert "probe" in of_probe["train loop 0"].after


def test_a_test_of_as_many_items_of_each_task(recipe):
    made = PipelineRecipe.read_with(recipe, ["test_per_task=5"])
    settings = {stage.name: stage.steps[0][1] for stage in Pipeline(made).stages()}
    for name in ("sweep test 0", "evaluate loop 0", "evaluate base"):
        assert (settings[name].per_task, settings[name].count) == (5, None)
    assert settings["sweep heldout 0"].count == 40


def test_an_ablation_without_memory_is_plain_looping(recipe):
    ablation = ["ablations={bare: {loop_memory: false}}", "overrides={bare: {train_block: true}}"]
    plan = {stage.name: stage for stage in Pipeline(PipelineRecipe.read_with(recipe, ablation)).stages()}
    trained = plan["train bare 0"].steps[0][1]
    assert (trained.method, trained.train_block) == ("plain_loop", True)


def test_rivals_of_a_block_that_learns(recipe):
    """They have no block to train, and the adapter is as large as all that the loop trains."""
    changes = ["train.train_block=true", "train.block_learning_rate=1e-4", "baselines=[full, adapter]"]
    plan = {stage.name: stage for stage in Pipeline(PipelineRecipe.read_with(recipe, changes)).stages()}
    made = {run: plan[f"train {run} 0"].steps[0][1] for run in ("loop", "full", "adapter")}
    assert {run: one.train_block for run, one in made.items()} == {"loop": True, "full": False, "adapter": False}
    assert {run: one.match_block for run, one in made.items()} == {"loop": False, "full": False, "adapter": True}


def result_files(out):
    """What stages hand on, by name. Times differ from run to run, and what is made of them: budgets, costs, report."""
    kinds = ("mixture/**/*", "probe.json", "runs/*/*/model/*", "sweeps/**/*", "models/**/*", "analysis/*")
    found = [file for kind in (*kinds, "evaluations/**/*") for file in out.glob(kind) if file.is_file()]
    return {str(file.relative_to(out)): file.read_bytes() for file in found}


def test_the_commands_one_by_one_give_what_the_pipeline_gives(recipe, tmp_path, monkeypatch):
    changes = ["out=out", "distill.margin=0.02", "distill.probe_depths=[1, 3]", "baselines=[plain_loop]"]
    made = PipelineRecipe.read_with(recipe, changes)
    (tmp_path / "pipeline").mkdir()
    monkeypatch.chdir(tmp_path / "pipeline")
    Pipeline(made).run()

    (tmp_path / "commands").mkdir()
    monkeypatch.chdir(tmp_path / "commands")
    for number, (_, settings) in enumerate(step for stage in Pipeline(made).stages() for step in stage.steps):
        if isinstance(settings, StageSettings):
            run(*shlex.split(settings.command())[1:])
        else:
            fields = settings.model_dump(mode="json", exclude_unset=True)
            (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(fields))
            run("train", tmp_path / f"{number}.yaml")
    one, other = (result_files(tmp_path / way / "out") for way in ("pipeline", "commands"))
    assert list(one) == list(other)
    assert [name for name in one if one[name] != other[name]] == []
    assert {name.split("/")[0] for name in one} == {
        "mixture", "probe.json", "runs", "sweeps", "models", "analysis", "evaluations"
    }  # fmt: skip

    head = json.loads(one["models/seed-0/config.json"])
    kept = head["loop_halting_trained_on"]["recipe"]
    assert (kept["margin"], kept["probe_depths"], kept["seed"]) == (0.02, [1, 3], 0)
    assert head["loop_halting_heads"]["act"]["trained_on"]["sweep"]["split"] == "train"
    analysis = json.loads(one["analysis/seed-0.json"])
    assert [row["depth"] for row in analysis["head_calibration"] if row["supervised"]] == [1, 3]
    assert analysis["command"].startswith(
        "recurtrace compare out/models/seed-0 --heldout out/sweeps/seed-0/heldout --test"
    )
    for file in ("evaluations/loop/seed-0/evaluation.json", "models/seed-0/calibration/head.json"):
        assert json.loads(one[file])["command"].startswith("recurtrace ")


def test_another_seed_leaves_the_first_as_it_is(recipe, tmp_path):
    """Seeds, ablations and the same-start control; tables average over seeds."""
    fields = [
        f"out={tmp_path / 'out'}", "probe=null", "train.loop.loop_start=2", "baselines=[plain_loop]", "depth=6",
        "ablations={window-1: {loop_memory_window: 1}}", "same_start=true", "overrides={window-1: {steps: 2}}",
        "heads=[oracle]",
    ]  # fmt: skip
    first = stages_run(recipe, *fields)
    assert [name for name in first if name.startswith("train")] == [
        "train loop 0", "train plain-loop 0", "train window-1 0", "train same-start-memory 0",
        "train same-start-plain 0",
    ]  # fmt: skip
    out = tmp_path / "out"
    assert json.loads((out / "runs/window-1/seed-0/model/config.json").read_text())["loop_memory_window"] == 1
    assert json.loads((out / "runs/window-1/seed-0/recipe.json").read_text())["steps"] == 2
    before = result_files(out)
    second = stages_run(recipe, *fields, "seeds=[0, 1]")
    assert all(name.endswith(" 1") or name == "report" for name in second)
    after = result_files(out)
    assert {name: after[name] for name in before} == before
    assert (
        after["runs/loop/seed-0/model/recurtrace.safetensors"] != after["runs/loop/seed-1/model/recurtrace.safetensors"]
    )
    page = (out / "report" / "report.md").read_text()
    assert "2 training seeds" in page
    assert "window-1" in page
    assert "same-start-memory" in page


@pytest.mark.slow
def test_launched_stages_give_what_others_give(recipe, tmp_path):
    """One process, started by a launcher: the commands of training and sweeping."""
    wanted = ["data", "train loop 0", "sweep heldout 0"]
    for name, launcher in (("here", []), ("launched", [sys.executable])):
        changes = ["out=out", "probe=null", "train.loop.loop_start=2", "heldout=8", "depth=6"]
        (tmp_path / name).mkdir()
        with contextlib.chdir(tmp_path / name):
            Pipeline(PipelineRecipe.read_with(recipe, changes)).run(only=wanted, launcher=launcher)
    one, other = (result_files(tmp_path / name / "out") for name in ("here", "launched"))
    assert list(one) == list(other)
    assert [name for name in one if one[name] != other[name]] == []


def test_a_folder_of_an_earlier_version_is_taken_over(recipe, tmp_path):
    """It kept all stages in one file."""
    made = PipelineRecipe.read_with(recipe, [f"out={tmp_path / 'out'}"])
    pipeline = Pipeline(made)
    pipeline.run(only=["data"])
    (noted,) = (tmp_path / "out" / "stages").iterdir()
    digest = json.loads(noted.read_text())["digest"]
    noted.unlink()
    (tmp_path / "out" / "stages.json").write_text(json.dumps({"data": digest, "begun": {"data": digest, "probe": "x"}}))
    told = []
    Pipeline(made, lambda *one: told.append(one)).run(only=["data"])
    assert told == [("data", "already done")]
    assert str(pipeline.states(pipeline.stages())["probe"]) == "changed, runs again"


def test_tasks_have_heads_of_their_own(recipe, tmp_path):
    """One of the mixture's and one that no mixture trains on; further strengths of a penalty are heads as well."""
    write_arc(tmp_path / "data")
    fields = [
        f"out={tmp_path / 'out'}", f"data_dir={tmp_path / 'data'}", "probe=null", "train.loop.loop_start=2",
        "baselines=[]", "depth=6", "task_heads=[p_hop, arc_challenge]", "task_items=10", "strengths=[0.1]",
    ]  # fmt: skip
    ran = stages_run(recipe, *fields)
    assert [name for name in ran if "tasks" in name] == [
        "sweep tasks-train 0", "sweep tasks-heldout 0", "sweep tasks-test 0", "distill tasks 0", "compare tasks 0",
    ]  # fmt: skip
    out = tmp_path / "out"
    heads = json.loads((out / "task-models/seed-0/config.json").read_text())["loop_halting_heads"]
    assert heads.keys() == {"act", "act-0_1", "p_hop", "arc_challenge"}
    assert heads["arc_challenge"]["trained_on"]["sweep"]["tasks"] == ["arc_challenge"]
    assert heads["p_hop"]["min_depth"] == 1
    tasks = json.loads((out / "task-analysis/seed-0.json").read_text())["tasks"]
    assert [(row["task"], row["items"], row["own_head"]) for row in tasks] == [
        ("arc_challenge", 8, True),
        ("p_hop", 10, True),
    ]
    methods = json.loads((out / "analysis/seed-0.json").read_text())["methods"]
    assert {row["name"]: row["regularization"] for row in methods if row["name"].startswith("act")} == {
        "act": 0.01, "act-floor": 0.01, "act-0_1": 0.1,
    }  # fmt: skip
    page = (out / "report" / "report.md").read_text()
    assert "| arc_challenge | 8 | its own |" in page
    assert "| ACT | 0.1 |" in page


def write_arc(place):
    home = place / "allenai__ai2_arc" / "ARC-Challenge"
    home.mkdir(parents=True)
    for split, count in (("train", 40), ("test", 8)):
        rows = [
            {
                "question": f"{split} {i}?",
                "choices": {"label": ["A", "B"], "text": ["x", "y"]},
                "answerKey": "AB"[i % 2],
            }
            for i in range(count)
        ]
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_folder_of_someone_else_is_left_alone(recipe, tmp_path):
    (tmp_path / "out" / "mixture").mkdir(parents=True)
    (tmp_path / "out" / "mixture" / "precious").touch()
    with pytest.raises(RecurTraceError, match="is not empty and holds no pipeline"):
        Pipeline(PipelineRecipe.read_with(recipe, [f"out={tmp_path / 'out'}"])).run()
    assert (tmp_path / "out" / "mixture" / "precious").exists()


def test_what_was_trained_is_trained_again_only_if_asked(recipe, tmp_path, monkeypatch):
    def made(stage, launcher):
        for path in stage.makes:
            file = path if path.suffix else path / ("budget.json" if stage.name.startswith("train") else "result")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    monkeypatch.setattr(Stage, "run", made)
    out = tmp_path / "out"
    first = stages_run(recipe, f"out={out}")
    trained = [name for name in first if name.startswith("train")]
    assert len(trained) == 4
    out.rename(tmp_path / "renamed")
    out = tmp_path / "renamed"
    assert stages_run(recipe, f"out={out}") == []
    for change in ("train.steps=4", f"mixture={recipe}"):  # another setting, other data
        with pytest.raises(
            RecurTraceError, match="loop/seed-0' was trained with other settings or on other data; .* --ov"
        ):
            stages_run(recipe, f"out={out}", change)
    assert (out / "mixture" / "result").is_file()  # refused before anything was removed
    assert stages_run(recipe, f"out={out}") == []
    assert trained == [
        name for name in stages_run(recipe, f"out={out}", "train.steps=4", "overwrite=true") if name in trained
    ]


def test_a_place_is_not_part_of_the_digests(recipe, tmp_path):
    """A folder called as a field is, and another; the mixture's recipe in another installation of the package."""
    found = []
    copy = tmp_path / "elsewhere.yaml"
    copy.write_text(Path(yaml.safe_load(recipe.read_text())["mixture"]).read_text())
    for changes in (["out=out"], ["out=some/where", f"mixture={copy}"]):
        pipeline, digests = Pipeline(PipelineRecipe.read_with(recipe, changes)), {}
        for stage in pipeline.stages():
            digests[stage.name] = pipeline._digest(stage, digests)
        found.append(digests)
    assert found[0] == found[1]


def test_bad_recipes_get_a_sentence(recipe):
    fields = yaml.safe_load(recipe.read_text())
    for changed, message in (
        ({"train": {"model": "x"}}, "train.model is set by the pipeline"),
        ({"train": {"seed": 3}}, "train.seed is set by the pipeline"),
        ({"same_start": True, "baselines": []}, "add plain_loop to baselines"),
        ({"ablations": {"full": {}}}, "two runs have the same name"),
        ({"overrides": {"fool": {}}}, "which is not among the runs"),
        ({"ablations": {"w": {"loop_window": 1}}}, "loop_window"),
        ({"heads": ["act"]}, "must include oracle"),
        ({"stepz": 3}, "no field 'stepz'"),
        ({"distill": {"stepz": 3}}, "no field 'stepz'"),
        ({"depth": 4}, "beyond the pipeline's depth of 4"),
        ({"train": fields["train"] | {"step": 3}}, "no field 'step'"),
    ):
        with pytest.raises(RecurTraceError, match=message):
            PipelineRecipe.check(fields | changed, "recipe")


def test_a_refused_base_leaves_nothing(recipe, tmp_path):
    out = f"out={tmp_path / 'out'}"
    for changes, message in (
        (["base=nowhere"], "no model found at 'nowhere'"),
        (["max_length=5000"], "max_length is 5,000, but the base has 256 positions .* lower max_length in the recipe"),
        (["train.max_length=5000"], "max_length is 5,000, but the base has 256 positions"),
        (["probe=null", "train.loop.loop_start=9"], "block 9–11 is outside the 6 layers"),
    ):
        with pytest.raises(RecurTraceError, match=message):
            Pipeline(PipelineRecipe.read_with(recipe, [out, *changes])).run()
    assert not (tmp_path / "out").exists()
