"""Numbers of runs for the tables: suites as unweighted means over tasks, differences seed by seed, the best loop."""

import math
import statistics
from collections.abc import Callable, Sequence

from recurtrace.data.benchmarks import TASKS
from recurtrace.records import Evaluation, Measures
from recurtrace.report.pairing import paired
from recurtrace.report.workspace import Workspace

Runs = Sequence[Evaluation]
"""One run, an evaluation for each training seed."""
BASELINE, LOOPED = ("full", "1"), ("loop", "2")  # run and loops that the paper compares
COMPARED = (LOOPED[0], BASELINE[0])
TRAIN_LIMIT = 8  # steps of training items, and the clamp of the training depth


def suite_of(task: str) -> str:
    """The suite a task's numbers are averaged in."""
    suites = [name for name in TASKS[task].suites if name != "training"] if task in TASKS else []
    if "diagnostic" in suites:
        return "diagnostic, BIG-Bench Hard" if task.startswith("bbh_") else "diagnostic, others"
    return suites[0].replace("_", "-") if suites else "other"


def suites(tasks: Sequence[str]) -> dict[str, list[str]]:
    """Tasks by suite, in the paper's order: the main suites, all of these together, the diagnostic ones."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        found.setdefault(suite_of(task), []).append(task)
    main = sorted((name for name in found if not _diagnostic(name)), key=lambda name: (name != "train-covered", name))
    ordered = {name: found[name] for name in main}
    if len(main) > 1:
        ordered["overall"] = [task for name in main for task in found[name]]
    return ordered | {name: found[name] for name in sorted(found) if _diagnostic(name)}


def main_tasks(tasks: Sequence[str]) -> list[str]:
    """All but the diagnostic ones."""
    return [task for task in tasks if not _diagnostic(suite_of(task))]


def covered(tasks: Sequence[str]) -> tuple[str, list[str]]:
    """The suite that losses are compared on: the tasks whose training data is in the mixture, else all main ones."""
    found = suites(tasks)
    return ("train-covered", found["train-covered"]) if "train-covered" in found else ("all", main_tasks(tasks))


def _diagnostic(suite: str) -> bool:
    return suite.startswith("diagnostic")


def shared_tasks(*runs: Runs) -> list[str]:
    """Tasks that all of them were evaluated on."""
    return [task for task in runs[0][0].tasks if all(task in one.tasks for run in runs for one in run)]


def mean_over(run: Runs, asked: str, tasks: Sequence[str]) -> list[Measures]:
    """By training seed: the unweighted mean over tasks, whatever their numbers of items."""
    found = []
    for one in run:
        parts = [one.measures[task][asked] for task in tasks]
        found.append(Measures(statistics.mean(p.accuracy for p in parts), statistics.mean(p.nll for p in parts)))
    return found


def best_loop(run: Runs, tasks: Sequence[str]) -> str:
    """The best-likelihood loop: the fixed depth of lowest loss over tasks and seeds, the smallest of equals.

    One loop does not count: it is the base, whatever was trained.
    """
    depths = [asked for asked in run[0].manifest.loops if asked.isdigit() and asked != "1"]
    asked = [depth for depth in depths if all(depth in one.manifest.loops for one in run)]
    return min(
        sorted(asked, key=int), key=lambda depth: statistics.mean(one.nll for one in mean_over(run, depth, tasks))
    )


def extrapolation(run: Runs, task: str, beyond: int = TRAIN_LIMIT) -> list[float | None]:
    """By training seed: accuracy in percent at T = k over the items with more steps than training had."""
    found: list[float | None] = []
    for one in run:
        results = [result for record in one.tasks[task] for result in record.results if result.loops == "k"]
        right = [result.correct for result in results if result.depth > beyond]
        found.append(100 * statistics.mean(right) if right else None)
    return found


def differences(ours: Sequence[Measures], theirs: Sequence[Measures], of: Callable[[Measures], float]) -> list[float]:
    """Seed by seed where both have as many, else of the means."""
    one, other = [of(measures) for measures in ours], [of(measures) for measures in theirs]
    if len(one) != len(other):
        return [statistics.mean(one) - statistics.mean(other)]
    return [a - b for a, b in zip(one, other, strict=True)]


def accuracy(measures: Measures) -> float:
    return measures.accuracy


def nll(measures: Measures) -> float:
    return measures.nll


def gain_interval(ours: Runs, asked: str, theirs: Runs, other: str, tasks: Sequence[str]) -> str:
    """95 % of the gain in points, over items: each is paired with itself and averaged over seeds, tasks weigh alike."""
    gains, variance = [], 0.0
    for task in tasks:
        one, two = (_right_by_item(run, at, task) for run, at in ((ours, asked), (theirs, other)))
        if one.keys() != two.keys() or len(one) < 2:
            return "–"
        gained = [100 * (one[item] - two[item]) for item in one]
        gains.append(statistics.mean(gained))
        variance += statistics.variance(gained) / len(gained)
    half = 1.96 * math.sqrt(variance) / len(tasks)
    middle = statistics.mean(gains)
    return f"[{middle - half:+.1f}, {middle + half:+.1f}]"


def _right_by_item(run: Runs, asked: str, task: str) -> dict[str, float]:
    """Share of training seeds by which each item is right."""
    found: dict[str, list[bool]] = {}
    for one in run:
        for record in one.tasks[task]:
            found.setdefault(record.id, []).append(record.at(asked).correct)
    return {item: statistics.mean(right) for item, right in found.items()}


def lacking(space: Workspace, *needed: tuple[str, str]) -> str:
    """Runs that are not there, were not evaluated at the depth that is needed, or have no item in common."""
    absent = [
        f"evaluations/{run} with --loops {loops}"
        for run, loops in needed
        if run not in space.evaluations or any(loops not in one.manifest.loops for one in space.evaluations[run])
    ]
    if absent:
        return f"{' and '.join(absent)} (recurtrace evaluate)"
    runs = list(dict.fromkeys(run for run, _ in needed))
    if not paired(space.evaluations, *runs).items:
        return f"evaluations of the same items: {', '.join(runs)} have none in common"
    return ""


def absent(studies: Sequence[Workspace], *needed: tuple[str, str]) -> str:
    """What each study still needs for a table over scales, in a sentence."""
    said = [f"{space.scale} needs {needs}" for space in studies if (needs := lacking(space, *needed))]
    return f"Not complete: {'; '.join(said)}." if said else ""


def baseline(*studies: Workspace) -> str:
    """What the fine-tuned base may be called: "same-budget" only where the budgets of the runs say so."""
    for space in studies:
        known = [{(one.steps, one.batch_size, one.max_length) for one in space.budgets.get(r, [])} for r in COMPARED]
        if not all(known) or len(set.union(*known)) > 1:
            return "fine-tuned baseline"
    return "same-budget baseline"


def sources(space: Workspace, *runs: str) -> str:
    """The command of each run's first seed; those of the others differ in their folders."""
    return "; ".join(space.evaluations[run][0].manifest.command or f"evaluations/{run}" for run in runs)


def seeds(space: Workspace, *runs: str) -> str:
    """The number of training seeds, and what the compared runs do not share."""
    counts = [len(space.evaluations[run]) for run in runs]
    number = str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    said = "One training seed." if number == "1" else f"{number} training seeds."
    return f"{said} {space.left_out}".strip()


def left_out(studies: Sequence[Workspace]) -> str:
    return " ".join(f"{space.scale}: {space.left_out}" for space in studies if space.left_out)
