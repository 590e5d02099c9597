"""Figures, each from the file a stage wrote."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recurtrace.files import writing
from recurtrace.records import BlockProbe, CostReport, HeadAnalysis, MethodResult
from recurtrace.report.analysis_tables import median_seed
from recurtrace.report.escape import short
from recurtrace.report.suite_tables import ScaleGain

INK, ACCENT, SOFT, MUTED = "#1f2933", "#c2410c", "#fdba74", "#9aa5b1"
METHOD, BASELINE = "#2563eb", "#15803d"

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
        "text.parse_math": False,  # names from files are texts, whatever stands in them
    }
)


def as_bytes(figure: Figure, kind: str) -> bytes:
    """As a PNG or SVG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    plt.close(figure)
    return buffer.getvalue()


def probe_curve(probe: BlockProbe) -> Figure:
    """How far each layer turns the final token's state, the span between the bends, and the chosen block."""
    distances = probe.distances
    layers = range(len(distances))
    start, size = probe.loop_start, probe.loop_num_layers
    compared = sorted((window.start, window.nll) for window in probe.windows if window.nll is not None)
    heights = [3.0, 1.8] if compared else [3.0]
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(6.4, sum(heights)), height_ratios=heights, sharex=True, squeeze=False
    )
    curve = axes[0, 0]
    chosen = f"the probe's choice, {start}–{start + size - 1}"
    curve.axvspan(start - 0.5, start + size - 0.5, color=SOFT, alpha=0.6, lw=0, label=chosen)
    for name, boundary in (("encoder ends", probe.encoder_end), ("decoder begins", probe.decoder_start)):
        if boundary is not None:
            curve.axvline(boundary, color=MUTED, lw=1, ls="--")
            curve.annotate(f"{name}\nat {boundary}", (boundary, 1), xycoords=("data", "axes fraction"), ha="center",
                           va="bottom", fontsize=8, color=INK)  # fmt: skip
    curve.errorbar(
        layers, distances, yerr=[1.96 * error for error in probe.errors], color=INK, lw=1.4, marker="o", ms=3
    )
    curve.set_ylabel("angular distance\n(half turns)")
    curve.set_ylim(bottom=0)
    curve.legend(frameon=False, loc="upper right")
    if compared:
        losses = axes[1, 0]
        losses.bar([first + (size - 1) / 2 for first, _ in compared],
                   [nll - (probe.base_nll or 0.0) for _, nll in compared], width=0.6,
                   color=[ACCENT if first == start else MUTED for first, _ in compared])  # fmt: skip
        losses.axhline(0, color=INK, lw=0.8)
        losses.set_ylabel("NLL of two loops\nover the base")
    axes[-1, 0].set_xlabel("layer (for a window: its middle layer)" if compared else "layer")
    figure.suptitle(
        f"{short(Path(probe.model).name)}: {probe.inputs:,} inputs of {short(probe.data)}", fontsize=10, y=1.02
    )
    return figure


def draw_probe(source: Path, out: Path) -> None:
    with writing(out) as temporary:
        temporary.write_bytes(as_bytes(probe_curve(BlockProbe.read(source)), "png"))


class LoopPoints(NamedTuple):
    """What is drawn against mean loops."""

    analyses: list[HeadAnalysis]
    lines: Mapping[str, Sequence[float]]
    """Models without loops (a fine-tuned base, an adapter), each with its accuracy by training seed."""


