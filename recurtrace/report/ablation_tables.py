"""The paper's tables of what drives the gain: memory, its parts, the block, and the controls.

Losses are compared on the train-covered suite at each run's own best-likelihood loop, accuracies at two loops.
"""

from collections.abc import Iterable, Sequence

from recurtrace.report.measures import (
    BASELINE,
    LOOPED,
    Runs,
    absent,
    accuracy,
    baseline,
    best_loop,
    covered,
    differences,
    extrapolation,
    lacking,
    left_out,
    main_tasks,
    mean_over,
    nll,
    seeds,
    shared_tasks,
    sources,
    suites,
)
from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

LIKELIHOOD = "Δ NLL over the baseline, best loop"
GENERATION = "Accuracy at two loops, %"
EXTRAPOLATION = "Accuracy beyond eight steps at T = k, %"
TITLES = {
    "loop": "Full RecurTrace",
    "no-qk-norm": "Without QK-normalization",
    "frozen-slopes": "Loop-distance bias frozen",
    "open-gates": "Gates open at initialisation",
    "window-1": "Memory window W = 1",
    "window-2": "Memory window W = 2",
    "window-5": "Memory window W = 5",
}
"""The paper's names of runs; another ablation goes by the name of its run."""
PREFERRED = "mathqa"  # the task of the paper's accuracies, where it was evaluated
SYNTHETIC = ("p_hop", "symbolic", "arithmetic")  # those that the paper extrapolates on
WINDOWS = {"4B": ("block-24-26",), "8B": ("block-18-20", "block-27-29")}  # the paper's controls, by scale


def _tasks(suite: str) -> str:
    """As it stands in a sentence."""
    return "all tasks" if suite == "all" else f"the {suite} tasks"


def memory(studies: Sequence[Workspace]) -> Table:
    """Loop memory against plain looping: loss at every scale, accuracy, and problems longer than in training."""
    name, title = "memory", "Loop memory against plain looping"
    plain = ("plain-loop", "2")
    compared = [space for space in studies if not lacking(space, LOOPED, plain)]
    if not compared:
        return Table(name, title, missing=lacking(studies[0], LOOPED, plain, BASELINE))
    whole = [space for space in compared if not lacking(space, LOOPED, plain, BASELINE)]
    with_baseline = [space.paired("loop", "plain-loop", "full") for space in whole]
    compared = [space.paired("loop", "plain-loop") for space in compared]
    extrapolated = [row for space in compared for row in _extrapolation(space)]
    rows = [
        *(row for space in with_baseline for row in _likelihood(space)),
        *(row for space in compared for row in _generation(space)),
        *extrapolated,
    ]
    parts = [
        "The best loop, in parentheses, is each run's own fixed depth of lowest loss, from two loops on. Means over "
        "tasks, whatever their number of items.",
        "T = k: as many loops as the problem has steps, on items with more steps than training had."
        if extrapolated
        else "",
        left_out(compared),
        absent(studies, LOOPED, plain, BASELINE),
        *(_no_extrapolation(space) for space in compared),
    ]
    columns = ["Measure", "Scale", "On", "Plain looping", "Memory", "Difference"]
    source = "; ".join(sources(space, "loop", "plain-loop") for space in compared)
    over = {
        " / ".join((measure, space.scale, on)): len(tasks)
        for measure, spaces, groups in ((LIKELIHOOD, with_baseline, _losses), (GENERATION, compared, _groups))
        for space in spaces
        for on, tasks in groups(space).items()
    }
    return Table(name, title, columns, rows, " ".join(filter(None, parts)), source, key=3, over=over)


def _losses(space: Workspace) -> dict[str, list[str]]:
    """Tasks whose losses are compared, under the name of their suite."""
    suite, tasks = covered(shared_tasks(*(space.evaluations[run] for run in ("plain-loop", "loop", "full"))))
    return {suite: tasks} if tasks else {}


