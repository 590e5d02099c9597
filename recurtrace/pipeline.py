"""The whole study from one recipe: the order of the stages, what each depends on, and what need not be run again.

data → probe → train → sweep → distill → calibrate → compare → evaluate → cost → report. Stages meet in files, so each
can be run alone by its own command, with the same result.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from recurtrace import stages
from recurtrace.assets import EMBEDDED
from recurtrace.errors import RecurTraceError
from recurtrace.files import load_manifest, write_json
from recurtrace.halting.methods import OBJECTIVES, OWN_OBJECTIVE
from recurtrace.recipe import Recipe
from recurtrace.training.recipe import TrainRecipe

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
    seeds: list[int] = Field([0], min_length=1)
    """Training seeds. Everything is trained and measured once for each, on the same items; one that is added later
    leaves the others as they are."""
    baselines: list[TrainMethod] = []
    """Trained under the same budget, and evaluated."""
    ablations: dict[str, dict[str, Any]] = {}
    """Further looped runs by name, with the fields of the loop's config that differ, as in window-1:
    {loop_memory_window: 1}."""
    same_start: bool = False
    """Continue the plain-looping run with memory and without, for as many steps: the matched same-start control."""
    overrides: dict[str, dict[str, Any]] = {}
    """Fields of the training recipe that differ for a run, by its name: full: {learning_rate: 5.0e-4}."""
    head_examples: PositiveInt = 5000
    """Training examples to sweep for heads."""
    heldout: PositiveInt = 1000
    """Held-out examples to sweep for thresholds."""
    test: PositiveInt = 2400
    """Test items to sweep and evaluate, over all tasks."""
    depth: int = Field(16, ge=2)
    """Deepest loop of the sweeps."""
    heads: list[str] = list(OBJECTIVES)
    """Heads to distill; the oracle's becomes the model's own."""
    distill: dict[str, Any] = {}
    """Settings of every head's training."""
    loops: list[int | Literal["adaptive", "k"]] = [1, 2, 4, 6, 8, "adaptive"]
    """Depths to evaluate at."""
    batch_size: PositiveInt = 16
    max_length: PositiveInt = 1024
    seed: int = 0
    """Seed of the samples."""

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

    def _check_distill(self) -> None:
        from recurtrace.halting.objectives import DistillRecipe

        probes = DistillRecipe.check(self.distill, "distill").probe_depths
        if max(probes) > self.depth:
            raise ValueError(f"distill.probe_depths go to {max(probes)}, beyond the pipeline's depth of {self.depth}")

    def runs(self) -> list["Run"]:
        """What is trained, for every seed."""
        found = [Run(method.replace("_", "-"), method) for method in ("loop", *self.baselines)]
        found += [Run(name, "loop", loop=fields) for name, fields in self.ablations.items()]
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
        return {**fields, **made, "out": str(self.run_folder(run.name, seed))}

    def run_folder(self, run: str, seed: int) -> Path:
        return self.out / "runs" / run / f"seed-{seed}"

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


@dataclass(frozen=True)
class Stage:
    name: str
    steps: list[tuple[Callable[..., Any], Recipe]]
    """Functions of `recurtrace.stages`, each with its settings."""
    makes: list[Path]
    """What it writes, removed when it has to start again; a folder that can be resumed judges for itself."""
    after: list[str]
    """Stages it depends on."""

    def run(self) -> None:
        for function, settings in self.steps:
            function(settings)


