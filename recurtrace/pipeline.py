"""The whole study from one recipe: the order of the stages, what each depends on, and what need not be run again.

data → probe → train → sweep → distill → calibrate → compare → evaluate → cost → report. Stages meet in files, so each
can be run alone by its own command, with the same result; under a launcher they are.
"""

import hashlib
import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field, PositiveInt, model_validator

from recurtrace import stages
from recurtrace.assets import EMBEDDED, place
from recurtrace.depths import depth_limit
from recurtrace.errors import RecurTraceError
from recurtrace.files import Kind, claim_new, empty, load_manifest, lock, write_json
from recurtrace.halting.methods import OBJECTIVES, OWN_OBJECTIVE, PENALISED
from recurtrace.recipe import Name, Recipe, Seed, Switch
from recurtrace.stages.settings import StageSettings
from recurtrace.training.checkpoints import has_trained
from recurtrace.training.recipe import TrainRecipe

PIPELINE = Kind("pipeline", "stages", ())
TrainMethod = Literal["plain_loop", "full", "adapter"]


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
    """Number of inputs for the block probe. Default: no probe, the block is the training recipe's."""
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
        fields = {**self.train, **self.overrides.get(run.name, {})}
        loop = {**fields.get("loop", {}), **run.loop}
        if self.probe:  # which layers, and how many of them, it will say
            loop.pop("loop_num_layers", None)
            fields["probe"] = str(self.out / "probe.json")
        if run.start_from is not None:
            fields["start_from"] = str(self.run_folder(run.start_from, seed) / "model")
        made = {"model": self.base, "data": str(self.out / "mixture"), "method": run.method, "seed": seed, "loop": loop}
        made |= {"trust_remote_code": self.trust_remote_code}
        return {**fields, **made, "out": str(self.run_folder(run.name, seed))}

    def run_folder(self, run: str, seed: int) -> Path:
        return self.out / "runs" / run / f"seed-{seed}"

    def halting(self, seed: int) -> list["Halting"]:
        """Heads and the items they are compared on: the methods side by side, and the tasks one by one."""
        sampled = [{"count": count} for count in (self.head_examples, self.heldout, self.test)]
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


RUNS = ("loop", "plain-loop", "full", "adapter", "same-start-memory", "same-start-plain", "base")


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


SPLITS = ("train", "heldout", "test")
_ON_THE_BASE = ("data", "probe", "train", "evaluate base")


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


@dataclass(frozen=True)
class Stage:
    name: str
    steps: list[tuple[Callable[..., Any], Recipe]]
    """Functions of `recurtrace.stages`, each with its settings."""
    makes: list[Path]
    """What it writes, removed when it has to start again; a folder that can be resumed judges for itself."""
    after: list[str]
    """Stages it depends on."""

    def run(self, launcher: Sequence[str] = ()) -> None:
        """A launcher of several processes runs the commands that share their work."""
        for number, (function, settings) in enumerate(self.steps):
            if launcher and function in SHARED:
                _launch(launcher, settings, self.makes[0].with_name(f".{self.makes[0].name}-{number}.yaml"))
            else:
                function(settings)


SHARED = (stages.train, stages.sweep, stages.evaluate)
"""Stages whose work several processes share."""


def _launch(launcher: Sequence[str], settings: Recipe, file: Path) -> None:
    if isinstance(settings, StageSettings):
        words = shlex.split(settings.command())[1:]
    else:  # training is told by a recipe
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
        words = ["train", str(file)]
        words += ["--trust-remote-code"] if isinstance(settings, TrainRecipe) and settings.trust_remote_code else []
    command = [*launcher, "-m", "recurtrace", *words]
    try:
        done = subprocess.run(command)
    except FileNotFoundError as error:
        raise RecurTraceError(f"there is no launcher {launcher[0]!r}; check --launch.") from error
    if done.returncode:
        raise RecurTraceError(f"`{shlex.join(command)}` ended with {done.returncode}; its output is above.")
    file.unlink(missing_ok=True)


@dataclass(frozen=True)
class State:
    """How far a stage is."""

    digest: str
    """Of all that its result depends on now."""
    begun: str | None
    """The same when it was run last; None: never."""
    done: bool

    def __str__(self) -> str:
        if self.begun is None:
            return "to do"
        return "done" if self.done else "begun" if self.begun == self.digest else "changed, runs again"


