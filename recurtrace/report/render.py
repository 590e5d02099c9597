"""A report as Markdown, LaTeX and one self-contained HTML page."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from recurtrace.files import writing
from recurtrace.report import figures
from recurtrace.report.table import Table
from recurtrace.report.tables import all_tables
from recurtrace.report.workspace import Workspace, read_workspace


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    draw: Callable[[], Any]
    missing: str
    """What is not there yet; such a picture cannot be drawn."""


def report(folder: Path, out: Path, title: str = "RecurTrace report") -> list[Path]:
    """Write report.md, report.tex, report.html and the figures; returns what was written."""
    space = read_workspace(folder)
    tables, every = all_tables(space), all_pictures(space)
    pictures = [picture for picture in every if not picture.missing]
    written = []
    for picture in pictures:
        for kind in ("png", "svg"):
            figures.save(picture.draw(), out / "figures" / f"{picture.name}.{kind}")
            written.append(out / "figures" / f"{picture.name}.{kind}")
    templates = Environment(loader=PackageLoader("recurtrace.report"), autoescape=select_autoescape())
    lacking = [(part.title, part.missing) for parts in (tables, every) for part in parts if part.missing]
    texts = {
        "report.md": markdown(tables, pictures, title),
        "report.tex": latex(tables),
        "report.html": templates.get_template("page.html").render(
            title=title,
            folder=folder.name,
            version=version("recurtrace"),
            headline=headline(space),
            tables=[table for table in tables if not table.missing],
            missing=lacking,
            pictures=[(picture, figures.as_svg(picture.draw())) for picture in pictures],
        ),
    }
    for name, text in texts.items():
        with writing(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(out / name)
    return written


def headline(space: Workspace) -> list[tuple[str, str]]:
    """The few numbers a reader looks for first."""
    analyses = [analysis for analysis in space.analyses.values() if "transition" in analysis]
    if not analyses:
        return []
    rows = [{row["name"]: row for row in analysis["methods"]} for analysis in analyses]

    def mean(name: str, key: str) -> float:
        return sum(row[name][key] for row in rows) / len(rows)

    best = sum(max(r["accuracy"] for r in analysis["fixed"]) for analysis in analyses) / len(analyses)
    return [
        ("one loop, the base", f"{100 * mean('fixed-1', 'accuracy'):.1f} %"),
        ("best fixed depth", f"{100 * best:.1f} %"),
        ("adaptive", f"{100 * mean('recurtrace', 'accuracy'):.1f} %"),
        ("mean loops", f"{mean('recurtrace', 'mean_depth'):.2f}"),
        ("correctness ceiling", f"{100 * mean('ceiling-correct', 'accuracy'):.1f} %"),
    ]


def all_pictures(space: Workspace) -> list[Picture]:
    analyses = [analysis for analysis in space.analyses.values() if "operating_points" in analysis]
    scaling = next(table for table in all_tables(space) if table.name == "scaling")
    probe, cost = space.probe, space.cost
    head = "" if analyses else "analysis/*.json of a model with a halting head"
    return [
        Picture("loops", "Accuracy against mean loops", lambda: figures.accuracy_by_loops(analyses), head),
        Picture("difficulty", "Depth follows difficulty", lambda: figures.depth_and_difficulty(analyses), head),
        Picture("threshold", "What the threshold trades", lambda: figures.threshold_curve(analyses), head),
        Picture("scales", "Gains by scale", lambda: figures.gains_by_scale(scaling.rows), scaling.missing),
        Picture("probe", "Which layers to loop", lambda: figures.probe_curve(probe), "" if probe else "probe.json"),
        Picture("cost", "What depth costs", lambda: figures.loop_cost(cost), "" if cost else "cost.json"),
    ]


def markdown(tables: list[Table], pictures: list[Picture], title: str) -> str:
    parts = [f"# {title}"]
    parts += [f"![{picture.title}](figures/{picture.name}.png)" for picture in pictures]
    for table in tables:
        parts.append(f"## {table.title}")
        if table.missing:
            parts.append(f"Not there yet: needs {table.missing}.")
            continue
        lines = [f"| {' | '.join(table.columns)} |", "|---" + "|---:" * (len(table.columns) - 1) + "|"]
        for i, row in enumerate(table.rows):
            cells = [f"**{cell}**" if i in table.strong and cell else cell for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
        parts += [text for text in (table.note, f"`{table.source}`" if table.source else "") if text]
    return "\n\n".join(parts) + "\n"


def latex(tables: list[Table]) -> str:
    """One table environment for each, for \\input; needs booktabs."""
    parts = ["% Made by recurtrace report; needs \\usepackage{booktabs}."]
    for table in tables:
        if table.missing:
            parts.append(f"% {table.title}: needs {table.missing}.")
            continue
        body = [" & ".join(map(_escape, row)) + r" \\" for row in table.rows]
        for i in table.strong:
            body[i] = " & ".join(rf"\textbf{{{_escape(cell)}}}" for cell in table.rows[i]) + r" \\"
        parts.append(
            "\n".join(
                [
                    r"\begin{table}[t]",
                    r"\centering\small",
                    rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
                    r"\toprule",
                    " & ".join(map(_escape, table.columns)) + r" \\",
                    r"\midrule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                    rf"\caption{{{_escape(f'{table.title}. {table.note}'.strip())}}}",
                    rf"\label{{tab:{table.name}}}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


_LATEX = {
    **{character: rf"\{character}" for character in "&%#_"},
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "τ": r"$\tau$",
    "×": r"$\times$",
}


def _escape(text: str) -> str:
    return re.sub("|".join(map(re.escape, _LATEX)), lambda found: _LATEX[found[0]], text)
