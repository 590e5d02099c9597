"""A small base in a folder and a small mixture, for runs that take seconds."""

from pathlib import Path

import pytest

from recurtrace.data.mixture import MixtureRecipe, build
from recurtrace.training.recipe import TrainRecipe
from tests.conftest import SIZES


@pytest.fixture(scope="session")
def mixture(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "mixture"
    sources = [{"task": task, "count": 150} for task in ("p_hop", "symbolic", "arithmetic")]
    build(MixtureRecipe.check({"sources": sources, "audit": [], "heldout": 12, "sizes": SIZES}, "recipe"), folder)
    return folder


@pytest.fixture
def recipe(base_folder, mixture, tmp_path):
    """A recipe of six short steps; fields may be changed."""

    def make(name: str = "run", **fields) -> TrainRecipe:
        return TrainRecipe.check(
            {
                "model": str(base_folder),
                "data": str(mixture),
                "out": str(tmp_path / name),
                "loop": {"loop_start": 2, "loop_attn_head_dim": 8},
                "steps": 6,
                "batch_size": 8,
                "micro_batch_size": 4,
                "max_length": 64,
                "learning_rate": 1e-2,
                "precision": "fp32",
                "evaluate_every": 3,
                "save_every": 2,
                "log_every": 1,
                "evaluate_depths": [1, 2, 4],
                **fields,
            },
            "recipe",
        )

    return make