class Pipeline:
    def __init__(self, recipe: PipelineRecipe, tell: Callable[[str, bool], None] = lambda name, skipped: None):
        """`tell(name, skipped)` is called before each stage: an interface may show where it is."""
        self.recipe, self.out, self.tell = recipe, recipe.out, tell

    def run(self, only: Sequence[str] = (), launcher: Sequence[str] = ()) -> Path:
        """Run what is not done; returns the report's page.

        `only` are patterns of stages to run, so that machines that share the folder can divide them. `launcher` is a
        command that starts several processes, such as `accelerate launch`.
        """
        self._adopt_earlier()
        plan = self.stages()
        states = self.states(plan)
        if unknown := [pattern for pattern in only if not any(fnmatch(name, pattern) for name in states)]:
            raise RecurTraceError(f"no stage is called {unknown[0]!r}; the stages are {', '.join(states)}.")
        if not (self.out / PIPELINE.manifest).is_dir():
            claim_new(self.out, PIPELINE, self.recipe.overwrite)
        chosen = [stage for stage in plan if not only or any(fnmatch(stage.name, pattern) for pattern in only)]
        for stage in chosen:
            self._refuse(stage, states[stage.name])  # all of them before anything is changed
        if any(stage.name.startswith(_ON_THE_BASE) and not states[stage.name].done for stage in chosen):
            self._check_base()
        for stage in chosen:
            file = self._file(stage.name).with_suffix(".lock")
            file.parent.mkdir(parents=True, exist_ok=True)
            with lock(file, f"{stage.name} of {str(self.out)!r} is being run"):
                states = self.states(plan)  # anew: other machines may have finished something
                if states[stage.name].done:
                    self.tell(stage.name, True)
                    continue
                if missing := [name for name in stage.after if not states[name].done]:
                    raise RecurTraceError(f"{stage.name} needs {missing[0]}, which is not done; run that first.")
                self._prepare(stage, states[stage.name])
                self.tell(stage.name, False)
                stage.run(launcher)
                self._note(stage.name, states[stage.name].digest, done=True)
        return self.out / "report" / "report.html"

    def _check_base(self) -> None:
        """Refuse a base that cannot be looped or trained as the recipe says, before data is built for it."""
        from recurtrace.model.base import read_base_config
        from recurtrace.model.positions import longest_input
        from recurtrace.training.methods import fitted, loop_config

        recipe, remedy = self.recipe, "lower max_length in the recipe, or set extrapolate there"
        config = read_base_config(place(recipe.base), trust_remote_code=recipe.trust_remote_code)
        longest_input(config, recipe.max_length, 1024, recipe.extrapolate, remedy)
        for run in recipe.runs():
            made = TrainRecipe.check(recipe.training(run, recipe.seeds[0]), f"train ({run.name})")
            fitted(made, config)
            if not recipe.probe and run.start_from is None:  # else the block is not known yet
                loop_config(made, config)

    def states(self, plan: Sequence[Stage]) -> dict[str, "State"]:
        """How far every stage is, as the files say."""
        found: dict[str, State] = {}
        for stage in plan:
            digest = self._digest(stage, {name: state.digest for name, state in found.items()})
            file = self._file(stage.name)
            noted = load_manifest(file, "pipeline", "recurtrace run") if file.is_file() else {}
            begun = noted.get("digest")
            done = begun == digest and noted["done"] and all(path.exists() for path in stage.makes)
            found[stage.name] = State(digest, begun, done)
        return found

    def _refuse(self, stage: Stage, state: "State") -> None:
        """What is not removed for a stage that starts again: what this pipeline did not make, and long work."""
        if state.begun == state.digest:
            return
        if state.begun is None and (foreign := [path for path in stage.makes if path.exists()]):
            raise RecurTraceError(f"{str(foreign[0])!r} exists and was not made by this pipeline; choose another out.")
        if (trained := [path for path in stage.makes if has_trained(path)]) and not self.recipe.overwrite:
            raise RecurTraceError(
                f"{str(trained[0])!r} was trained with other settings or on other data; choose another out, or pass "
                "--overwrite to train it again."
            )

    def _prepare(self, stage: Stage, state: "State") -> None:
        """What an earlier run left of a stage that has changed is removed."""
        if state.begun != state.digest:
            self._refuse(stage, state)
            self._note(stage.name, "being removed", done=False)
            for path in stage.makes:
                empty(path) if path.is_dir() else path.unlink(missing_ok=True)
        self._note(stage.name, state.digest, done=False)

    def _file(self, name: str) -> Path:
        """A file for each stage, so that several machines can write theirs."""
        return self.out / "stages" / f"{name.replace(' ', '-')}.json"

    def _note(self, name: str, digest: str, done: bool) -> None:
        write_json(self._file(name), {"digest": digest, "done": done})

    def _adopt_earlier(self) -> None:
        """Folders of an earlier version kept all stages in one file."""
        file = self.out / "stages.json"
        if file.is_file():
            finished = load_manifest(file, "pipeline", "recurtrace run")
            for name, digest in finished.pop("begun", {}).items():
                self._note(name, digest, finished.get(name) == digest)
            file.unlink()

    def _digest(self, stage: Stage, digests: dict[str, str]) -> str:
        """Of all that a stage's result depends on; where the whole of it lies does not matter."""
        settings: list[Any] = [step.model_dump(mode="json") for _, step in stage.steps]
        if stage.name == "data":  # what the recipe says, not where it lies: the package may be installed anew
            settings[0]["recipe"] = self.recipe.mixture.read_text(encoding="utf-8")
        text = json.dumps(self._anywhere(settings), sort_keys=True)
        return hashlib.sha256("\0".join([text, *(digests[name] for name in stage.after)]).encode()).hexdigest()[:16]

    def _anywhere(self, value: Any) -> Any:
        """Settings with the place of the whole taken out of every path."""
        if isinstance(value, dict):
            return {name: self._anywhere(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self._anywhere(part) for part in value]
        inside = isinstance(value, str) and f"{value}/".startswith(f"{self.out}/")
        return f"OUT{value.removeprefix(str(self.out))}" if inside else value

    def stages(self) -> list[Stage]:
        recipe, out = self.recipe, self.out
        plan = [self._data(), *([self._probe()] if recipe.probe else [])]
        plan.append(self._evaluate("base", recipe.base, out / "evaluations" / "base", [1], "data"))
        for seed in recipe.seeds:
            plan += [self._train(run, seed) for run in recipe.runs()]
            plan += [stage for group in recipe.halting(seed) for stage in self._halting(seed, group)]
            plan += [self._evaluate_run(run, seed) for run in recipe.runs()]
        timed = recipe.run_folder("loop", recipe.seeds[0]) / "model"
        trust = recipe.trust_remote_code
        settings = stages.CostSettings(model=str(timed), out=out / "cost.json", trust_remote_code=trust)
        plan.append(Stage("cost", [(stages.cost, settings)], [out / "cost.json"], [f"train loop {recipe.seeds[0]}"]))
        before = [stage.name for stage in plan if stage.name.startswith(("compare", "evaluate", "cost"))]
        page = stages.ReportSettings(
            folder=out, title=f"RecurTrace on {recipe.base if recipe.base in EMBEDDED else Path(recipe.base).name}"
        )
        return [*plan, Stage("report", [(stages.report, page)], [out / "report"], before)]

    def _data(self) -> Stage:
        recipe, out = self.recipe, self.out / "mixture"
        settings = stages.DataSettings(
            recipe=recipe.mixture, out=out, data_dir=recipe.data_dir, skip_missing=recipe.skip_missing
        )
        return Stage("data", [(stages.data, settings)], [out], [])

    def _probe(self) -> Stage:
        recipe, out = self.recipe, self.out / "probe.json"
        layers = recipe.train.get("loop", {}).get("loop_num_layers", 3)
        fields = {"base": recipe.base, "data": str(self.out / "mixture"), "inputs": recipe.probe, "out": out}
        fields |= {"trust_remote_code": recipe.trust_remote_code}
        settings = stages.ProbeSettings.check({**fields, "loop_num_layers": layers}, "probe")
        return Stage("probe", [(stages.probe, settings)], [out], ["data"])

    def _train(self, run: Run, seed: int) -> Stage:
        recipe = TrainRecipe.check(self.recipe.training(run, seed), f"train ({run.name})")
        after = ["data", *(["probe"] if self.recipe.probe else [])]
        after += [f"train {run.start_from} {seed}"] if run.start_from else []
        return Stage(f"train {run.name} {seed}", [(stages.train, recipe)], [recipe.out], after)

    def _halting(self, seed: int, group: Halting) -> list[Stage]:
        """Sweeps, heads with their thresholds in a copy of the model, and the comparison on the test items."""
        recipe, out = self.recipe, self.out
        trained = recipe.run_folder("loop", seed) / "model"
        sweeps = {split: out / "sweeps" / f"seed-{seed}" / group.called(split) for split in SPLITS}
        plan = []
        for split, folder in sweeps.items():
            fields = {"model": str(trained), "out": folder, "split": split, **group.samples[split]}
            fields |= {"depths": range(1, recipe.depth + 1), "tasks": group.tasks, **self._on_mixture()}
            settings = stages.SweepSettings.check(fields, "sweep")
            name = f"sweep {group.called(split)} {seed}"
            plan.append(Stage(name, [(stages.sweep, settings)], [folder], [f"train loop {seed}"]))
        steps: list[tuple[Callable[..., Any], Recipe]] = []
        for one in group.heads:
            made = {"seed": seed, **recipe.distill, **one.settings}
            head = stages.DistillSettings(
                model=group.start,
                sweep=sweeps["train"],
                objective=one.objective,
                head=one.name,
                tasks=one.tasks,
                out=group.model,
                set=made,
            )
            point = stages.CalibrateSettings(
                model=group.model,
                sweep=sweeps["heldout"],
                head=head.head_name,
                tasks=one.tasks,
                min_depth=one.floor,
                max_depth=recipe.max_depth or recipe.depth,
            )
            steps += [(stages.distill, head), (stages.calibrate, point)]
        swept = [stage.name for stage in plan]
        distill = " ".join(["distill", *([group.name] if group.name else []), str(seed)])
        after = [*swept[:2], *([f"distill {seed}"] if group.name else [])]
        plan.append(Stage(distill, steps, [group.model], after))
        analysis = out / ("task-analysis" if group.name else "analysis") / f"seed-{seed}.json"
        compared = stages.CompareSettings(
            model=group.model,
            heldout=sweeps["heldout"],
            test=sweeps["test"],
            every_threshold=recipe.every_threshold,
            floor=recipe.floor,
            max_depth=recipe.max_depth,
            out=analysis,
        )
        compare = distill.replace("distill", "compare")
        return [*plan, Stage(compare, [(stages.compare, compared)], [analysis], [distill, swept[2]])]

    def _evaluate_run(self, run: Run, seed: int) -> Stage:
        recipe, out = self.recipe, self.out / "evaluations" / run.name / f"seed-{seed}"
        if run.name == "loop":
            return self._evaluate(f"loop {seed}", str(recipe.model(seed)), out, list(recipe.loops), f"distill {seed}")
        loops = [t for t in recipe.loops if t != "adaptive"] if run.looped else [1]
        model = str(recipe.run_folder(run.name, seed) / "model")
        return self._evaluate(f"{run.name} {seed}", model, out, loops, f"train {run.name} {seed}")

    def _evaluate(self, name: str, model: str, out: Path, loops: list[Any], after: str) -> Stage:
        fields = {"model": model, "out": out, "loops": loops, **self._on_mixture()}
        fields |= {"data": self.recipe.suites, "sampled": True} if self.recipe.suites else {"count": self.recipe.test}
        settings = stages.EvaluateSettings.check(fields, "evaluate")
        return Stage(f"evaluate {name}", [(stages.evaluate, settings)], [out], list(dict.fromkeys(["data", after])))

    def _on_mixture(self) -> dict[str, Any]:
        recipe = self.recipe
        sized = {"batch_size": recipe.batch_size, "max_length": recipe.max_length, "seed": recipe.seed}
        sized |= {"extrapolate": True} if recipe.extrapolate else {}
        sized |= {"trust_remote_code": recipe.trust_remote_code}
        return {"data": str(self.out / "mixture"), "data_dir": recipe.data_dir, **sized}
