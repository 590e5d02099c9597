"""What a study would take, counted a second way; and what of it is done."""

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.model.cost import cost_of
from recurtrace.model.families import QWEN3
from recurtrace.pipeline import Pipeline, PipelineRecipe
from recurtrace.pipeline.plan import ANSWER, TOKENS, Demand, left, plan, total
from recurtrace.training.estimate import _is_out_of_reach, estimate
from recurtrace.training.methods import loop_config
from recurtrace.training.recipe import TrainRecipe
from tests.cli.test_commands import run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    QWEN3["4B"].config().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def recipe(base):
    return PipelineRecipe.read_with("paper/qwen3-4b", [f"base={base}", f"out={base / 'out'}", "seeds=[0, 1]"])


@pytest.fixture(scope="module")
def lines(recipe):
    return {line.name: line for line in plan(recipe)}


def test_training_is_what_its_dry_run_says(base, lines):
    alone = estimate(TrainRecipe.read_with("paper/qwen3-4b-loop", [f"model={base}"]))
    found = lines["train loop"].demand
    assert found.flops == pytest.approx(2 * 300 * alone.flops_per_step, rel=0.01)
    assert found.passes == 2 * 300 * 128
    assert lines["train full"].demand.disk > lines["train loop"].demand.disk


def test_a_sweep_is_counted_layer_by_layer(base, lines):
    config = loop_config(TrainRecipe.read_with("paper/qwen3-4b-loop", [f"model={base}"]), QWEN3["4B"].config())
    cost = cost_of(config)
    layer = cost.layer_macs + 2 * cost.attention_width * (TOKENS + 1) / 2
    prompt = TOKENS * (15 * layer + 16 * 3 * layer + 15 * cost.added_macs + 16 * 18 * layer)
    prompt += 16 * ANSWER * cost.head_macs
    answers = ANSWER * sum(cost.macs(depth, TOKENS) for depth in range(1, 17))
    found = lines["sweep test"].demand
    assert found.flops == pytest.approx(2 * 2400 * 2 * (prompt + answers))
    assert (found.items, found.passes) == (2 * 2400, 2 * 2400 * 16)
    assert found.disk == pytest.approx(2 * 2400 * 16 * 2 * 2560 * 4, rel=0.01)  # both pooled states


def test_stage_2_is_below_a_fifth_of_stage_1_at_8b_and_evaluations_are_the_papers():
    page = [
        line.split(" | ") for line in open_page() if line.startswith(("| sweep train", "| train loop", "| evaluate"))
    ]
    eight = {row[0].strip("| "): row for row in page}  # the last table is of 8B
    assert float(eight["sweep train"][4]) < 0.2 * float(eight["train loop"][4])
    assert eight["evaluate base"][2] == "53,093"  # 45,579 + 4,784 + 2,730


def open_page():
    from tests.pages import ROOT

    return (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8").splitlines()


def test_sums():
    one = Demand(1, 2, 3.6e15, 4)
    assert one + one == one * 2
    assert one.gpu_hours(1) == 1.0


def test_what_is_done_is_not_counted_again(recipe, lines):
    assert {line.state for line in lines.values()} == {"to do"}
    pipeline = Pipeline(recipe)
    stages = pipeline.stages()
    states = pipeline.states(stages)
    (done,) = [stage for stage in stages if stage.name == "train loop 0"]
    done.makes[0].mkdir(parents=True)
    pipeline._note(done.name, states[done.name].digest, done=True)
    found = plan(recipe)
    by_name = {line.name: line for line in found}
    assert by_name["train loop"].state == "1 of 2 done"
    whole, rest = total(found), left(found)
    assert whole.flops - rest.flops == pytest.approx(by_name["train loop"].demand.flops / 2)


def test_the_command(base, tmp_path):
    given = ["run", "paper/qwen3-4b", "--set", f"base={base}", "--set", f"out={tmp_path / 'out'}", "--dry-run"]
    said = " ".join(run(*given, "--tflops", 100, "--gpus", 2).split())
    assert "At 100 TFLOP/s on each GPU" in said
    assert "hours on 2 GPUs" in said
    assert "to do" in said
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_hub(monkeypatch):
    def refuse(name, **hub):
        raise RecurTraceError(f"no model found at {name!r}.")

    monkeypatch.setattr("recurtrace.training.estimate.read_base_config", refuse)
    _is_out_of_reach.cache_clear()
    yield
    _is_out_of_reach.cache_clear()


def test_without_the_hub_the_papers_bases_have_the_shapes_that_are_known(no_hub, base, tmp_path, caplog):
    recipe = PipelineRecipe.read_with("paper/qwen3-4b", [f"out={tmp_path}", "seeds=[0]"])
    found = {line.name: line.demand for line in plan(recipe)}
    alone = estimate(TrainRecipe.read_with("paper/qwen3-4b-loop", []))
    assert found["train loop"].flops == pytest.approx(300 * alone.flops_per_step, rel=0.01)
    (said,) = [record.getMessage() for record in caplog.records if "shape" in record.getMessage()]
    assert said.startswith("no model found at 'Qwen/Qwen3-4B-Base'.")
    with pytest.raises(RecurTraceError, match="no model found at 'Qwen/Qwen3-4B'"):
        estimate(TrainRecipe.read_with("paper/qwen3-4b-loop", ["model=Qwen/Qwen3-4B"]))


def test_no_more_items_are_planned_than_there_are(base, tmp_path):
    """At 1.7B five tasks have heads of their own: 5,000, 1,000 and 1,500 items are asked of each."""
    recipe = PipelineRecipe.read_with(
        "paper/qwen3-1.7b", [f"base={base}", f"out={tmp_path}", "seeds=[0]", "ablations={}"]
    )
    found = {line.name: line.demand.items for line in plan(recipe)}
    assert found["sweep heldout"] == recipe.heldout == 1000  # MathQA has them all
    assert found["sweep tasks-train"] == 4 * 5000 + (1119 - 223)
    assert found["sweep tasks-heldout"] == 747 + 750 + 1000 + 223 + 1000  # a tenth of GSM8K and MATH, a fifth of ARC
    assert found["sweep tasks-test"] == 1319 + 1500 + 254 + 1172 + 1500
    less = recipe.model_copy(update={"tasks": ["strategyqa"], "task_heads": []})
    found = {line.name: line.demand.items for line in plan(less)}
    assert [found[f"sweep {split}"] for split in ("train", "heldout", "test")] == [1832 - 183, 183, 458]


def test_before_a_probe_a_block_in_the_middle_is_assumed(base):
    small = PipelineRecipe.read_with("smollm2/pipeline", [f"base={base}", "probe=100", "train.loop={}"])
    found = {line.name: line for line in plan(small)}
    assert found["probe"].demand.items == 100
    assert found["train loop"].demand.flops > 0
    assert found["sweep test"].demand.items == 200