def _likelihood(space: Workspace) -> list[list[str]]:
    *runs, full = (space.evaluations[run] for run in ("plain-loop", "loop", "full"))
    rows = []
    for suite, tasks in _losses(space).items():
        fine_tuned = mean_over(full, "1", tasks)
        at_best = [(loop, mean_over(run, loop, tasks)) for run in runs for loop in [best_loop(run, tasks)]]
        cells = [f"{spread(differences(found, fine_tuned, nll), '+.3f')} ({loop})" for loop, found in at_best]
        change = spread(differences(at_best[1][1], at_best[0][1], nll), "+.3f")
        rows.append([LIKELIHOOD, space.scale, suite, *cells, change])
    return rows


def _groups(space: Workspace) -> dict[str, list[str]]:
    """Tasks whose accuracies are compared: the paper's task and suites, else whatever there is."""
    tasks = shared_tasks(*(space.evaluations[run] for run in ("plain-loop", "loop")))
    groups = {PREFERRED: [PREFERRED]} if PREFERRED in tasks else {}
    groups |= {suite: own for suite, own in suites(tasks).items() if suite in ("train-covered", "classic")}
    return groups or suites(tasks)


def _generation(space: Workspace) -> list[list[str]]:
    plain, ours = (space.evaluations[run] for run in ("plain-loop", "loop"))
    rows = []
    for on, own in _groups(space).items():
        measured = [mean_over(run, "2", own) for run in (plain, ours)]
        cells = [spread((one.accuracy for one in run), ".1f") for run in measured]
        rows.append(
            [GENERATION, space.scale, on, *cells, spread(differences(measured[1], measured[0], accuracy), "+.1f")]
        )
    return rows


def _extrapolation(space: Workspace) -> list[list[str]]:
    plain, ours = (space.evaluations[run] for run in ("plain-loop", "loop"))
    rows = []
    for task in sorted(shared_tasks(plain, ours), key=lambda task: (task != "p_hop", task != "symbolic", task)):
        one, two = (extrapolation(run, task) for run in (plain, ours))
        if None in one or None in two:
            continue
        gains = [b - a for a, b in zip(one, two, strict=True) if a is not None and b is not None]
        rows.append([EXTRAPOLATION, space.scale, task, spread(one, ".1f"), spread(two, ".1f"), spread(gains, "+.1f")])
    return rows


def _no_extrapolation(space: Workspace) -> str:
    """Which of the paper's synthetic tasks are not there at T = k; nothing is said of a study that has none of them."""
    there = {row[2] for row in _extrapolation(space)}
    wanted = [task for task in SYNTHETIC if task not in there]
    measured = shared_tasks(*(space.evaluations[run] for run in ("plain-loop", "loop")))
    if not wanted or not (space.in_the_paper or set(SYNTHETIC) & set(measured)):
        return ""
    return f"Beyond eight steps, {space.scale} needs {', '.join(wanted)} of both runs with --loops k."


def depths(space: Workspace) -> Table:
    """Loop memory against plain looping, task by task and depth by depth: an extension of the paper's table."""
    name, title = "depths", "Loop memory against plain looping, depth by depth"
    if missing := lacking(space, ("loop", "1"), ("plain-loop", "1")):
        return Table(name, title, missing=missing)
    space = space.paired("loop", "plain-loop")
    ours, plain = (space.evaluations[run] for run in ("loop", "plain-loop"))
    rows = []
    for task in shared_tasks(ours, plain):
        for asked in [asked for asked in ours[0].measures[task] if asked in plain[0].measures[task]]:
            one, two = (mean_over(run, asked, [task]) for run in (plain, ours))
            cells = [spread((measures.accuracy for measures in run), ".1f") for run in (one, two)]
            gains = [
                spread(differences(two, one, accuracy), "+.1f"),
                spread(differences(two, one, nll), "+.3f"),
            ]
            rows.append([task, asked if asked != "k" else "T = k", *cells, *gains])
    columns = ["Task", "Loops", "Plain looping, %", "Memory, %", "Δ points", "Δ NLL"]
    note, source = seeds(space, "loop", "plain-loop"), sources(space, "loop", "plain-loop")
    return Table(name, title, columns, rows, note, source, key=2)


