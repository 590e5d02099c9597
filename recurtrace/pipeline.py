"""The whole story from one recipe: probe → data → train → sweep → distil → calibrate → compare → evaluate → report.

Stages meet in files, so each can be run alone by its own command. A stage is skipped when what it depends on has not
changed since it was last finished; otherwise it starts anew, or goes on if it was interrupted.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator
from rich.console import Console

from recurtrace.data.mixture import MixtureRecipe, build, gather
from recurtrace.data.sampling import stratified
from recurtrace.errors import RecurTraceError
from recurtrace.files import write_json
from recurtrace.halting.distill import DistillRecipe
from recurtrace.recipe import Recipe
from recurtrace.training.recipe import TrainRecipe

TrainMethod = Literal["plain_loop", "full", "adapter"]
HeadObjective = Literal["oracle", "act", "pondernet", "loopus", "tah"]


class PipelineRecipe(Recipe):
    """Everything from a base to a report."""

    base: str
    """Hub id or folder of the base."""
    out: Path
    """Folder for all of it."""
    mixture: Path
    """Recipe of the data."""
    data_dir: Path | None = None
    """Folder with datasets, where the hub is not to be asked."""
    skip_missing: bool = False
    """Go on without data that is not there."""
    probe: PositiveInt | None = None
    """Inputs to probe for the block; without it the block is the training recipe's."""
    train: dict[str, Any]
    """Fields of a training recipe; model, data, out and method are filled in."""
    baselines: list[TrainMethod] = []
    """Trained under the same budget, and evaluated."""
    heldout: PositiveInt = 1000
    """Held-out examples to sweep for thresholds, and as many training examples for heads."""
    test: PositiveInt = 2400
    """Test items to sweep and evaluate, over all tasks."""
    depth: int = Field(16, ge=2)
    """Deepest loop of the sweeps."""
    heads: list[HeadObjective] = ["oracle", "act", "pondernet", "loopus", "tah"]
    """Heads to distil; the oracle's becomes the model's own."""
    distill: dict[str, Any] = {}
    """Settings of every head."""
    loops: list[int | Literal["adaptive", "k"]] = [1, 2, 4, 6, 8, "adaptive"]
    """Depths to evaluate at."""
    batch_size: PositiveInt = 16
    max_length: PositiveInt = 1024
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> "PipelineRecipe":
        if filled := [name for name in ("model", "data", "out", "method") if name in self.train]:
            raise ValueError(f"train.{filled[0]} is filled in by the pipeline; leave it out")
        if "oracle" not in self.heads:
            raise ValueError("heads must have oracle among them: it becomes the model's own")
        TrainRecipe.check(self.training("loop"), "train")  # refused now, not after hours
        probes = DistillRecipe.check({**self.distill, "objective": "oracle"}, "distill").probe_depths
        if max(probes) > self.depth:
            raise ValueError(f"distill.probe_depths go to {max(probes)}, deeper than depth {self.depth}")
        return self

    def training(self, method: str) -> dict[str, Any]:
        """Fields of one method's training recipe; a probed block is filled in later."""
        fields = {"seed": self.seed, **self.train, "model": self.base, "data": str(self.out / "mixture")}
        return {**fields, "method": method, "out": str(self.run_folder(method))}

    def run_folder(self, method: str) -> Path:
        return self.out / "runs" / method.replace("_", "-")


@dataclass
class Stage:
    name: str
    run: Callable[[], None]
    settings: Any
    """What its result depends on, beside the stages before it."""
    makes: list[Path]
    """What it writes, removed when it has to start anew; a folder that goes on by itself is its own judge."""
    after: list[str]


