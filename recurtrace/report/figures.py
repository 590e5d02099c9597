"""Figures, each from the file a stage wrote."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recurtrace.files import writing

INK, ACCENT, SOFT, MUTED = "#1f2933", "#c2410c", "#fdba74", "#9aa5b1"

plt.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.dpi": 150,
        "savefig.bbox": "tight",
    }
)


def save(figure: Figure, path: Path) -> None:
    with writing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."))
    plt.close(figure)


def probe_curve(probe: Any) -> Figure:
    """How far each layer turns the final token's state, the span between the bends, and the chosen block."""
    distances = probe["distances"]
    layers = range(len(distances))
    start, size = probe["loop_start"], probe["loop_num_layers"]
    compared = sorted((w for w in probe["windows"] if w["nll"] is not None), key=lambda w: w["start"])
    heights = [3.0, 1.8] if compared else [3.0]
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(6.4, sum(heights)), height_ratios=heights, sharex=True, squeeze=False
    )
    curve = axes[0, 0]
    curve.axvspan(
        start - 0.5, start + size - 0.5, color=SOFT, alpha=0.6, lw=0, label=f"block {start}–{start + size - 1}"
    )
    for name, boundary in (("encoder ends", probe["encoder_end"]), ("decoder begins", probe["decoder_start"])):
        if boundary is not None:
            curve.axvline(boundary, color=MUTED, lw=1, ls="--")
            curve.annotate(f"{name}\nat {boundary}", (boundary, 1), xycoords=("data", "axes fraction"), ha="center",
                           va="bottom", fontsize=8, color=INK)  # fmt: skip
    curve.errorbar(
        layers, distances, yerr=[1.96 * error for error in probe["errors"]], color=INK, lw=1.4, marker="o", ms=3
    )
    curve.set_ylabel("angular distance\n(half turns)")
    curve.set_ylim(bottom=0)
    curve.legend(frameon=False, loc="upper right")
    if compared:
        losses = axes[1, 0]
        middles = [window["start"] + (size - 1) / 2 for window in compared]
        losses.bar(middles, [window["nll"] - probe["base_nll"] for window in compared], width=0.6,
                   color=[ACCENT if window["start"] == start else MUTED for window in compared])  # fmt: skip
        losses.axhline(0, color=INK, lw=0.8)
        losses.set_ylabel("NLL of two loops\nover the base")
    axes[-1, 0].set_xlabel("layer (for a window: its middle layer)" if compared else "layer")
    figure.suptitle(f"{Path(probe['model']).name}: {probe['inputs']:,} inputs of {probe['data']}", fontsize=10, y=1.02)
    return figure


def draw_probe(source: Path, out: Path) -> None:
    save(probe_curve(json.loads(source.read_text(encoding="utf-8"))), out)


def accuracy_by_loops(analyses: list[dict[str, Any]]) -> Figure:
    """Every method's accuracy against its mean depth, and beside it the curve of fixed depths."""
    figure, (axes, side) = plt.subplots(1, 2, figsize=(7.6, 4.0), width_ratios=(1.7, 1))
    by_title: dict[str, list[dict[str, Any]]] = {}
    for analysis in analyses:
        for row in analysis["methods"]:
            if not row["name"].startswith(("fixed", "ceiling")):
                by_title.setdefault(row["title"], []).append(row)
    fixed = np.array([[100 * row["accuracy"] for row in analysis["fixed"]] for analysis in analyses])
    depths = [row["depth"] for row in analyses[0]["fixed"]]
    best = fixed.mean(axis=0).max()
    axes.axhline(best, color=MUTED, ls="--", lw=1, label=f"best fixed depth, {best:.1f} %")
    colors, markers = plt.get_cmap("tab20"), "osD^vPX"
    for number, (title, rows) in enumerate(by_title.items()):
        x, y = ([scale * row[key] for row in rows] for scale, key in ((1, "mean_depth"), (100, "accuracy")))
        own = title == "RecurTrace"
        look = (
            {"fmt": "*", "ms": 13, "color": ACCENT}
            if own
            else {"fmt": markers[number % 7], "color": colors(number % 20)}
        )
        axes.errorbar(np.mean(x), np.mean(y), yerr=np.std(y, ddof=1) if len(y) > 1 else None, label=title, **look)
    axes.set_xlabel("mean loops")
    axes.set_ylabel("accuracy, %")
    axes.margins(x=0.1, y=0.15)
    side.plot(depths, fixed.mean(axis=0), color=INK, lw=1.2, marker="o", ms=3)
    side.set_xlabel("fixed depth")
    side.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(frameon=False, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=4)
    return figure


