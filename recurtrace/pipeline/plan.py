"""What a pipeline would take, stage by stage, before anything is loaded: items, forward passes, FLOPs, bytes on disk.

Counted from the recipe and the shapes of its base. What only the data could say is assumed and named: tokens of an
example, and that every greedy answer is written out to its last token, so sweeps and evaluations come out high.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from recurtrace import stages
from recurtrace.assets import place
from recurtrace.data.counts import COUNTS, evaluated
from recurtrace.data.mixture import MixtureRecipe, Source, is_mixture, mixture_sizes
from recurtrace.data.selection import OWN_HELDOUT, named_tasks
from recurtrace.data.synthetic import TRAIN_ITEMS
from recurtrace.model.configuration_recurtrace import RecurTraceConfig
from recurtrace.model.cost import Cost, cost_of
from recurtrace.pipeline.order import Stage
from recurtrace.pipeline.recipe import PipelineRecipe
from recurtrace.pipeline.run import Pipeline
from recurtrace.training.estimate import estimate, shape_of_base
from recurtrace.training.methods import loop_config
from recurtrace.training.recipe import TrainRecipe

TOKENS = 190
"""Of an example, prompt and answer: 15 epochs of the paper's 1.15 M examples are 25,000 steps of 128 × 1024 tokens."""
ANSWER = 16
"""Longest answer of most tasks, in tokens."""
BYTES_PER_TOKEN = 2
"""Of an example's text in a compressed table."""


@dataclass(frozen=True)
class Demand:
    """What some stages take."""

    items: int = 0
    """Training sequences, or examples that are measured."""
    passes: int = 0
    """Times that one of them goes through the model: once a training step, once for every depth it is decoded at."""
    flops: float = 0.0
    disk: int = 0
    """Bytes that are written."""

    def __add__(self, other: "Demand") -> "Demand":
        disk = self.disk + other.disk
        return Demand(self.items + other.items, self.passes + other.passes, self.flops + other.flops, disk)

    def __mul__(self, times: float) -> "Demand":
        return Demand(
            round(self.items * times), round(self.passes * times), self.flops * times, round(self.disk * times)
        )

    def gpu_hours(self, tflops: float) -> float:
        return self.flops / (tflops * 1e12) / 3600


@dataclass(frozen=True)
class Planned:
    """A line of the plan: a stage, over all training seeds."""

    name: str
    demand: Demand
    states: list[str]
    """How far each of them is."""

    @property
    def state(self) -> str:
        if len(set(self.states)) == 1:
            return self.states[0]
        return f"{self.states.count('done')} of {len(self.states)} done"


def plan(recipe: PipelineRecipe, tokens: int = TOKENS) -> list[Planned]:
    pipeline = Pipeline(recipe)
    counted = _Counts(recipe, tokens)
    found = pipeline.stages()
    states = pipeline.states(found)
    seeds: dict[str, list[Stage]] = {}
    for stage in found:
        seeds.setdefault(re.sub(r" \d+$", "", stage.name), []).append(stage)
    lines = []
    for name, same in seeds.items():
        of_one_seed = sum((counted.of(function, settings) for function, settings in same[0].steps), Demand())
        lines.append(Planned(name, of_one_seed * len(same), [str(states[stage.name]) for stage in same]))
    return lines