def accuracy_by_loops(points: LoopPoints) -> Figure:
    """Accuracy against mean loops: fixed depths and the head at every ration as lines, every method as a point."""
    analyses, lines = points
    figure, axes = plt.subplots(figsize=(7.6, 4.8))
    fixed = np.array([[100 * row.accuracy for row in analysis.fixed] for analysis in analyses]).mean(axis=0)
    depths = [row.depth for row in analyses[0].fixed]
    axes.plot(depths, fixed, color=INK, lw=1.4, marker="o", ms=3.5, zorder=2)
    drawn = _along(np.array(depths), fixed)
    labels = [Label("fixed depth", INK, depths[-1], float(fixed[-1]))]
    best = float(fixed.max())
    axes.axhline(best, color=MUTED, lw=0.8, ls="--", zorder=1)
    labels.append(Label("best fixed", INK, 1.12 * depths[-1], best))
    for title, seeds in lines.items():
        height = 100 * float(np.mean(seeds))
        axes.axhline(height, color=BASELINE, lw=1.1, ls="--", zorder=1)
        labels.append(Label(title, BASELINE, 1.12 * depths[-1], height))
    by_title: dict[str, list[MethodResult]] = {}
    for analysis in analyses:
        for row in analysis.methods:
            if not row.name.startswith(("fixed", "ceiling")) and not row.name.endswith("-floor") and not row.ours:
                by_title.setdefault(short(row.title), []).append(row)
    for title, rows in by_title.items():
        x, y = float(np.mean([row.mean_depth for row in rows])), [100 * row.accuracy for row in rows]
        own = title == "RecurTrace"
        color, marker, size = (ACCENT, "*", 15) if own else (METHOD, "D", 5.5)
        spread = np.std(y, ddof=1) if len(y) > 1 else None
        axes.errorbar(x, np.mean(y), yerr=spread, color=color, fmt=marker, ms=size, zorder=4 if own else 3)
        labels.append(Label(title, color, x, float(np.mean(y))))
    rations = [{row.ration: (row.mean_depth, 100 * row.accuracy) for row in analysis.rations} for analysis in analyses]
    if shared := [ration for ration in rations[0] if all(ration in rows for rows in rations)]:
        curve = np.array([[rows[ration] for ration in shared] for rows in rations]).mean(axis=0)
        axes.plot(*curve.T, color=ACCENT, lw=1.2, alpha=0.7, zorder=2)
        drawn += _along(*curve.T)
        labels.append(Label("at other thresholds", ACCENT, *map(float, curve[0])))
    axes.set_xlabel("mean loops")
    axes.set_ylabel("accuracy, %")
    axes.set_xscale("log", base=2)
    ticks = [depth for depth in (1, 2, 4, 8, 16, 32) if depth <= depths[-1]]
    axes.set_xticks(ticks, [str(depth) for depth in ticks])
    axes.set_xlim(0.9, depths[-1] * 1.15)
    axes.margins(y=0.12)
    _leave_out_the_floor(axes, fixed, [label.y for label in labels])
    heights = [best, *(100 * float(np.mean(seeds)) for seeds in lines.values())]
    drawn += [Span(0.9, 1.1 * depths[-1], height) for height in heights]
    _label_beside(axes, labels, drawn)
    return figure


def _leave_out_the_floor(axes: Axes, fixed: np.ndarray, others: list[float]) -> None:
    """One loop may be far below everything else, where it would press the rest together: then a number says it."""
    low, high = min(*fixed[1:], *others), max(*fixed, *others)
    if low - fixed[0] > 0.5 * (high - low):
        axes.set_ylim(low - 0.25 * (high - low), high + 0.12 * (high - low))  # room for the three lines
        said = f"↓ one loop,\nno added depth:\n{fixed[0]:.1f} %"
        axes.annotate(said, (0.02, 0.03), xycoords="axes fraction", fontsize=8.5, color=INK)


class Label(NamedTuple):
    text: str
    color: str
    x: float
    y: float


class Span(NamedTuple):
    """What takes a stretch of the axis at some height."""

    start: float
    end: float
    y: float


def _along(x: np.ndarray, y: np.ndarray) -> list[Span]:
    """What a line through these points takes."""
    places = 2 ** np.linspace(np.log2(x[0]), np.log2(x[-1]), 200)
    return [
        Span(place / 1.02, place * 1.02, float(height))
        for place, height in zip(places, np.interp(places, x, y), strict=True)
    ]