def ablation(space: Workspace) -> Table:
    """Every looped run with one piece of the memory changed."""
    name, title = "ablation", "Parts of the memory, each changed alone"
    runs = [run for run in space.evaluations if _is_ablation(space, run)]
    if missing := lacking(space, LOOPED, BASELINE) or ("" if runs else "evaluations of ablations with --loops 2"):
        return Table(name, title, missing=missing)
    ordered = ["loop", *sorted(runs, key=lambda run: list(TITLES).index(run) if run in TITLES else len(TITLES))]
    space = space.paired(*ordered, "full")
    tasks = shared_tasks(*(space.evaluations[run] for run in (*ordered, "full")))
    of, column = ([PREFERRED], PREFERRED) if PREFERRED in tasks else (main_tasks(tasks), "all tasks")
    suite, losses = covered(tasks)
    rows = []
    for run in ordered:
        found = _against_baseline(space, run, losses)
        right = mean_over(space.evaluations[run], "2", of)
        rows.append([TITLES.get(run, run), *found, spread((one.accuracy for one in right), ".1f")])
    note = (
        f"{seeds(space, *ordered)} Δ NLL: over the {baseline(space)} on {_tasks(suite)}, at each run's own best "
        f"loop. Accuracy at two loops. {_not_evaluated(run for run in TITLES if run not in ordered)}"
    ).strip()
    columns = ["Run", "Δ NLL", "Best loop", f"{column}, %"]
    over = {"Δ NLL": len(losses)}
    return Table(name, title, columns, rows, note, sources(space, *ordered), strong=[0], over=over)


def blocks(space: Workspace) -> Table:
    """Other windows of layers, under the same budget."""
    name, title = "blocks", "Which layers are looped"
    runs = [run for run in space.evaluations if run.startswith("block-") and "2" in _loops(space, run)]
    if missing := lacking(space, LOOPED, BASELINE) or ("" if runs else "evaluations of runs block-<first>-<last>"):
        return Table(name, title, missing=missing)
    space = space.paired("loop", "full", *runs)
    tasks = shared_tasks(*(space.evaluations[run] for run in ("loop", "full", *runs)))
    suite, losses = covered(tasks)
    fine_tuned = mean_over(space.evaluations["full"], "1", main_tasks(tasks))
    rows = []
    for run in ("loop", *sorted(runs, key=lambda run: int(run.split("-")[1]))):
        found = mean_over(space.evaluations[run], "2", main_tasks(tasks))
        gain = spread(differences(found, fine_tuned, accuracy), "+.1f")
        layers = f"{_deployed(space)} (deployed)" if run == "loop" else "–".join(run.split("-")[1:])
        rows.append([layers, *_against_baseline(space, run, losses), gain])
    absent_runs = [run for run in WINDOWS.get(space.scale, ()) if run not in runs]
    note = (
        f"{seeds(space, 'loop', 'full', *runs)} Δ over the {baseline(space)}: loss on {_tasks(suite)} at each run's "
        f"best loop, accuracy at two loops. {_not_evaluated(absent_runs)}"
    ).strip()
    columns = ["Layers", "Δ NLL", "Best loop", "Δ points"]
    over = {"Δ NLL": len(losses)}
    return Table(name, title, columns, rows, note, sources(space, "loop", *runs), strong=[0], over=over)


