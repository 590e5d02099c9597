"""Running a pipeline: which stages are done, what need not be run again, and what may not be run over.

Stages meet in files, so each can be run alone by its own command, with the same result; under a launcher they are.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from recurtrace.assets import place
from recurtrace.errors import RecurTraceError
from recurtrace.files import BusyError, Kind, claim_new, empty, load_manifest, lock, write_json
from recurtrace.pipeline.order import Order, Stage
from recurtrace.pipeline.recipe import PipelineRecipe
from recurtrace.training.checkpoints import has_trained
from recurtrace.training.recipe import TrainRecipe

WAIT = 5.0
"""Seconds until it is looked again whether another process has finished a stage."""
PIPELINE = Kind("pipeline", "stages", ())
_ON_THE_BASE = ("data", "probe", "train", "evaluate base")


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


def _is_named(stage: str, pattern: str) -> bool:
    """Of a name or its first words: `train` is all training, `train loop` that of every seed."""
    return fnmatch(stage, pattern) or fnmatch(stage, f"{pattern} *")


class Pipeline:
    def __init__(self, recipe: PipelineRecipe, tell: Callable[[str, str], None] = lambda name, why_not: None):
        """`tell(name, why_not)` is called before each stage: an interface may show where it is. `why_not` says why a
        stage is not run here; it is empty for one that is."""
        self.recipe, self.out, self.tell = recipe, recipe.out, tell

    def run(self, only: Sequence[str] = (), launcher: Sequence[str] = (), share: bool = False) -> Path:
        """Run what is not done; returns the report's page.

        `only` are patterns of stages to run, so that machines that share the folder can divide them. `launcher` is a
        command that starts several processes, such as `accelerate launch`. With `share`, stages that another process
        is running are left to it, and those that need them wait for it; otherwise they are refused.
        """
        self._adopt_earlier()
        plan = self.stages()
        states = self.states(plan)
        if unknown := [pattern for pattern in only if not any(_is_named(name, pattern) for name in states)]:
            raise RecurTraceError(f"no stage is called {unknown[0]!r}; the stages are {', '.join(states)}.")
        if not (self.out / PIPELINE.manifest).is_dir():
            claim_new(self.out, PIPELINE, self.recipe.overwrite)
        left = [stage for stage in plan if not only or any(_is_named(stage.name, pattern) for pattern in only)]
        for stage in left:
            self._refuse(stage, states[stage.name].digest)  # all of them before anything is changed
        if any(stage.name.startswith(_ON_THE_BASE) and not states[stage.name].done for stage in left):
            self._check_base()
        told: set[tuple[str, str]] = set()
        while left:
            later: list[Stage] = []
            for stage in left:
                if why_not := self._run(stage, plan, launcher, share, {other.name for other in later}):
                    later.append(stage)
                    if (stage.name, why_not) not in told:
                        self.tell(stage.name, why_not)
                        told.add((stage.name, why_not))
            if len(later) == len(left):
                time.sleep(WAIT)
            left = later
        return self.out / "report" / "report.html"

    def _run(
        self, stage: Stage, plan: Sequence[Stage], launcher: Sequence[str], share: bool, later: Collection[str]
    ) -> str:
        """Run a stage unless it is done; returns why it has to be tried again, or nothing.

        `later` are the names of stages that this process could not run yet. Only with `share` is anything waited for.
        """
        with ExitStack() as held:
            try:
                held.enter_context(self._lock(stage.name, share))
            except BusyError:
                if not share:
                    raise
                return "left to another process"
            states = self.states(plan)  # anew: other machines may have finished something
            if states[stage.name].done:
                self.tell(stage.name, "already done")
                return ""
            for name in stage.after:
                if not states[name].done:
                    if share and (name in later or self._is_running(name)):
                        return f"waits for {name}"
                    raise RecurTraceError(f"{stage.name} needs {name}, which is not done; run that first.")
            self._prepare(stage, states[stage.name])
            self.tell(stage.name, "")
            stage.run(launcher)
            self._note(stage.name, states[stage.name].digest, done=True)
        return ""

    def _lock(self, name: str, required: bool) -> AbstractContextManager[None]:
        file = self._file(name).with_suffix(".lock")
        file.parent.mkdir(parents=True, exist_ok=True)
        return lock(file, f"{name} of {str(self.out)!r} is being run", required)

    def _is_running(self, name: str) -> bool:
        try:
            with self._lock(name, required=True):
                return False
        except BusyError:
            return True

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
            if made.probe is None and run.start_from is None:  # else the block is not known yet
                loop_config(made, config)

    def states(self, plan: Sequence[Stage]) -> dict[str, "State"]:
        """How far every stage is, as the files say."""
        found: dict[str, State] = {}
        for stage in plan:
            digest = self._digest(stage, {name: state.digest for name, state in found.items()})
            noted = self._noted(stage.name)
            begun = noted.get("digest")
            done = begun == digest and noted["done"] and all(path.exists() for path in stage.makes)
            found[stage.name] = State(digest, begun, done)
        return found

    def _refuse(self, stage: Stage, digest: str) -> None:
        """What is not removed for a stage that starts again: what this pipeline did not make, and long work."""
        there = [path for path in stage.makes if path.exists()]
        begun = self._noted(stage.name).get("digest")  # read after that: another process may have begun in between
        if begun == digest:
            return
        if begun is None and (foreign := there):
            raise RecurTraceError(f"{str(foreign[0])!r} exists and was not made by this pipeline; choose another out.")
        if (trained := [path for path in stage.makes if has_trained(path)]) and not self.recipe.overwrite:
            raise RecurTraceError(
                f"{str(trained[0])!r} was trained with other settings or on other data; choose another out, or pass "
                "--overwrite to train it again."
            )

    def _prepare(self, stage: Stage, state: "State") -> None:
        """What an earlier run left of a stage that has changed is removed."""
        if state.begun != state.digest:
            self._refuse(stage, state.digest)
            self._note(stage.name, "being removed", done=False)
            for path in stage.makes:
                empty(path) if path.is_dir() else path.unlink(missing_ok=True)
        self._note(stage.name, state.digest, done=False)

    def _file(self, name: str) -> Path:
        """A file for each stage, so that several machines can write theirs."""
        return self.out / "stages" / f"{name.replace(' ', '-')}.json"

    def _noted(self, name: str) -> dict[str, Any]:
        file = self._file(name)
        return load_manifest(file, "pipeline", "recurtrace run") if file.is_file() else {}

    def _note(self, name: str, digest: str, done: bool) -> None:
        write_json(self._file(name), {"digest": digest, "done": done})

    def _adopt_earlier(self) -> None:
        """Folders of an earlier version kept all stages in one file."""
        file = self.out / "stages.json"
        if file.is_file():
            finished = load_manifest(file, "pipeline", "recurtrace run")
            for name, digest in finished.pop("begun", {}).items():
                self._note(name, digest, finished.get(name) == digest)
            file.unlink(missing_ok=True)

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
        return Order(self.recipe).stages()