def _label_beside(axes: Axes, labels: list[Label], lines: list[Span]) -> None:
    """A name to the right of each point; points in one place share one, and names move off each other and off lines."""
    low, high = axes.get_ylim()
    near, step = 0.012 * (high - low), 0.055 * (high - low)
    groups: list[Label] = []
    for label in labels:
        for i, other in enumerate(groups):
            close = abs(label.y - other.y) < near and abs(np.log2(label.x / other.x)) < 0.08
            if close and label.color == other.color:
                groups[i] = other._replace(text=f"{other.text}, {label.text}")
                break
        else:
            groups.append(label)
    taken = [Span(label.x * 0.97, label.x * 1.03, label.y) for label in groups]
    for label in sorted(groups, key=lambda label: (-label.x, -label.y)):
        start = label.x * 1.06
        end = start * 2 ** (0.075 * len(label.text))
        heights = (label.y + side * quarter * step / 4 for quarter in range(400) for side in (-1, 1))
        crossed = [line for line in lines if line.start < end and start < line.end]
        beside = [span for span in taken if span.start < end and start < span.end]
        free = (
            y
            for y in heights
            if all(abs(y - span.y) >= step for span in beside) and all(abs(y - line.y) > step / 2 for line in crossed)
        )
        height = next(free, label.y)
        taken.append(Span(start, end, height))
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(start, height),
            textcoords="data",
            fontsize=8.5,
            color=label.color,
            va="center",
            annotation_clip=False,
            weight="bold" if label.text == "RecurTrace" else "normal",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": MUTED, "shrinkA": 0, "shrinkB": 2},
        )


def depth_by_difficulty(analyses: list[HeadAnalysis]) -> Figure:
    """How many loops the head gives to items of each difficulty, and what depth does for them."""
    names = [short(row.bucket) for row in analyses[0].buckets]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), width_ratios=(1, 1.3))
    places = range(len(names))
    depths = np.array([[row.mean_depth for row in analysis.buckets] for analysis in analyses])
    wanted = np.array([[row.oracle_depth for row in analysis.buckets] for analysis in analyses])
    left.plot(places, wanted.mean(axis=0), color=MUTED, lw=1.2, ls="--", marker="s", ms=3, label="oracle")
    spread = depths.std(axis=0, ddof=1) if len(depths) > 1 else None
    left.errorbar(places, depths.mean(axis=0), yerr=spread, color=ACCENT, lw=1.5, marker="o", ms=4, label="head")
    left.set_ylabel("mean loops")
    left.legend(frameon=False, fontsize=8)
    fixed = np.array([[row.fixed for row in analysis.buckets] for analysis in analyses]).mean(axis=0)  # [buckets, T]
    shown = [depth for depth in (1, 2, 4, 8, 16) if depth <= fixed.shape[1]]
    for number, depth in enumerate(shown):
        shade = plt.get_cmap("Greys")(0.3 + 0.6 * number / max(1, len(shown) - 1))
        right.plot(places, 100 * fixed[:, depth - 1], color=shade, lw=1.1, marker=".", label=f"T = {depth}")
    own = np.array([[row.accuracy for row in analysis.buckets] for analysis in analyses]).mean(axis=0)
    right.plot(places, 100 * own, color=ACCENT, lw=1.8, marker="o", ms=4, label="adaptive")
    right.set_ylabel("accuracy, %")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title = names[0].partition("=")[0] if "=" in names[0] else "difficulty"
    for axes in (left, right):
        axes.set_xticks(places, [name.partition("=")[2] or name for name in names])
        axes.set_xlabel({"facts": "number of facts", "k": "steps k"}.get(title, title))
    figure.tight_layout()
    return figure


def depth_and_difficulty(analyses: list[HeadAnalysis]) -> Figure:
    """Loops on easy and hard items of the median seed: means with the evaluation seeds, and where both stop."""
    one = median_seed(analyses)
    point = one.point("illustration") or one.operating_points[-1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.0), width_ratios=(1, 1.6))
    for place, (name, color, mean, per_seed, counts) in enumerate(
        (
            ("easy", MUTED, point.easy, [one.easy for one in point.seeds], point.easy_histogram),
            ("hard", ACCENT, point.hard, [one.hard for one in point.seeds], point.hard_histogram),
        )
    ):
        seeds = [depth for depth in per_seed if depth is not None]
        left.bar(place, mean or 0, color=color, width=0.6, alpha=0.85)
        left.plot(np.full(len(seeds), place) + np.linspace(-0.15, 0.15, len(seeds)), seeds, "o", ms=3, color=INK)
        total = max(1, sum(counts.values()))
        offset = -0.2 if name == "easy" else 0.2
        right.bar([depth + offset for depth in counts], [100 * count / total for count in counts.values()], width=0.4,
                  color=color, label=name)  # fmt: skip
    left.set_xticks([0, 1], ["easy", "hard"])
    left.set_ylabel("mean loops")
    right.set_xlabel(f"loops (τ = {point.threshold:.2f}, no floor)")
    right.set_ylabel("% of items")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(frameon=False)
    figure.tight_layout()
    return figure