def capacity(space: Workspace) -> Table:
    """As many parameters without loops: how much of the gain is capacity."""
    name, title = "capacity", "As many added parameters, without loops"
    if missing := lacking(space, LOOPED, BASELINE, ("adapter", "1")):
        return Table(name, title, missing=missing)
    space = space.paired("loop", "full", "adapter")
    tasks = main_tasks(shared_tasks(*(space.evaluations[run] for run in ("loop", "full", "adapter"))))
    fine_tuned = mean_over(space.evaluations["full"], "1", tasks)
    rows = []
    for run, asked, says in (
        ("full", "1", "Fine-tuned baseline"),
        ("adapter", "1", "Matched adapter, no loops"),
        ("loop", "2", "RecurTrace, two loops"),
    ):
        found = mean_over(space.evaluations[run], asked, tasks)
        changes = ["", ""]
        if run != "full":
            changes = [
                spread(differences(found, fine_tuned, accuracy), "+.1f"),
                spread(differences(found, fine_tuned, nll), "+.3f"),
            ]
        rows.append([says, spread((one.accuracy for one in found), ".1f"), *changes])
    note = f"{seeds(space, 'loop', 'full', 'adapter')} Unweighted means over {len(tasks)} tasks."
    source = sources(space, "full", "adapter", "loop")
    columns = ["Run", "Accuracy, %", "Δ points", "Δ NLL"]
    return Table(name, title, columns, rows, note, source, over=dict.fromkeys(columns[1:], len(tasks)))


def same_start(space: Workspace) -> Table:
    """The same plain-looping checkpoint continued with memory and without."""
    name, title = "same-start", "One checkpoint, continued with memory and without"
    names = ("same-start-plain", "same-start-memory")
    if missing := lacking(space, *((run, "4") for run in names)):
        return Table(name, title, missing=missing)
    space = space.paired(*names)
    runs = [space.evaluations[run] for run in names]
    suite, tasks = covered(shared_tasks(*runs))
    rows = []
    for says, asked in (("best loop", [best_loop(run, tasks) for run in runs]), ("four loops", ["4", "4"])):
        measured = [mean_over(run, at, tasks) for run, at in zip(runs, asked, strict=True)]
        changes = ", ".join(f"{change:+.3f}" for change in differences(measured[1], measured[0], nll))
        cells = [spread((one.nll for one in run), ".3f") for run in measured]
        rows.append([says, ", ".join(dict.fromkeys(asked)), *cells, changes])
    note = f"{seeds(space, *names)} Loss on {_tasks(suite)}, each run at its own best loop and both at four."
    columns = ["At", "Loops", "Plain, NLL", "Memory, NLL", "Δ NLL, seed by seed"]
    return Table(name, title, columns, rows, note, sources(space, *names), over={columns[-1]: len(tasks)})


def _not_evaluated(runs: Iterable[str]) -> str:
    """The paper's runs that are not there."""
    names = ", ".join(f"evaluations/{run}" for run in runs)
    return f"Of the paper's runs there is no {names} with --loops 2 (recurtrace evaluate)." if names else ""


def _is_ablation(space: Workspace, run: str) -> bool:
    known = run in ("loop", "plain-loop") or run.startswith(("same-start-", "block-")) or run.endswith("-block")
    return not known and space.evaluations[run][0].manifest.kind == "looped" and "2" in _loops(space, run)


def _loops(space: Workspace, run: str) -> list[str]:
    every: Runs = space.evaluations[run]
    return [asked for asked in every[0].manifest.loops if all(asked in one.manifest.loops for one in every)]


def _against_baseline(space: Workspace, run: str, tasks: Sequence[str]) -> list[str]:
    """Cells: change of the loss over the baseline at the run's best loop, and that loop."""
    loop = best_loop(space.evaluations[run], tasks)
    found, fine_tuned = (mean_over(space.evaluations[of], at, tasks) for of, at in ((run, loop), BASELINE))
    return [spread(differences(found, fine_tuned, nll), "+.4f"), loop]


def _deployed(space: Workspace) -> str:
    """The block of the looped model, where its config is there."""
    if space.config is None:
        return "block"
    first = int(space.config["loop_start"])
    return f"{first}–{first + int(space.config['loop_num_layers']) - 1}"