def depth_and_difficulty(analyses: list[dict[str, Any]]) -> Figure:
    """Loops on easy and hard items: their means with the evaluation seeds, and where both stop."""
    point = analyses[0]["operating_points"][-1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.0), width_ratios=(1, 1.6))
    for place, (name, color) in enumerate((("easy", MUTED), ("hard", ACCENT))):
        seeds = [one[name] for one in point["seeds"] if one[name] is not None]
        left.bar(place, point[name] or 0, color=color, width=0.6, alpha=0.85)
        left.plot(np.full(len(seeds), place) + np.linspace(-0.15, 0.15, len(seeds)), seeds, "o", ms=3, color=INK)
        counts = {int(depth): count for depth, count in point[f"{name}_histogram"].items()}
        total = max(1, sum(counts.values()))
        offset = -0.2 if name == "easy" else 0.2
        right.bar([depth + offset for depth in counts], [100 * count / total for count in counts.values()], width=0.4,
                  color=color, label=name)  # fmt: skip
    left.set_xticks([0, 1], ["easy", "hard"])
    left.set_ylabel("mean loops")
    right.set_xlabel(f"loops (τ = {point['threshold']:.2f}, no floor)")
    right.set_ylabel("% of items")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(frameon=False)
    figure.tight_layout()
    return figure


def threshold_curve(analyses: list[dict[str, Any]]) -> Figure:
    """What the threshold trades: accuracy against mean loops, without a floor."""
    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    rows = [analysis["threshold_sweep"] for analysis in analyses]
    at_budget = [100 * analysis["fixed"][-1]["accuracy"] for analysis in analyses]
    items = analyses[0]["items"]
    x = np.mean([[row["mean_depth"] for row in run] for run in rows], axis=0)
    gains = [[budget + 100 * row["gain"] / items for row in run] for run, budget in zip(rows, at_budget, strict=True)]
    y = np.mean(gains, axis=0)
    axes.plot(x, y, color=ACCENT, marker="o", ms=4, lw=1.3)
    for row, a, b in zip(rows[0], x, y, strict=True):
        axes.annotate(
            f"τ = {row['threshold']:g}", (a, b), xytext=(4, 5), textcoords="offset points", fontsize=8, color=INK
        )
    axes.set_xlabel("mean loops")
    axes.set_ylabel("accuracy, %")
    axes.margins(x=0.15, y=0.25)
    return figure


def gains_by_scale(table_rows: Sequence[Sequence[str]]) -> Figure:
    """Points gained at two loops over the same-budget baseline."""
    figure, axes = plt.subplots(figsize=(6.4, 2.8))
    gains = [float(row[3]) for row in table_rows]
    axes.bar([row[0] for row in table_rows], gains, color=ACCENT, width=0.5)
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylabel("points over the baseline")
    return figure


def loop_cost(cost: Any) -> Figure:
    """Runtime and FLOPs against the unlooped base."""
    figure, axes = plt.subplots(figsize=(6.4, 2.8))
    loops = [row["loops"] for row in cost["depths"]]
    axes.plot(
        loops, [row["flops_ratio"] for row in cost["depths"]], color=MUTED, lw=1.4, marker="s", ms=4, label="FLOPs"
    )
    axes.plot(
        loops, [row["time_ratio"] for row in cost["depths"]], color=ACCENT, lw=1.4, marker="o", ms=4, label="time"
    )
    axes.set_xlabel("loops")
    axes.set_ylabel("times the base")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def as_svg(figure: Figure) -> str:
    """For a page: text stays text, and what is drawn in ink takes the page's own colour, light or dark."""
    buffer = io.StringIO()
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "recurtrace"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