def threshold_curve(analyses: list[HeadAnalysis]) -> Figure:
    """What the threshold trades in the median seed: accuracy against mean loops, without a floor."""
    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    one = median_seed(analyses)
    x = [row.mean_depth for row in one.threshold_sweep]
    y = [100 * (one.fixed[-1].accuracy + row.gain / one.items) for row in one.threshold_sweep]
    best = max(row.accuracy for row in one.fixed)
    axes.axhline(100 * best, color=MUTED, lw=1, ls="--")
    axes.annotate("best fixed depth", (1, 100 * best), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                  fontsize=8, color=INK)  # fmt: skip
    axes.plot(x, y, color=ACCENT, marker="o", ms=4, lw=1.3)
    for row, a, b in zip(one.threshold_sweep, x, y, strict=True):
        axes.annotate(
            f"τ = {row.threshold:g}", (a, b), xytext=(4, -11), textcoords="offset points", fontsize=8, color=INK
        )
    axes.set_xlabel("mean loops")
    axes.set_ylabel("accuracy, %")
    axes.margins(x=0.15, y=0.25)
    return figure


def gains_by_scale(scales: Sequence[ScaleGain]) -> Figure:
    """Points gained at two loops over the same-budget baseline, and the fall of the loss; bands over training seeds."""
    figure, left = plt.subplots(figsize=(6.4, 3.2))
    right = left.twinx()
    right.spines["right"].set_visible(True)
    places = np.arange(len(scales))
    for axes, color, style, marker, values, label in (
        (left, METHOD, "-", "o", [one.gains for one in scales], "accuracy gain, points"),
        (right, ACCENT, "--", "s", [[-c for c in one.nll_changes] for one in scales], "NLL reduction, nats"),
    ):
        means = np.array([np.mean(one) for one in values])
        spreads = np.array([np.std(one, ddof=1) if len(one) > 1 else 0.0 for one in values])
        axes.plot(places, means, color=color, ls=style, marker=marker, ms=5, lw=1.5)
        axes.fill_between(places, means - spreads, means + spreads, color=color, alpha=0.15, lw=0)
        if len(scales) == 1:  # a band of one point is a bar
            axes.errorbar(places, means, yerr=spreads, color=color, fmt="none", capsize=3)
        axes.set_ylabel(label, color=color)
        axes.margins(y=0.25)
    _align_zeros(left, right)
    left.axhline(0, color=INK, lw=0.8)
    left.set_xticks(places, [short(one.scale) for one in scales])
    left.set_xlim(-0.4, len(scales) - 0.6)
    return figure


def _align_zeros(*every: Axes) -> None:
    """Zero at the same height of all axes, so that a point above it is a gain on each."""
    limits = [(min(low, 0), max(high, 0)) for low, high in (axes.get_ylim() for axes in every)]
    spans = [high - low for low, high in limits]
    below = max(-low / span for (low, _), span in zip(limits, spans, strict=True))
    above = max(high / span for (_, high), span in zip(limits, spans, strict=True))
    for axes, span in zip(every, spans, strict=True):
        axes.set_ylim(-below * span, above * span)


def loop_cost(cost: CostReport) -> Figure:
    """Runtime and FLOPs against the unlooped base."""
    figure, axes = plt.subplots(figsize=(6.4, 2.8))
    loops = [row.loops for row in cost.depths]
    axes.plot(loops, [row.flops_ratio for row in cost.depths], color=MUTED, lw=1.4, marker="s", ms=4, label="FLOPs")
    axes.plot(loops, [row.time_ratio for row in cost.depths], color=ACCENT, lw=1.4, marker="o", ms=4, label="time")
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