class Pipeline:
    def __init__(self, recipe: PipelineRecipe):
        self.recipe, self.out = recipe, recipe.out
        self.console = Console(highlight=False)
        self.file = recipe.out / "stages.json"

    def run(self) -> Path:
        """Run what is not done; returns the report's page."""
        digests: dict[str, str] = {}
        done: dict[str, str] = json.loads(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}
        begun: dict[str, str] = done.get("begun", {})  # type: ignore[assignment]
        for stage in self.stages():
            parts = [json.dumps(stage.settings, sort_keys=True, default=str), *(digests[name] for name in stage.after)]
            digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
            digests[stage.name] = digest
            there = all(path.exists() for path in stage.makes)
            if done.get(stage.name) == digest and there:
                self.console.print(f"[dim]{stage.name}: done before[/dim]")
                continue
            if begun.get(stage.name) != digest:
                if stage.name not in begun and (foreign := [path for path in stage.makes if path.exists()]):
                    raise RecurTraceError(f"{str(foreign[0])!r} was not made by this pipeline; choose another out.")
                for path in stage.makes:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            begun[stage.name] = digest
            self._note({**done, "begun": begun})
            self.console.print(f"[bold]{stage.name}[/bold]")
            stage.run()
            done[stage.name] = digest
            self._note({**done, "begun": begun})
        return self.out / "report" / "report.html"

    def _note(self, what: dict[str, Any]) -> None:
        write_json(self.file, what)

    def stages(self) -> list[Stage]:
        recipe, out = self.recipe, self.out
        methods = ["loop", *recipe.baselines]
        probing = ["probe"] if recipe.probe else []
        layers = recipe.train.get("loop", {}).get("loop_num_layers")
        data = json.loads(MixtureRecipe.read(recipe.mixture).model_dump_json())
        trained = [recipe.base, recipe.train, recipe.seed]
        swept = [recipe.depth, recipe.batch_size, recipe.max_length, recipe.heldout, recipe.test, recipe.seed]
        evaluated = [recipe.test, recipe.batch_size, recipe.max_length, recipe.seed]

        def evaluation(name: str, place: str, loops: list[Any], after: list[str]) -> Stage:
            settings = [place, loops, *evaluated]
            makes = [out / "evaluations" / name]
            return Stage(f"evaluate {name}", lambda: self._evaluate(name, place, loops), settings, makes, after)

        stages = [Stage("data", self._data, [data, str(recipe.data_dir)], [out / "mixture"], [])]
        if recipe.probe:
            settings = [recipe.base, recipe.probe, layers]
            stages.append(Stage("probe", self._probe, settings, [out / "probe.json"], ["data"]))
        for method in methods:
            run = recipe.run_folder(method)
            stages.append(Stage(f"train {run.name}", partial(self._train, method), trained, [run], ["data", *probing]))
        stages += [
            Stage("sweep", self._sweep, swept, [out / "sweeps"], ["train loop"]),
            Stage("distil", self._distil, [recipe.heads, recipe.distill], [out / "model"], ["sweep"]),
            Stage("compare", self._compare, [], [out / "analysis"], ["distil"]),
            evaluation("base", recipe.base, [1], ["data"]),
            evaluation("loop", str(out / "model"), list(recipe.loops), ["distil"]),
        ]
        for method in recipe.baselines:
            run = recipe.run_folder(method)
            loops = [t for t in recipe.loops if t != "adaptive"] if method == "plain_loop" else [1]
            stages.append(evaluation(run.name, str(run / "model"), loops, [f"train {run.name}"]))
        stages.append(Stage("cost", self._cost, [], [out / "cost.json"], ["train loop"]))
        before = [stage.name for stage in stages if stage.name.startswith(("compare", "evaluate", "cost"))]
        return [*stages, Stage("report", self._report, [], [out / "report"], before)]

    def _data(self) -> None:
        recipe = self.recipe
        build(MixtureRecipe.read(recipe.mixture), self.out / "mixture", recipe.data_dir, recipe.skip_missing)

    def _probe(self) -> None:
        from recurtrace.model.base import load_base, portable_name
        from recurtrace.model.tokenizer import load_tokenizer
        from recurtrace.probe.examples import probe_block

        examples = gather(str(self.out / "mixture"), None)
        model, fingerprint = load_base(self.recipe.base)
        inputs = min(self.recipe.probe or 1, len(examples) - len(examples) // 5)
        layers = self.recipe.train.get("loop", {}).get("loop_num_layers", 3)
        found = probe_block(model, load_tokenizer(self.recipe.base), examples, inputs, len(examples) // 5, layers)
        found.model, found.base_fingerprint, found.data = portable_name(self.recipe.base), fingerprint, "mixture"
        found.write(self.out / "probe.json")

    def _train(self, method: str) -> None:
        from recurtrace.training.run import train

        fields = self.recipe.training(method)
        if self.recipe.probe:
            found = json.loads((self.out / "probe.json").read_text(encoding="utf-8"))
            fields["loop"] = {"loop_start": found["loop_start"], **fields.get("loop", {})}
        train(TrainRecipe.check(fields, f"train ({method})"))

    def _sweep(self) -> None:
        """Training examples for heads, held-out ones for thresholds, test items to compare on."""
        from recurtrace.halting.sweep import sweep

        looped, tokenizer = self._load(self.recipe.run_folder("loop") / "model")
        counts = {"train": self.recipe.heldout, "heldout": self.recipe.heldout, "test": self.recipe.test}
        for split, count in counts.items():
            sweep(
                looped,
                tokenizer,
                self._examples(split, count),
                self.out / "sweeps" / split,
                split,
                "mixture",
                range(1, self.recipe.depth + 1),
                batch_size=self.recipe.batch_size,
                max_length=self.recipe.max_length,
            )

    def _distil(self) -> None:
        from recurtrace.halting.calibrate import calibrate
        from recurtrace.halting.distill import distill
        from recurtrace.halting.policies import signal_values
        from recurtrace.halting.sweep_files import read_sweep
        from recurtrace.model.configuration_recurtrace import HeadSettings
        from recurtrace.model.heads import change_head, read_head, write_head

        model, fresh = self.out / "model", self.out / ".model.tmp"
        if not model.exists():  # a whole copy or none
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(self.recipe.run_folder("loop") / "model", fresh)
            fresh.rename(model)
        train, heldout = (read_sweep(self.out / "sweeps" / split) for split in ("train", "heldout"))
        for objective in self.recipe.heads:
            settings = {**self.recipe.distill, "objective": objective, "seed": self.recipe.seed}
            made = DistillRecipe.check(settings, "distill")
            weight, bias, _ = distill(train, made)
            name = None if objective == "oracle" else objective
            write_head(model, name, weight, bias, HeadSettings(objective, made.pooling, max_depth=self.recipe.depth))
            head = read_head(model, name)
            found = calibrate(heldout, signal_values(heldout, "head", head), "head", max_depth=self.recipe.depth)
            point = found.point
            change_head(
                model,
                name,
                replace(head[2], threshold=point.threshold, min_depth=point.min_depth, max_depth=point.max_depth),
            )
            write_json(model / "calibration" / f"{name or 'head'}.json", found.as_json())

    def _compare(self) -> None:
        from recurtrace.evaluation.analysis import analyse
        from recurtrace.halting.sweep_files import read_sweep
        from recurtrace.model.heads import read_head, read_looped_config

        config = read_looped_config(self.out / "model")
        heads = {name: read_head(self.out / "model", name) for name in [None, *(config.loop_halting_heads or {})]}
        sweeps = [read_sweep(self.out / "sweeps" / split) for split in ("heldout", "test")]
        found = analyse(sweeps[0], sweeps[1], heads, list(config.loop_halting_aux_depths))
        found["command"] = "recurtrace compare model --heldout sweeps/heldout --test sweeps/test"
        write_json(self.out / "analysis" / f"seed-{self.recipe.seed}.json", found)

    def _evaluate(self, name: str, place: str, loops: list[Any]) -> None:
        from recurtrace.evaluation.evaluate import evaluate
        from recurtrace.model.loading import load_any

        model, tokenizer, kind = load_any(place)
        about = {"model": place, "kind": kind, "tasks": "mixture", "split": "test", "seed": self.recipe.seed}
        options: Any = {"batch_size": self.recipe.batch_size, "max_length": self.recipe.max_length}
        examples = self._examples("test", self.recipe.test)
        evaluate(model, tokenizer, examples, self.out / "evaluations" / name, loops, about=about, **options)

    def _cost(self) -> None:
        from recurtrace.evaluation.runtime import measure_cost

        found = measure_cost(self._load(self.recipe.run_folder("loop") / "model")[0])
        found["command"] = "recurtrace cost model"
        write_json(self.out / "cost.json", found)

    def _report(self) -> None:
        from recurtrace.report.render import report

        report(self.out, self.out / "report", f"RecurTrace on {Path(self.recipe.base).name}")

    def _examples(self, split: str, count: int) -> list[Any]:
        found = gather(str(self.out / "mixture"), self.recipe.data_dir, split=split)
        if not found:
            raise RecurTraceError(f"the mixture has no {split} examples; raise heldout in its recipe.")
        return stratified(found, count, self.recipe.seed)

    @staticmethod
    def _load(model: Path) -> tuple[Any, Any]:
        from recurtrace.model.loading import load_looped

        return load_looped(str(model))