class _Counts:
    """What one step takes; the base's shape and the mixture's size are looked up once."""

    def __init__(self, recipe: PipelineRecipe, tokens: int):
        self.recipe, self.tokens = recipe, min(tokens, recipe.max_length or tokens)
        self.base = shape_of_base(place(recipe.base))
        self.there = _There(recipe)
        self.examples = self.there.trained_on()
        self.config, self.cost = self._shape()
        self.table: dict[Callable[..., Any], Callable[[Any], Demand]] = {
            stages.data: self._data,
            stages.probe: self._probe,
            stages.train: self._train,
            stages.sweep: self._sweep,
            stages.evaluate: self._evaluate,
        }

    def of(self, function: Callable[..., Any], settings: Any) -> Demand:
        """The stages that are not in the table read files, and take seconds."""
        return self.table[function](settings) if function in self.table else Demand()

    def _data(self, settings: stages.DataSettings) -> Demand:
        return Demand(items=self.examples, disk=self.examples * self.tokens * BYTES_PER_TOKEN)

    def _probe(self, settings: stages.ProbeSettings) -> Demand:
        cost = self._shape()[1]
        return Demand(
            settings.inputs, settings.inputs, 2 * settings.inputs * self.tokens * cost.macs(1, self.tokens / 2)
        )

    def _train(self, settings: TrainRecipe) -> Demand:
        known = self._with_block(settings)
        one = estimate(known)
        per_step = known.batch_size * one.max_length
        steps = known.steps or round(float(known.epochs or 0) * self.examples * self.tokens / per_step)
        checkpoint = 4 * one.trained + one.optimizer_bytes
        packed = 4 * self.examples * self.tokens
        rows = steps * known.batch_size
        return Demand(rows, rows, steps * one.flops_per_step, packed + known.keep * checkpoint + 4 * one.trained)

    def _sweep(self, settings: stages.SweepSettings) -> Demand:
        items = self.there.sampled(settings.split, settings.tasks, settings.count, settings.per_task)
        states = 2 * 4 * self.base.hidden_size * len(settings.depths) if settings.states else 0
        return self._measured(items, list(settings.depths), states + 64 * len(settings.depths))

    def _evaluate(self, settings: stages.EvaluateSettings) -> Demand:
        items = (
            evaluated(named_tasks(settings.data))
            if settings.sampled
            else self.there.sampled(settings.split, settings.tasks, settings.count, settings.per_task)
        )
        fixed = [depth for depth in settings.loops if isinstance(depth, int)]
        named = [self.recipe.depth // 2 for depth in settings.loops if not isinstance(depth, int)]
        return self._measured(items, [*fixed, *named], 300 + 80 * len(settings.loops))

    def _measured(self, items: int, depths: list[int], bytes_per_item: int) -> Demand:
        """Every example at every depth, and its answer written out there."""
        read = self.cost.sweep_macs(depths, self.tokens, ANSWER, self.config.block.start)
        written = ANSWER * sum(self.cost.macs(depth, self.tokens) for depth in depths)
        return Demand(items, items * len(depths), 2 * items * (read + written), items * bytes_per_item)

    def _shape(self) -> tuple[RecurTraceConfig, Cost]:
        run = self.recipe.runs()[0]
        recipe = TrainRecipe.check(self.recipe.training(run, self.recipe.seeds[0]), "train")
        config = loop_config(self._with_block(recipe), self.base)
        return config, cost_of(config)

    def _with_block(self, recipe: TrainRecipe) -> TrainRecipe:
        """A block that a probe has yet to find costs what one in the middle does."""
        if recipe.probe is None or recipe.probe.is_file():
            return recipe.model_copy(update={"start_from": None})
        layers = self.recipe.train.get("loop", {}).get("loop_num_layers", 3)
        middle = {"loop_start": (self.base.num_hidden_layers - layers) // 2, "loop_num_layers": layers}
        return recipe.model_copy(update={"probe": None, "start_from": None, "loop": {**recipe.loop, **middle}})


class _There:
    """How many examples there are: of a mixture as its recipe asks for them, and of other tasks."""

    def __init__(self, recipe: PipelineRecipe):
        mixture = MixtureRecipe.read(recipe.mixture)
        self.kept = mixture.heldout
        self.sources = {source.name: source for source in mixture.sources}
        folder = recipe.out / "mixture"
        self.built = mixture_sizes(folder) if is_mixture(folder) else {}

    def trained_on(self) -> int:
        """In the mixture as it was built, or as it would be."""
        return sum(self.built.values()) or sum(int(self.of(name, "train")) for name in self.sources)

    def sampled(self, split: str, tasks: Sequence[str], count: int | None, per_task: int | None) -> int:
        """What a stage gets that asks for so many examples; fewer than it asks for where there are no more.

        A task whose test items are in no table counts as none, unless `count` or `per_task` bounds it.
        """
        wanted = tasks or [name for name, source in self.sources.items() if "test" in source.row.splits]
        each = [min(self.of(name, split), per_task or inf) for name in wanted]
        return int(min(sum(each), count)) if count else int(sum(number for number in each if number < inf))

    def of(self, task: str, split: str) -> float:
        """Examples of a task in a split; inf for a test that no table counts."""
        if split == "test":
            return COUNTS[task].test if task in COUNTS else inf
        source = self.sources.get(task)
        if source is None:  # the mixture lacks it: a part of its own training data is held out
            held_out = COUNTS[task].train // OWN_HELDOUT
            return held_out if split == "heldout" else COUNTS[task].train - held_out
        own_heldout = "heldout" in source.row.splits
        whole = _all_of(source, 0 if own_heldout else self.kept)
        held_out = self.kept if own_heldout else min(self.kept, whole // 10)
        return held_out if split == "heldout" else min(whole - (0 if own_heldout else held_out), source.count or whole)


def _all_of(source: Source, kept: int) -> int:
    """Training examples that a source is taken from: as the table counts them, or as its own file has lines.

    A generated or streamed one gives what it is asked for, and what is `kept` from training.
    """
    if source.row.endless:
        return source.count + kept if source.count else TRAIN_ITEMS
    if source.row.files:
        with source.row.files["train"].open("rb") as lines:
            return sum(1 for _ in lines)
    return COUNTS[source.name].train


def total(lines: Iterable[Planned]) -> Demand:
    return sum((line.demand for line in lines), Demand())


def left(lines: Iterable[Planned]) -> Demand:
    """What is not done; a line that is done for some seeds counts in its share."""
    found = Demand()
    for line in lines:
        found += line.demand * (1 - line.states.count("done") / len(line.states))
    return found
