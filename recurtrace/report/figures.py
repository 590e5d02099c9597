"""Figures, each from the file a stage wrote."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from recurtrace.files import writing

INK, ACCENT, SOFT, MUTED = "#1f2933", "#c2410c", "#fdba74", "#9aa5b1"

plt.rcParams.update(
    {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
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


def probe_curve(probe: dict[str, Any]) -> Figure:
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
