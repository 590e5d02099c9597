"""A report as Markdown, LaTeX and one self-contained HTML page."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import TypeVar

from jinja2 import Environment, PackageLoader, select_autoescape
from matplotlib.figure import Figure

from recurtrace.files import writing
from recurtrace.records import MethodResult
from recurtrace.report import figures
from recurtrace.report.run_tables import NO_SCALES, scale_gains
from recurtrace.report.table import Table
from recurtrace.report.tables import all_tables
from recurtrace.report.workspace import Workspace, read_workspace

T = TypeVar("T")


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    draw: Callable[[], Figure]
    missing: str = ""
    """What is not there yet; such a picture is empty and not drawn."""


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
    analyses = space.head_analyses
    if not analyses:
        return []

    def methods(name: str) -> list[MethodResult]:
        return [analysis.method(name) for analysis in analyses]

    def accuracy(name: str) -> str:
        return f"{100 * mean(row.accuracy for row in methods(name)):.1f} %"

    best = mean(max(row.accuracy for row in analysis.fixed) for analysis in analyses)
    return [
        ("one loop, the base", accuracy("fixed-1")),
        ("best fixed depth", f"{100 * best:.1f} %"),
        ("adaptive", accuracy("recurtrace")),
        ("mean loops", f"{mean(row.mean_depth for row in methods('recurtrace')):.2f}"),
        ("correctness ceiling", accuracy("ceiling-correct")),
    ]


def all_pictures(space: Workspace) -> list[Picture]:
    analyses, head = space.head_analyses, "analysis/*.json of a model with a halting head"
    return [
        _picture(
            "loops",
            "Accuracy against mean loops",
            partial(figures.accuracy_by_loops, lines=loopless(space)),
            analyses,
            head,
        ),
        _picture(
            "buckets",
            "Loops and accuracy by difficulty",
            figures.depth_by_difficulty,
            [analysis for analysis in analyses if analysis.buckets],
            f"{head}, of items with a difficulty",
        ),
        _picture("difficulty", "Loops on easy and hard items", figures.depth_and_difficulty, analyses, head),
        _picture("threshold", "What the threshold trades", figures.threshold_curve, analyses, head),
        _picture("scales", "Gains by scale", figures.gains_by_scale, scale_gains(space), NO_SCALES),
        _picture("probe", "Which layers to loop", figures.probe_curve, space.probe, "probe.json"),
        _picture("cost", "What depth costs", figures.loop_cost, space.cost, "cost.json"),
    ]


def loopless(space: Workspace) -> dict[str, list[float]]:
    """Accuracy of the models without loops that are compared with, by training seed; the base is one loop."""
    titles = {"full": "full fine-tune", "adapter": "matched adapter"}
    return {
        title: [mean(record.at("1").correct for record in one.records) for one in space.evaluations[run]]
        for run, title in titles.items()
        if run in space.evaluations
    }


def _picture(name: str, title: str, draw: Callable[[T], Figure], of: T | None, needs: str) -> Picture:
    return Picture(name, title, partial(draw, of)) if of else Picture(name, title, Figure, missing=needs)


def markdown(tables: list[Table], pictures: list[Picture], title: str) -> str:
    parts = [f"# {title}"]
    parts += [f"![{picture.title}](figures/{picture.name}.png)" for picture in pictures]
    for table in tables:
        parts.append(f"## {table.title}")
        if table.missing:
            parts.append(f"Not available: needs {table.missing}.")
            continue
        parts.append(markdown_table(table))
        parts += [text for text in (table.note, f"`{table.source}`" if table.source else "") if text]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    lines = [f"| {' | '.join(table.columns)} |", "|---" + "|---:" * (len(table.columns) - 1) + "|"]
    for i, row in enumerate(table.rows):
        cells = [f"**{cell}**" if i in table.strong and cell else cell for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