class Pipeline:
    def __init__(self, recipe: PipelineRecipe, tell: Callable[[str, bool], None] = lambda name, skipped: None):
        """`tell(name, skipped)` is called before each stage: an interface may show where it is."""
        self.recipe, self.out, self.tell = recipe, recipe.out, tell
        self.file = recipe.out / "stages.json"

    def run(self) -> Path:
        """Run what is not done; returns the report's page."""
        digests: dict[str, str] = {}
        done: dict[str, Any] = load_manifest(self.file, "pipeline", "recurtrace run") if self.file.is_file() else {}
        begun: dict[str, str] = done.get("begun", {})
        for stage in self.stages():
            digest = digests[stage.name] = self._digest(stage, digests)
            if done.get(stage.name) == digest and all(path.exists() for path in stage.makes):
                self.tell(stage.name, True)
                continue
            if begun.get(stage.name) != digest:
                if stage.name not in begun and (foreign := [path for path in stage.makes if path.exists()]):
                    raise RecurTraceError(
                        f"{str(foreign[0])!r} exists and was not made by this pipeline; choose another out."
                    )
                for path in stage.makes:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            begun[stage.name] = digest
            write_json(self.file, {**done, "begun": begun})
            self.tell(stage.name, False)
            stage.run()
            done[stage.name] = digest
            write_json(self.file, {**done, "begun": begun})
        return self.out / "report" / "report.html"

    def _digest(self, stage: Stage, digests: dict[str, str]) -> str:
        """Of all that a stage's result depends on; where the whole of it lies does not matter."""
        settings: list[Any] = [step.model_dump(mode="json") for _, step in stage.steps]
        if stage.name == "data":  # what the recipe says, not what it is called
            settings.append(self.recipe.mixture.read_text(encoding="utf-8"))
        text = json.dumps(settings, sort_keys=True).replace(json.dumps(str(self.out))[1:-1], "OUT")
        return hashlib.sha256("\0".join([text, *(digests[name] for name in stage.after)]).encode()).hexdigest()[:16]

    def stages(self) -> list[Stage]:
        recipe, out = self.recipe, self.out
        plan = [self._data(), *([self._probe()] if recipe.probe else [])]
        plan.append(self._evaluate("base", recipe.base, out / "evaluations" / "base", [1], "data"))
        for seed in recipe.seeds:
            plan += [self._train(run, seed) for run in recipe.runs()]
            plan += self._halting(seed)
            plan += [self._evaluate_run(run, seed) for run in recipe.runs()]
        timed = recipe.run_folder("loop", recipe.seeds[0]) / "model"
        settings = stages.CostSettings(model=str(timed), out=out / "cost.json")
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
        settings = stages.ProbeSettings.check({**fields, "loop_num_layers": layers}, "probe")
        return Stage("probe", [(stages.probe, settings)], [out], ["data"])

    def _train(self, run: Run, seed: int) -> Stage:
        recipe = TrainRecipe.check(self.recipe.training(run, seed), f"train ({run.name})")
        after = ["data", *(["probe"] if self.recipe.probe else [])]
        after += [f"train {run.start_from} {seed}"] if run.start_from else []
        return Stage(f"train {run.name} {seed}", [(stages.train, recipe)], [recipe.out], after)

    def _halting(self, seed: int) -> list[Stage]:
        """Sweeps, heads with their thresholds in a copy of the trained model, and the comparison of all methods."""
        recipe, out = self.recipe, self.out
        trained, model = recipe.run_folder("loop", seed) / "model", recipe.model(seed)
        sweeps = {split: out / "sweeps" / f"seed-{seed}" / split for split in ("train", "heldout", "test")}
        counts = {"train": recipe.head_examples, "heldout": recipe.heldout, "test": recipe.test}
        plan = []
        for split, folder in sweeps.items():
            fields = {"model": str(trained), "out": folder, "split": split, "count": counts[split]}
            fields |= {"depths": range(1, recipe.depth + 1), **self._on_mixture()}
            settings = stages.SweepSettings.check(fields, "sweep")
            plan.append(Stage(f"sweep {split} {seed}", [(stages.sweep, settings)], [folder], [f"train loop {seed}"]))
        steps: list[tuple[Callable[..., Any], Recipe]] = []
        for objective in recipe.heads:
            made = {"seed": seed, **recipe.distill}
            head = stages.DistillSettings(
                model=trained, sweep=sweeps["train"], objective=objective, out=model, set=made
            )
            point = stages.CalibrateSettings(
                model=model, sweep=sweeps["heldout"], head=head.head_name, max_depth=recipe.depth
            )
            steps += [(stages.distill, head), (stages.calibrate, point)]
        plan.append(Stage(f"distill {seed}", steps, [model], [f"sweep train {seed}", f"sweep heldout {seed}"]))
        analysis = out / "analysis" / f"seed-{seed}.json"
        compared = stages.CompareSettings(model=model, heldout=sweeps["heldout"], test=sweeps["test"], out=analysis)
        after = [f"distill {seed}", f"sweep test {seed}"]
        return [*plan, Stage(f"compare {seed}", [(stages.compare, compared)], [analysis], after)]

    def _evaluate_run(self, run: Run, seed: int) -> Stage:
        recipe, out = self.recipe, self.out / "evaluations" / run.name / f"seed-{seed}"
        if run.name == "loop":
            return self._evaluate(f"loop {seed}", str(recipe.model(seed)), out, list(recipe.loops), f"distill {seed}")
        loops = [t for t in recipe.loops if t != "adaptive"] if run.looped else [1]
        model = str(recipe.run_folder(run.name, seed) / "model")
        return self._evaluate(f"{run.name} {seed}", model, out, loops, f"train {run.name} {seed}")

    def _evaluate(self, name: str, model: str, out: Path, loops: list[Any], after: str) -> Stage:
        fields = {"model": model, "out": out, "loops": loops, "count": self.recipe.test, **self._on_mixture()}
        settings = stages.EvaluateSettings.check(fields, "evaluate")
        return Stage(f"evaluate {name}", [(stages.evaluate, settings)], [out], list(dict.fromkeys(["data", after])))

    def _on_mixture(self) -> dict[str, Any]:
        recipe = self.recipe
        sized = {"batch_size": recipe.batch_size, "max_length": recipe.max_length, "seed": recipe.seed}
        return {"data": str(self.out / "mixture"), "data_dir": recipe.data_dir, **sized}
