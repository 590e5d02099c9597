"""The order of the stages: what each runs with, writes, and depends on.

data → probe → train → sweep → distill → calibrate → compare → evaluate → cost → report.
"""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recurtrace import stages
from recurtrace.assets import EMBEDDED
from recurtrace.errors import RecurTraceError
from recurtrace.pipeline.recipe import SPLITS, Halting, PipelineRecipe, Run
from recurtrace.recipe import Recipe
from recurtrace.stages.settings import StageSettings
from recurtrace.training.recipe import TrainRecipe


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


class Order:
    """The stages of a recipe."""

    def __init__(self, recipe: PipelineRecipe):
        self.recipe, self.out = recipe, recipe.out

    def stages(self) -> list[Stage]:
        recipe, out = self.recipe, self.out
        plan = [self._data(), *([self._probe()] if recipe.probe else [])]
        plan.append(self._evaluate("base", recipe.base, out / "evaluations" / "base", [1], "data"))
        for seed in recipe.seeds:
            plan += [self._train(run, seed) for run in recipe.runs()]
            plan += [stage for group in recipe.halting(seed) for stage in self._halting(seed, group)]
            plan += [self._evaluate_run(run, seed) for run in recipe.runs()]
        if recipe.full_test:
            plan.append(self._full_test(recipe.seeds[0]))
        timed = recipe.run_folder("loop", recipe.seeds[0]) / "model"
        trust = recipe.trust_remote_code
        settings = stages.CostSettings(model=str(timed), out=out / "cost.json", trust_remote_code=trust)
        plan.append(Stage("cost", [(stages.cost, settings)], [out / "cost.json"], [f"train loop {recipe.seeds[0]}"]))
        before = [stage.name for stage in plan if stage.name.startswith(("probe", "compare", "evaluate", "cost"))]
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
        after = ["data", *(["probe"] if recipe.probe else [])]
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
        fields |= {"data": self.recipe.suites, "sampled": True} if self.recipe.suites else self.recipe.test_sample
        settings = stages.EvaluateSettings.check(fields, "evaluate")
        return Stage(f"evaluate {name}", [(stages.evaluate, settings)], [out], list(dict.fromkeys(["data", after])))

    def _full_test(self, seed: int) -> Stage:
        out, model = self.out / "full-test", str(self.recipe.model(seed))
        fields = {"model": model, "out": out, "loops": [2, "adaptive"], "tasks": self.recipe.tasks}
        settings = stages.EvaluateSettings.check({**fields, **self._on_mixture()}, "evaluate")
        return Stage("evaluate full-test", [(stages.evaluate, settings)], [out], [f"distill {seed}"])

    def _on_mixture(self) -> dict[str, Any]:
        recipe = self.recipe
        sized = {"batch_size": recipe.batch_size, "max_length": recipe.max_length, "seed": recipe.seed}
        sized |= {"extrapolate": True} if recipe.extrapolate else {}
        sized |= {"trust_remote_code": recipe.trust_remote_code}
        return {"data": str(self.out / "mixture"), "data_dir": recipe.data_dir, **sized}
