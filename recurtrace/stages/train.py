"""Stage 1 and its baselines, and a small base of one's own. A recipe is the settings; its `out` is the run's folder."""

from recurtrace.records import BUDGET_FILE, Budget
from recurtrace.stages.settings import stage
from recurtrace.training.recipe import PretrainRecipe, TrainRecipe


@stage(TrainRecipe)
def train(settings: TrainRecipe) -> Budget:
    """Train the loop modules or a baseline into `out/model`; returns what it took."""
    from recurtrace.training.train import train as run

    return Budget.read(run(settings).parent / BUDGET_FILE)


@stage(PretrainRecipe)
def pretrain(settings: PretrainRecipe) -> Budget:
    """Make a small base from random weights in `out/model`; returns what it took."""
    from recurtrace.training.pretrain import pretrain as run

    return Budget.read(run(settings).parent / BUDGET_FILE)
