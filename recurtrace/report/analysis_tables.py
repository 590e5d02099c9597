"""The paper's tables of halting: from what `recurtrace compare` wrote, one analysis for each training seed."""

import statistics
from collections.abc import Callable
from typing import Any

from recurtrace.report.table import Table, spread
from recurtrace.report.workspace import Workspace

SHOWN = (1, 2, 4, 8, 16)  # fixed depths in the comparison, beside the best


def _from_analyses(name: str, title: str, key: str) -> Callable:
    """A table of every analysis, missing where none has the key."""

    def decorate(make: Callable[[list[dict[str, Any]]], Table]) -> Callable[[Workspace], Table]:
        def table(space: Workspace) -> Table:
            found = [analysis for analysis in space.analyses.values() if key in analysis]
            if not found:
                return Table(
                    name, title, missing="analysis/*.json of a model with a halting head (recurtrace compare --out)"
                )
            made = make(found)
            source = "; ".join(dict.fromkeys(analysis.get("command", "") for analysis in found))
            return Table(name, title, made.columns, made.rows, made.note, source, strong=made.strong)

        return table

    return decorate


def _seeds(analyses: list[dict[str, Any]]) -> str:
    first = analyses[0]
    trained = f"{len(analyses)} training seeds" if len(analyses) > 1 else "One training seed"
    return f"{trained}, {first['items']:,} items of {first['data']}, {first['seeds']} evaluation seeds."


@_from_analyses("main", "Adaptive depth: every way to choose it", "methods")
def main_comparison(analyses: list[dict[str, Any]]) -> Table:
    by_title: dict[str, list[dict[str, Any]]] = {}
    for analysis in analyses:
        shown = {f"fixed-{depth}" for depth in SHOWN} | {analysis["best_fixed"]}
        for row in [row for row in analysis["methods"] if not row["name"].startswith("fixed") or row["name"] in shown]:
            by_title.setdefault(row["title"] + ("*" if row["ours"] else ""), []).append(row)
    rows = []
    for title, found in by_title.items():
        low, high = (statistics.mean(100 * row[bound] for row in found) for bound in ("gain_low", "gain_high"))
        rows.append(
            [
                title,
                spread((row["accuracy"] for row in found), scale=100),
                spread((row["correct"] for row in found), ".0f"),
                spread(row["mean_depth"] for row in found),
                spread((row["net"] for row in found), "+.0f"),
                f"[{low:+.1f}, {high:+.1f}]",
                ", ".join(f"{row['p_value']:.2g}" for row in found),
                spread((row["nll"] for row in found), ".3f"),
            ]
        )
    best = ", ".join(sorted({analysis["best_fixed"].replace("fixed-", "T=") for analysis in analyses}))
    note = (
        f"{_seeds(analyses)} Δ: right answers more than at the best fixed depth ({best}), with the 95 % "
        "bootstrap interval in points, clustered on evaluation seeds, and the exact McNemar p of each training seed. "
        "* not in the paper's comparison. The oracles look at the answer and are ceilings."
    )
    columns = ["Method", "Accuracy, %", "Right", "Loops", "Δ", "95 %", "p", "NLL"]
    return Table("", "", columns, rows, note, strong=[i for i, row in enumerate(rows) if row[0] == "RecurTrace"])


@_from_analyses("tasks", "Adaptive depth task by task, without a floor", "tasks")
def per_task(analyses: list[dict[str, Any]]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0]["tasks"]):
        found = [analysis["tasks"][i] for analysis in analyses]
        adaptive = [row["adaptive"] for row in found if "adaptive" in row]
        loops = [row["mean_depth"] for row in found if "mean_depth" in row]
        measures = [spread((row[key] for row in found), ".1f", 100) for key in ("fixed", "best")]
        tail = [spread(adaptive, ".1f", 100), spread(loops)] if adaptive else ["no held-out items", ""]
        rows.append([first["task"], str(first["items"]), *measures, *tail])
    note = (
        "Fixed: the deepest of 1, 2, 4, 6, 8 loops. Best: the best of them on these items. Thresholds: each task's own."
    )
    return Table("", "", ["Task", "n", "Fixed", "Best", "Adaptive", "Loops"], rows, note)


@_from_analyses("calibration", "The head against the oracle, depth by depth", "head_calibration")
def calibration(analyses: list[dict[str, Any]]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0]["head_calibration"]):
        found = [analysis["head_calibration"][i] for analysis in analyses]

        def known(key: str, form: str, scale: float, found: list[dict[str, Any]] = found) -> str:
            values = [row[key] for row in found if row[key] is not None]
            return spread(values, form, scale) if values else "one class only"

        rows.append(
            [
                str(first["depth"]),
                "yes" if first["supervised"] else "no",
                known("positive_share", ".1f", 100),
                known("balanced_accuracy", ".1f", 100),
                known("auroc", ".2f", 1),
            ]
        )
    columns = ["Depth", "Supervised", "Should go on, %", "Balanced accuracy, %", "AUROC"]
    return Table("", "", columns, rows, "At the calibrated threshold, on the test items.")


