"""The recipe of a whole study: what is trained, which heads are made, what is measured."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from recurtrace.depths import depth_limit
from recurtrace.halting.methods import OBJECTIVES, OWN_OBJECTIVE, PENALISED
from recurtrace.recipe import Name, Recipe, Seed, Switch
from recurtrace.training.recipe import TrainRecipe

TrainMethod = Literal["plain_loop", "full", "adapter"]
RUNS = ("loop", "plain-loop", "full", "adapter", "same-start-memory", "same-start-plain", "base")
SPLITS = ("train", "heldout", "test")


class PipelineRecipe(Recipe):
    """Everything from a base to a report."""

    paths: ClassVar[tuple[str, ...]] = ("out", "base", "data_dir")
    recipes: ClassVar[tuple[str, ...]] = ("mixture",)

    root: Path | None = None
    """Folder that relative paths start from, itself relative to the recipe. Default: the working directory."""
    base: str
    """Hub id or folder of the base; embedded/base is the one that comes with the package."""
    out: Path
    """Folder for all of it."""
    mixture: Path
    """Recipe of the data, found from this recipe's folder."""
    data_dir: Path | None = None
    """Folder with the datasets, instead of the hub."""
    skip_missing: bool = False
    """Leave out data that cannot be found, and list it."""
    probe: PositiveInt | None = None
    """Number of inputs for the block probe, which finds the block unless train.loop names it (loop_start). Default: no
    probe."""
    train: dict[str, Any]
    """Fields of a training recipe; model, data, out, method and seed are filled in."""
    seeds: list[Seed] = Field([0], min_length=1)
    """Training seeds. Everything is trained and measured once for each, on the same items; one that is added later
    leaves the others as they are."""
    baselines: list[TrainMethod] = []
    """Trained under the same budget, and evaluated."""
    ablations: dict[Name, dict[str, Any]] = {}
    """Further looped runs by name, with the fields of the loop's config that differ, as in window-1:
    {loop_memory_window: 1}; with loop_memory: false it is plain looping."""
    same_start: bool = False
    """Continue the plain-looping run with memory and without, for as many steps: the matched same-start control."""
    overrides: dict[str, dict[str, Any]] = {}
    """Fields of the training recipe that differ for a run, by its name: full: {learning_rate: 5.0e-4}."""
    tasks: list[str] = []
    """Tasks of the mixture that heads, thresholds and the comparison of methods are made on. Default: all of them."""
    suites: str | None = None
    """Tasks and suites to evaluate on, sampled as in the paper (`recurtrace data list`). Default: `test` items of the
    mixture's tasks."""
    head_examples: PositiveInt = 5000
    """Training examples to sweep for heads."""
    heldout: PositiveInt = 1000
    """Held-out examples to sweep for thresholds."""
    test: PositiveInt = 2400
    """Test items to sweep, and to evaluate where no suites are named, over all tasks."""
    test_per_task: PositiveInt | None = None
    """Test items of each task, instead of `test` over all of them."""
    depth: int = Field(16, ge=2)
    """Deepest loop of the sweeps."""
    heads: list[str] = list(OBJECTIVES)
    """Heads to distill; the oracle's becomes the model's own."""
    strengths: list[float] = []
    """Further strengths of ACT's penalty and PonderNet's prior, each a head of its own."""
    task_heads: list[Name] = []
    """Tasks that each get a head and a threshold of their own, without a floor. One that is not in the mixture has
    a part of its own training data held out."""
    task_items: PositiveInt = 1500
    """Test items of each of these tasks, at most."""
    distill: dict[str, Any] = {}
    """Settings of every head's training."""
    floor: PositiveInt | None = None
    """Smallest depth of the calibrated methods; the paper's is 2. Default: the fixed depth of lowest held-out loss,
    which is how the paper came to it."""
    max_depth: PositiveInt | None = None
    """Largest depth (budget) of the halting methods. Default: the deepest loop of the sweeps, as in the paper."""
    every_threshold: bool = False
    """Choose every method's threshold on held-out items, ACT's and PonderNet's too."""
    loops: list[int | Literal["adaptive", "k"]] = [1, 2, 4, 6, 8, "adaptive"]
    """Depths to evaluate at."""
    full_test: Switch = False
    """Evaluate the first seed on every test item of `tasks` too, at two loops and adaptively."""
    batch_size: PositiveInt = 16
    max_length: PositiveInt | None = None
    """Longest example of the sweeps and evaluations. Default: 1,024, or the positions of the base if it has fewer."""
    extrapolate: Switch = False
    """Allow a longer max_length than the base has positions."""
    seed: Seed = 0
    """Seed of the samples."""
    overwrite: bool = Field(default=False, exclude=True)
    """Train again what was trained with other settings; given with the command, not in a recipe."""
    trust_remote_code: bool = Field(default=False, exclude=True)
    """Run code that comes with the base; given with the command, not in a recipe."""

    @model_validator(mode="after")
    def _check(self) -> "PipelineRecipe":
        if filled := [name for name in ("model", "data", "out", "method", "seed") if name in self.train]:
            raise ValueError(f"train.{filled[0]} is set by the pipeline; leave it out")
        if self.same_start and "plain_loop" not in self.baselines:
            raise ValueError("same_start continues the plain-looping run; add plain_loop to baselines")
        known = [run.name for run in self.runs()]
        if len(set(known)) < len(known):
            raise ValueError(f"two runs have the same name; ablations must not be called {', '.join(RUNS)}")
        if unknown := [name for name in self.overrides if name not in known]:
            raise ValueError(f"overrides names {unknown[0]!r}, which is not among the runs {', '.join(known)}")
        if unknown := [name for name in self.heads if name not in OBJECTIVES]:
            raise ValueError(f"there is no objective {unknown[0]!r} for a head; they are {', '.join(OBJECTIVES)}")
        if OWN_OBJECTIVE not in self.heads:
            raise ValueError(f"heads must include {OWN_OBJECTIVE}, which becomes the model's own head")
        for run in self.runs():
            TrainRecipe.check(self.training(run, self.seeds[0]), f"train ({run.name})")  # refused now, not after hours
        self._check_distill()
        return self

    @model_validator(mode="after")
    def _check_floor(self) -> "PipelineRecipe":
        deepest = min(self.max_depth or self.depth, self.depth)
        if (self.floor or 1) > deepest:
            raise ValueError(f"floor {self.floor} is beyond the largest depth of {deepest}")
        return self

    @model_validator(mode="after")
    def _check_depths(self) -> "PipelineRecipe":
        asked = {"depth": self.depth, "loops": max([1, *(one for one in self.loops if isinstance(one, int))])}
        for run in (run for run in self.runs() if run.looped):
            recipe = TrainRecipe.check(self.training(run, self.seeds[0]), f"train ({run.name})")
            trained, limit = recipe.loop.get("loop_train_max", 8), recipe.loop.get("loop_depth_limit")
            if not isinstance(trained, int) or not isinstance(limit, int | None):
                continue  # training says what is wrong with them
            for name, depth in (asked | {"train.evaluate_depths": max(recipe.evaluate_depths)}).items():
                if depth > depth_limit(trained, limit):
                    raise ValueError(
                        f"{name} goes to {depth:,}, beyond the limit of {depth_limit(trained, limit)} for {run.name}, "
                        f"trained on up to {trained:,} loops; lower it, or set train.loop.loop_depth_limit"
                    )
        return self

    def _check_distill(self) -> None:
        from recurtrace.halting.objectives import DistillRecipe

        probes = DistillRecipe.check(self.distill, "distill").probe_depths
        if max(probes) > self.depth:
            raise ValueError(f"distill.probe_depths go to {max(probes)}, beyond the pipeline's depth of {self.depth}")

    def runs(self) -> list["Run"]:
        """What is trained, for every seed."""
        found = [Run(method.replace("_", "-"), method) for method in ("loop", *self.baselines)]
        for name, fields in self.ablations.items():
            found.append(Run(name, "plain_loop" if fields.get("loop_memory") is False else "loop", loop=fields))
        if self.same_start:
            found += [
                Run("same-start-memory", "loop", "plain-loop"),
                Run("same-start-plain", "plain_loop", "plain-loop"),
            ]
        return found

    def training(self, run: "Run", seed: int) -> dict[str, Any]:
        """Fields of the training recipe of a run."""
        own = self.overrides.get(run.name, {})
        fields = {**(self.train if run.looped else self._without_loops(run.method)), **own}
        loop = {**self.train.get("loop", {}), **own.get("loop", {}), **run.loop}
        if self.probe and "loop_start" not in loop:  # which layers, and how many of them, it will say
            loop.pop("loop_num_layers", None)
            fields["probe"] = str(self.out / "probe.json")
        if run.start_from is not None:
            fields["start_from"] = str(self.run_folder(run.start_from, seed) / "model")
        made = {"model": self.base, "data": str(self.out / "mixture"), "method": run.method, "seed": seed, "loop": loop}
        made |= {"trust_remote_code": self.trust_remote_code}
        return {**fields, **made, "out": str(self.run_folder(run.name, seed))}

    def _without_loops(self, method: str) -> dict[str, Any]:
        """The shared fields for a rival of the loop; beside a block that learns, the adapter has as many parameters."""
        fields = {
            name: value for name, value in self.train.items() if name not in ("train_block", "block_learning_rate")
        }
        return {**fields, "match_block": True} if method == "adapter" and self.train.get("train_block") else fields

    def run_folder(self, run: str, seed: int) -> Path:
        return self.out / "runs" / run / f"seed-{seed}"

    @property
    def test_sample(self) -> dict[str, int]:
        return {"per_task": self.test_per_task} if self.test_per_task else {"count": self.test}

    def halting(self, seed: int) -> list["Halting"]:
        """Heads and the items they are compared on: the methods side by side, and the tasks one by one."""
        sampled = [{"count": self.head_examples}, {"count": self.heldout}, self.test_sample]
        heads = [Head(objective, floor=self.floor) for objective in self.heads]
        heads += [
            Head(
                objective,
                f"{objective}-{strength:g}".replace(".", "_"),
                floor=self.floor,
                settings={"regularization": strength},
            )
            for objective in PENALISED
            for strength in self.strengths
            if objective in self.heads
        ]
        trained = self.run_folder("loop", seed) / "model"
        found = [Halting("", trained, self.model(seed), heads, self.tasks, dict(zip(SPLITS, sampled, strict=True)))]
        if self.task_heads:
            sampled = [{"per_task": count} for count in (self.head_examples, self.heldout, self.task_items)]
            heads = [Head(OWN_OBJECTIVE, task, [task], floor=1) for task in self.task_heads]
            samples = dict(zip(SPLITS, sampled, strict=True))
            model = self.out / "task-models" / f"seed-{seed}"
            found.append(Halting("tasks", self.model(seed), model, heads, self.task_heads, samples))
        return found

    def model(self, seed: int) -> Path:
        """The looped model with its heads."""
        return self.out / "models" / f"seed-{seed}"


@dataclass(frozen=True)
class Run:
    """Something to train."""

    name: str
    method: str
    start_from: str | None = None
    """The run it continues."""
    loop: dict[str, Any] = field(default_factory=dict)
    """Fields of the loop's config that are its own."""

    @property
    def looped(self) -> bool:
        return self.method in ("loop", "plain_loop")


@dataclass(frozen=True)
class Head:
    """A halting head to distill and to calibrate."""

    objective: str
    name: str | None = None
    """None: as `distill` names it."""
    tasks: list[str] = field(default_factory=list)
    """Tasks it is trained and calibrated on; all of the sweeps if there are none."""
    floor: int | None = None
    """Smallest depth; None: chosen on held-out items."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of its training, where they are its own."""


@dataclass(frozen=True)
class Halting:
    """Some heads, and the sweeps they are made and compared on."""

    name: str
    """What its stages and sweeps are called, beside the split."""
    start: Path
    """The model they are put into a copy of."""
    model: Path
    """That copy."""
    heads: list[Head]
    tasks: list[str]
    """Of the mixture; all if there are none."""
    samples: dict[str, dict[str, int]]
    """How many examples of each split."""

    def called(self, what: str) -> str:
        return f"{self.name}-{what}" if self.name else what
