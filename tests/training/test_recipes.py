"""Every recipe that is shipped: read, with the paper's numbers, and estimated without being loaded."""

import pytest
import yaml

from recurtrace.data.mixture import MixtureRecipe
from recurtrace.errors import RecurTraceError
from recurtrace.model.families import QWEN3
from recurtrace.pipeline import PipelineRecipe
from recurtrace.recipes import shipped
from recurtrace.training.estimate import estimate
from recurtrace.training.recipe import PretrainRecipe, TrainRecipe
from tests.conftest import LOOP


def paper(run):
    return TrainRecipe.read(f"paper/{run}")


def test_the_papers_budgets():
    for scale, steps, epochs, rate in (
        ("0.6b", None, 15, 1e-4),
        ("1.7b", None, 15, 1e-4),
        ("4b", 300, None, 1e-5),
        ("8b", 800, None, 1e-5),
    ):
        runs = [paper(f"qwen3-{scale}-{m}") for m in ("loop", "plain-loop", "full", "adapter")]
        assert [run.method for run in runs] == ["loop", "plain_loop", "full", "adapter"]
        for run in runs:  # the same budget throughout
            assert (run.steps, run.epochs, run.learning_rate) == (steps, epochs, rate)
            assert (run.batch_size, run.max_length, run.micro_batch_size) == (128, 1024, 2)
    run = paper("qwen3-8b-loop")
    assert run.steps * run.batch_size * run.max_length == pytest.approx(105e6, rel=0.01)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("steps=true", r"steps: must not be true or false \(got True\)"),
        ("evaluate_depths=[1, true]", "evaluate_depths: must not be true or false"),
        ("learning_rate=.inf", "learning_rate: input should be a finite number"),
        ("learning_rate=.nan", "learning_rate: input should be a finite number"),
        ("seed=123456789012345678901234", "seed: input should be less than 4294967296"),
        ("max_length=16", "max_length: input should be greater than or equal to 32"),
    ],
)
def test_a_number_is_a_number(change, sentence):
    with pytest.raises(RecurTraceError, match=sentence):
        TrainRecipe.read_with("paper/qwen3-4b-loop", [change])


def test_lengths_stop_at_the_positions_of_the_base(base_folder):
    def asked(*changes):
        base = [f"model={base_folder}", "loop.loop_start=2", "loop.loop_attn_head_dim=8"]
        return estimate(TrainRecipe.read_with("paper/qwen3-4b-loop", [*base, *changes])).max_length

    with pytest.raises(RecurTraceError, match="max_length is 1,024, but the base has 256 positions"):
        asked()
    assert asked("extrapolate=true") == 1024
    fields = {"model": str(base_folder), "loop": LOOP, "data": "data", "out": "out", "steps": 1}
    assert estimate(TrainRecipe.check(fields, "recipe")).max_length == 256  # the default


def test_every_recipe_is_valid():
    kinds = {"sources": MixtureRecipe, "architecture": PretrainRecipe, "mixture": PipelineRecipe, "method": TrainRecipe}
    for file in (file for name, file in shipped().items() if not name.startswith("accelerate/")):
        fields = yaml.safe_load(file.read_text())
        next(kind for field, kind in kinds.items() if field in fields).read(file)


@pytest.mark.parametrize("scale", [name.lower() for name in QWEN3])
def test_dry_run_at_the_papers_scales(tmp_path, scale):
    QWEN3[scale.upper()].config().save_pretrained(tmp_path)
    found = {
        method: estimate(TrainRecipe.read_with(f"paper/qwen3-{scale}-{method}", [f"model={tmp_path}"]))
        for method in ("loop", "plain-loop", "full", "adapter")
    }
    loop, full = found["loop"], found["full"]
    assert loop.trained / full.parameters <= 0.022  # the paper: at most about 2.2 %
    assert abs(found["adapter"].trained - loop.trained) <= 0.02 * loop.trained
    assert found["plain-loop"].trained == 1
    assert full.trained == full.parameters
    assert loop.flops_per_step <= full.flops_per_step  # "by this accounting no larger than" the baseline's
    assert loop.memory() < full.memory()
    assert full.memory(8, shard_optimizer=True) < full.memory()
    if scale == "8b":
        assert full.flops_per_step * 800 == pytest.approx(5e18, rel=0.15)


@pytest.mark.parametrize("scale", ["0.6b", "1.7b", "4b", "8b"])
def test_the_papers_runs_loop_the_papers_layers(scale):
    """The probe is shown; it does not decide."""
    recipe = PipelineRecipe.read(f"paper/qwen3-{scale}")
    assert recipe.probe == 10_000
    for run in recipe.runs():
        made = recipe.training(run, 0)
        assert "probe" not in made
        assert made["loop"]["loop_start"] == run.loop.get("loop_start", 12 if scale in ("0.6b", "1.7b") else 15)
