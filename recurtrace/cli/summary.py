"""What a pipeline found, in a few lines for the terminal."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROWS = (
    "fixed-1",
    "fixed-2",
    "fixed-8",
    "act",
    "pondernet",
    "calm-margin",
    "loopus",
    "tah",
    "recurtrace",
    "ceiling-correct",
)


def print_summary(folder: Path) -> None:
    for file in sorted(folder.glob("analysis/*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        table = Table("method", "accuracy", "mean loops", "Δ right", "p", title=f"{found['items']:,} test items")
        for row in found["methods"]:
            if row["name"] in ROWS or row["name"] == found["best_fixed"]:
                best = " (best fixed)" if row["name"] == found["best_fixed"] else ""
                cells = [
                    f"{row['accuracy']:.1%}",
                    f"{row['mean_depth']:.2f}",
                    f"{row['net']:+d}",
                    f"{row['p_value']:.2g}",
                ]
                table.add_row(row["title"] + best, *cells)
        Console().print(table)
