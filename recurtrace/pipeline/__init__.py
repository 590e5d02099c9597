"""The whole study from one recipe: `Pipeline(PipelineRecipe.read("embedded/demo")).run()`."""

from recurtrace.pipeline.order import Stage
from recurtrace.pipeline.recipe import PipelineRecipe
from recurtrace.pipeline.run import Pipeline

__all__ = ["Pipeline", "PipelineRecipe", "Stage"]
