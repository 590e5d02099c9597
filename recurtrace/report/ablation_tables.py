"""The paper's tables of what drives the gain: memory, its parts, the block, and the controls.

Losses are compared on the train-covered suite at each run's own best-likelihood loop, accuracies at two loops.
"""

from collections.abc import Sequence

from recurtrace.report.measures import (
    BASELINE,
    LOOPED,
    Runs,
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
    rows = [
        *(row for space in with_baseline for row in _likelihood(space)),
        *(row for space in compared for row in _generation(space)),
        *(row for space in compared for row in _extrapolation(space)),
    ]
    note = (
        "The best loop, in parentheses, is each run's own fixed depth of lowest loss, from two loops on. T = k: as "
        "many loops as the problem has steps, on items with more steps than training had. "
        f"{left_out(compared)}"
    ).strip()
    columns = ["Measure", "Scale", "On", "Plain looping", "Memory", "Difference"]
    source = "; ".join(sources(space, "loop", "plain-loop") for space in compared)
    return Table(name, title, columns, rows, note, source, key=3)


def _likelihood(space: Workspace) -> list[list[str]]:
    runs = [space.evaluations[run] for run in ("plain-loop", "loop", "full")]
    suite, tasks = covered(shared_tasks(*runs))
    if not tasks:
        return []
    fine_tuned = mean_over(runs[2], "1", tasks)
    at_best = [(loop, mean_over(run, loop, tasks)) for run in runs[:2] for loop in [best_loop(run, tasks)]]
    cells = [f"{spread(differences(found, fine_tuned, nll), '+.3f')} ({loop})" for loop, found in at_best]
    change = spread(differences(at_best[1][1], at_best[0][1], nll), "+.3f")
    return [[LIKELIHOOD, space.scale, suite, *cells, change]]


def _generation(space: Workspace) -> list[list[str]]:
    plain, ours = (space.evaluations[run] for run in ("plain-loop", "loop"))
    tasks = shared_tasks(plain, ours)
    groups = {PREFERRED: [PREFERRED]} if PREFERRED in tasks else {}
    groups |= {suite: own for suite, own in suites(tasks).items() if suite in ("train-covered", "classic")}
    rows = []
    for on, own in (groups or suites(tasks)).items():
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
        f"{seeds(space, *ordered)} Δ NLL: over the {baseline(space)} on the {suite} tasks, at each run's own best "
        "loop. Accuracy at two loops."
    )
    columns = ["Run", "Δ NLL", "Best loop", f"{column}, %"]
    return Table(name, title, columns, rows, note, sources(space, *ordered), strong=[0])


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
    note = f"Δ over the {baseline(space)}: loss on the {suite} tasks at each run's best loop, accuracy at two loops."
    columns = ["Layers", "Δ NLL", "Best loop", "Δ points"]
    return Table(name, title, columns, rows, note, sources(space, "loop", *runs), strong=[0])


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
    return Table(name, title, ["Run", "Accuracy, %", "Δ points", "Δ NLL"], rows, note, source)


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
    note = f"{seeds(space, *names)} Loss on the {suite} tasks, each run at its own best loop and both at four."
    columns = ["At", "Loops", "Plain, NLL", "Memory, NLL", "Δ NLL, seed by seed"]
    return Table(name, title, columns, rows, note, sources(space, *names))


def _is_ablation(space: Workspace, run: str) -> bool:
    known = run in ("loop", "plain-loop") or run.startswith(("same-start-", "block-"))
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
