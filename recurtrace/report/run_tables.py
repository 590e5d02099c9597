"""The paper's tables of runs: from evaluations, budgets and costs."""

import statistics
from collections.abc import Sequence

from recurtrace.data.benchmarks import TASKS
from recurtrace.records import Evaluation, ItemRecord
from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace


def breadth(space: Workspace) -> Table:
    """RecurTrace at two loops against the fine-tuned baseline, suite by suite."""
    name, title = "breadth", "Two loops against the same-budget baseline"
    if missing := _missing(space, {"loop": "2", "full": "1"}):
        return Table(name, title, missing=missing)
    looped, full = (_by_suite(space.evaluations[run]) for run in ("loop", "full"))
    rows = []
    for suite in looped.keys() & full.keys():
        ours, theirs = _measures(looped[suite], "2"), _measures(full[suite], "1")
        rows.append(
            [
                suite.replace("_", " "),
                str(len(looped[suite])),
                f"{theirs[0]:.1f}",
                f"{ours[0]:.1f}",
                f"{ours[0] - theirs[0]:+.1f}",
                f"{ours[1] - theirs[1]:+.3f}",
            ]
        )
    columns = ["Suite", "n", "Baseline, %", "Two loops, %", "Δ points", "Δ NLL"]
    return Table(name, title, columns, sorted(rows), source=_sources(space, "loop", "full"))


def memory(space: Workspace) -> Table:
    """Loop memory against plain looping, depth by depth."""
    name, title = "memory", "Loop memory against plain looping"
    if missing := _missing(space, {"loop": "1", "plain-loop": "1"}):
        return Table(name, title, missing=missing)
    rows = []
    runs = {run: space.evaluations[run] for run in ("loop", "plain-loop")}
    shared = [asked for asked in runs["loop"].manifest["loops"] if asked in runs["plain-loop"].manifest["loops"]]
    for task in sorted({record.task for record in runs["loop"].records}):
        for asked in shared:
            found = [_measures([r for r in run.records if r.task == task], asked) for run in runs.values()]
            (ours, our_nll), (plain, plain_nll) = found
            rows.append(
                [
                    task,
                    asked if asked != "k" else "T = k",
                    f"{plain:.1f}",
                    f"{ours:.1f}",
                    f"{ours - plain:+.1f}",
                    f"{our_nll - plain_nll:+.3f}",
                ]
            )
    columns = ["Task", "Loops", "Plain, %", "Memory, %", "Δ points", "Δ NLL"]
    return Table(name, title, columns, rows, source=_sources(space, "loop", "plain-loop"))


def ablation(space: Workspace) -> Table:
    """Every looped run at two loops."""
    name, title = "ablation", "Design ablation, at two loops"
    runs = {
        run: e
        for run, e in space.evaluations.items()
        if e.manifest.get("kind") == "looped" and "2" in e.manifest["loops"]
    }
    others = [run for run in runs if run not in ("loop", "plain-loop")]
    if "loop" not in runs or not others:
        return Table(
            name, title, missing="evaluations/loop and evaluations of its ablations, with --loops 2 among others"
        )
    accuracy, nll = _measures(runs["loop"].records, "2")
    rows = [["loop", f"{accuracy:.1f}", f"{nll:.4f}", ""]]
    for run in others:
        own, own_nll = _measures(runs[run].records, "2")
        rows.append([run, f"{own:.1f}", f"{own_nll:.4f}", f"{own_nll - nll:+.4f}"])
    return Table(name, title, ["Run", "Accuracy, %", "NLL", "Δ NLL"], rows, source=_sources(space, *runs))


def scaling(space: Workspace) -> Table:
    """Pairs of runs <scale>-loop and <scale>-full."""
    name, title = "scaling", "Gains by scale, at two loops"
    scales = [run.removesuffix("-loop") for run in space.evaluations if run.endswith("-loop") and run != "plain-loop"]
    pairs = [scale for scale in scales if not _missing(space, {f"{scale}-loop": "2", f"{scale}-full": "1"})]
    if not pairs:
        return Table(name, title, missing="evaluations/<scale>-loop and evaluations/<scale>-full for some scales")
    rows = []
    for scale in pairs:
        ours = _measures(space.evaluations[f"{scale}-loop"].records, "2")
        theirs = _measures(space.evaluations[f"{scale}-full"].records, "1")
        rows.append(
            [scale, f"{theirs[0]:.1f}", f"{ours[0]:.1f}", f"{ours[0] - theirs[0]:+.1f}", f"{ours[1] - theirs[1]:+.3f}"]
        )
    return Table(name, title, ["Scale", "Baseline, %", "Two loops, %", "Δ points", "Δ NLL"], rows)


def budget(space: Workspace) -> Table:
    name, title = "budget", "What training took"
    if not space.budgets:
        return Table(name, title, missing="runs/*/budget.json (recurtrace train)")
    rows = [
        [
            run,
            f"{found['trained_parameters']:,}",
            f"{found['steps']:,}",
            f"{found['tokens']:,}",
            f"{found['total_flops']:.2e}",
            f"{found['seconds'] / 60:.1f}",
            f"{found['peak_bytes'] / 2**30:.2f}",
        ]
        for run, found in space.budgets.items()
    ]
    columns = ["Run", "Parameters trained", "Steps", "Tokens", "FLOPs", "Minutes", "Peak GiB"]
    return Table(name, title, columns, rows, "FLOPs are analytical.", "recurtrace train, one recipe for each run")


def cost(space: Workspace) -> Table:
    name, title = "cost", "What depth costs"
    if space.cost is None:
        return Table(name, title, missing="cost.json (recurtrace cost --out)")
    rows = [
        [
            str(row["loops"]),
            str(row["layer_passes"]),
            f"{row['flops_ratio']:.2f}×",
            f"{row['time_ratio']:.2f}×",
            f"{row['kv_bytes_per_token']:,}",
        ]
        for row in space.cost["depths"]
    ]
    columns = ["Loops", "Layer passes", "FLOPs", "Time", "K/V bytes per token"]
    return Table(name, title, columns, rows, space.cost.get("note", ""), space.cost.get("command", ""))


def _missing(space: Workspace, runs: dict[str, str]) -> str:
    """Runs that are not there, or were not evaluated at the depth that is needed."""
    absent = [
        f"evaluations/{run} with --loops {loops}"
        for run, loops in runs.items()
        if run not in space.evaluations or loops not in space.evaluations[run].manifest["loops"]
    ]
    return f"{' and '.join(absent)} (recurtrace evaluate)" if absent else ""


def _sources(space: Workspace, *runs: str) -> str:
    return "; ".join(f"recurtrace evaluate {space.evaluations[run].manifest.get('model', run)}" for run in runs)


def _by_suite(evaluation: Evaluation) -> dict[str, list[ItemRecord]]:
    found: dict[str, list[ItemRecord]] = {}
    for record in evaluation.records:
        suites = TASKS[record.task].suites if record.task in TASKS else ()
        for suite in [name for name in suites if name != "training"] or ["other"]:
            found.setdefault(suite, []).append(record)
    return found


def _measures(records: Sequence[ItemRecord], asked: str) -> tuple[float, float]:
    """Accuracy in percent, and NLL."""
    results = [record.at(asked) for record in records]
    return 100 * statistics.mean(r.correct for r in results), statistics.mean(r.nll for r in results)