@_from_analyses("histogram", "Where items stop", "histogram")
def histogram(analyses: list[dict[str, Any]]) -> Table:
    depths = sorted({int(depth) for analysis in analyses for depth in analysis["histogram"]})
    rows = []
    for depth in depths:
        counts = [analysis["histogram"].get(str(depth), analysis["histogram"].get(depth, 0)) for analysis in analyses]
        shares = [count / analysis["items"] for count, analysis in zip(counts, analyses, strict=True)]
        rows.append([str(depth), spread(counts, ".0f"), spread(shares, ".1f", 100)])
    return Table("", "", ["Depth", "Items", "%"], rows, _operating(analyses))


@_from_analyses("transition", "Right and wrong, adaptive against the best fixed depth", "transition")
def transition(analyses: list[dict[str, Any]]) -> Table:
    found = [analysis["transition"] for analysis in analyses]
    cells = {key: spread((one[key] for one in found), ".0f") for key in ("both", "gained", "lost", "neither")}
    rows = [["right", cells["both"], cells["gained"]], ["wrong", cells["lost"], cells["neither"]]]
    points = spread((one["points"] for one in found), "+.1f")
    ps = ", ".join(f"{one['p_value']:.2g}" for one in found)
    who = [analysis["deepened"] for analysis in analyses]
    note = f"{points} points; exact McNemar p = {ps}. {_deepened(who)}"
    return Table("", "", ["Adaptive", "fixed right", "fixed wrong"], rows, note)


def _deepened(found: list[dict[str, Any]]) -> str:
    parts = [f"{spread((one['items'] for one in found), '.0f')} items go beyond the floor"]
    for key, base, says in (
        ("precision", "positive_base_rate", "of them are oracle-positive"),
        ("flip_rate", "flip_base_rate", "turn from wrong to right"),
    ):
        pairs = [(one[key], one[base]) for one in found if one[key] is not None and one[base] is not None]
        if pairs:
            rate, chance = (spread(values, ".0f", 100) for values in zip(*pairs, strict=True))
            parts.append(f"{rate} % {says} (by chance {chance} %)")
    return "; ".join(parts) + "."


@_from_analyses("reconciliation", "Two operating points", "operating_points")
def reconciliation(analyses: list[dict[str, Any]]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0]["operating_points"]):
        found = [analysis["operating_points"][i] for analysis in analyses]
        rows.append(
            [
                first["name"],
                spread(one["threshold"] for one in found),
                ", ".join(sorted({str(one["floor"]) for one in found})),
                spread(one["mean_depth"] for one in found),
                spread((one["accuracy"] for one in found), ".1f", 100),
                spread((one["gap"] for one in found), "+.2f"),
            ]
        )
    note = "The main point is calibrated on held-out likelihood; the other has no floor and the best held-out accuracy."
    return Table("", "", ["Setting", "τ", "Floor", "Loops", "Accuracy, %", "Hard - easy"], rows, note)


@_from_analyses("difficulty", "Loops on easy and hard items, seed by seed", "operating_points")
def difficulty(analyses: list[dict[str, Any]]) -> Table:
    point = analyses[0]["operating_points"][-1]
    rows = [
        [name, spread([one["easy"]]), spread([one["hard"]]), spread([one["gap"]], "+.2f")]
        for name, one in [*((str(i + 1), seed) for i, seed in enumerate(point["seeds"])), ("mean", point)]
    ]
    note = "First training seed, at the point without a floor. Hard: wrong after one loop."
    return Table("", "", ["Seed", "Easy", "Hard", "Gap"], rows, note, strong=[len(rows) - 1])


@_from_analyses("thresholds", "The threshold without a floor", "threshold_sweep")
def thresholds(analyses: list[dict[str, Any]]) -> Table:
    rows = []
    for i, first in enumerate(analyses[0]["threshold_sweep"]):
        found = [analysis["threshold_sweep"][i] for analysis in analyses]
        rows.append(
            [
                f"{first['threshold']:.2f}",
                spread(row["mean_depth"] for row in found),
                spread((row["loop_cut"] for row in found), ".1f", 100),
                spread((row["gap"] for row in found), "+.2f"),
                spread((row["gain"] for row in found), "+.0f"),
            ]
        )
    note = "Loop cut is 1 - mean/budget; Δ is right answers more than at the full budget."
    return Table("", "", ["τ", "Loops", "Loop cut, %", "Hard - easy", "Δ"], rows, note)


def _operating(analyses: list[dict[str, Any]]) -> str:
    taus = ", ".join(f"{analysis['threshold']:.2f}" for analysis in analyses)
    floors = ", ".join(str(analysis["floor"]) for analysis in analyses)
    return f"τ = {taus}; floor {floors}."
