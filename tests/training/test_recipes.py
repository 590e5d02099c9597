"""Every recipe that is shipped: read, with the paper's numbers, and estimated without being loaded."""

import pytest
import yaml
from transformers import Qwen3Config

from recurtrace.data.mixture import MixtureRecipe
from recurtrace.pipeline import PipelineRecipe
from recurtrace.training.estimate import estimate
from recurtrace.training.recipe import PretrainRecipe, TrainRecipe

SHAPES = {  # layers, hidden size, MLP width, heads, tied embeddings
    "0.6b": (28, 1024, 3072, 16, True),
    "1.7b": (28, 2048, 6144, 16, True),
    "4b": (36, 2560, 9728, 32, True),
    "8b": (36, 4096, 12288, 32, False),
}


def shipped(request, pattern):
    return {file.stem: file for file in (request.config.rootpath / "recurtrace" / "recipes").rglob(pattern)}


def test_the_papers_budgets(request):
    files = shipped(request, "qwen3-*.yaml")
    for scale, steps, epochs, rate in (
        ("0.6b", None, 15, 1e-4),
        ("1.7b", None, 15, 1e-4),
        ("4b", 300, None, 1e-5),
        ("8b", 800, None, 1e-5),
    ):
        runs = [TrainRecipe.read(files[f"qwen3-{scale}-{m}"]) for m in ("loop", "plain-loop", "full", "adapter")]
        assert [run.method for run in runs] == ["loop", "plain_loop", "full", "adapter"]
        for run in runs:  # the same budget throughout
            assert (run.steps, run.epochs, run.learning_rate) == (steps, epochs, rate)
            assert (run.batch_size, run.max_length, run.micro_batch_size) == (128, 1024, 2)
    run = TrainRecipe.read(files["qwen3-8b-loop"])
    assert run.steps * run.batch_size * run.max_length == pytest.approx(105e6, rel=0.01)


def test_every_recipe_is_valid(request):
    kinds = {"sources": MixtureRecipe, "architecture": PretrainRecipe, "mixture": PipelineRecipe, "method": TrainRecipe}
    for file in (request.config.rootpath / "recurtrace" / "recipes").glob("[!a]*/*.yaml"):
        fields = yaml.safe_load(file.read_text())
        next(kind for field, kind in kinds.items() if field in fields).read(file)


@pytest.mark.parametrize("scale", SHAPES)
def test_dry_run_at_the_papers_scales(request, tmp_path, scale):
    layers, hidden, mlp, heads, tied = SHAPES[scale]
    config = Qwen3Config(
        vocab_size=151936, num_hidden_layers=layers, hidden_size=hidden, intermediate_size=mlp,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    files = shipped(request, f"qwen3-{scale}-*.yaml")
    found = {
        method: estimate(TrainRecipe.read_with(files[f"qwen3-{scale}-{method}"], [f"model={tmp_path}"]))
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
