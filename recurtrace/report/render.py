"""A report as Markdown, LaTeX and one self-contained HTML page."""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean

from jinja2 import Environment, PackageLoader, select_autoescape

from recurtrace.files import Kind, claim_new, locked, writing
from recurtrace.records import MethodResult
from recurtrace.report import escape, figures
from recurtrace.report.contents import ELSEWHERE, PICTURES, Part, Picture, contents, loopless
from recurtrace.report.table import Table
from recurtrace.report.workspace import Workspace, read_studies

KINDS = ("png", "svg")
FIGURES = tuple(f"figures/{name}.{kind}" for name in PICTURES for kind in KINDS)
REPORT = Kind("report", "report.html", ("report.md", "report.tex", *FIGURES))


def report(folder: Path, out: Path, title: str = "RecurTrace report", overwrite: bool = False) -> list[Path]:
    """Write report.md, report.tex, report.html and the figures; returns what was written."""
    with locked(out):
        if not (out / REPORT.manifest).is_file():
            claim_new(out, REPORT, overwrite)
        made = files(folder, title)  # all of it, before anything is written
        for name in written_figures(out):
            if name not in made:
                (out / name).unlink(missing_ok=True)
        for name, content in made.items():
            with writing(out / name) as temporary:
                temporary.write_bytes(content)
    return [out / name for name in made]


def written_figures(out: Path) -> list[str]:
    """The figures that the report in a folder shows; none where there is no report."""
    page = out / "report.md"
    if not (out / REPORT.manifest).is_file() or not page.is_file():
        return []
    shown = re.findall(r"^!\[.*\]\(figures/([^/]+)\.png\)$", page.read_text(errors="replace"), flags=re.MULTILINE)
    return [f"figures/{name}.{kind}" for name in shown for kind in KINDS]


def files(folder: Path, title: str) -> dict[str, bytes]:
    """The files of a report by name, the page last."""
    studies, title = read_studies(folder), escape.plain(title)
    every = contents(studies)
    sections = {name: [part for part in parts if not part.content.missing] for name, parts in every.items()}
    sections = {name: parts for name, parts in sections.items() if parts}
    there = [part.content for parts in sections.values() for part in parts]
    pictures = [one for one in there if isinstance(one, Picture)]
    made = {
        f"figures/{picture.name}.{kind}": figures.as_bytes(picture.draw(), kind)
        for picture in pictures
        for kind in KINDS
    }
    templates = Environment(
        loader=PackageLoader("recurtrace.report"), autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
    )
    lacking = missing(every)
    texts = {
        "report.md": markdown(sections, lacking, title),
        "report.tex": latex([one for one in there if isinstance(one, Table)], lacking),
        "report.html": templates.get_template("page.html").render(
            title=title,
            folder=escape.plain(folder.name),
            version=version("recurtrace"),
            headline=headline(studies[0]) if len(studies) == 1 else [],
            sections=sections,
            drawn={one.name: figures.as_svg(one.draw()) for one in pictures},
            compared=any(one.beside for one in there if isinstance(one, Table)),
            missing=lacking,
            elsewhere=ELSEWHERE,
        ),
    }
    return made | {name: text.encode(errors="replace") for name, text in texts.items()}


def missing(sections: Mapping[str, Sequence[Part]]) -> list[tuple[str, str, str]]:
    """Title, place in the paper, and needs of every part that is not there."""
    parts = [part for section in sections.values() for part in section if part.content.missing]
    return [(part.content.title, part.paper, part.content.missing) for part in parts]


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
        ("one loop, no added depth", accuracy("fixed-1")),
        ("best fixed depth", f"{100 * best:.1f} %"),
        ("adaptive", accuracy("recurtrace")),
        ("mean loops", f"{mean(row.mean_depth for row in methods('recurtrace')):.2f}"),
        *((title, f"{100 * mean(seeds):.1f} %") for title, seeds in loopless(space).items()),
    ]


def markdown(sections: Mapping[str, Sequence[Part]], lacking: Sequence[tuple[str, str, str]], title: str) -> str:
    parts = [f"# {escape.markdown(title)}"]
    for name, section in sections.items():
        parts.append(f"## {name}")
        for part in section:
            one = part.content
            parts.append(f"### {escape.markdown(one.title)}{f' [{part.paper}]' if part.paper else ''}")
            if isinstance(one, Picture):
                parts.append(f"![{one.title}](figures/{one.name}.png)")
                continue
            parts.append(markdown_table(one))
            parts += [escape.markdown(one.note)] if one.note else []
            parts += [escape.markdown_code(one.source)] if one.source else []
    parts.append("## Not available")
    parts.append(
        "\n".join(
            f"- {escape.markdown(name)}{f' [{paper}]' if paper else ''}: needs {escape.markdown(needs)}."
            for name, paper, needs in lacking
        )
    )
    parts.append("## Not in a report")
    parts.append("\n".join(f"- {paper}: {where}." for paper, where in ELSEWHERE.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """The paper's values stand in parentheses behind ours."""
    header = " | ".join(map(escape.markdown, table.columns))
    lines = [f"| {header} |", "|" + "".join("---:|" if n else "---|" for n in table.numeric)]
    for i, row in enumerate(table.rows):
        cells = [f"**{cell}**" if i in table.strong and cell else cell for cell in map(escape.markdown, row)]
        cells = [f"{cell} ({table.beside[i, j]})" if (i, j) in table.beside else cell for j, cell in enumerate(cells)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def latex(tables: Sequence[Table], lacking: Sequence[tuple[str, str, str]]) -> str:
    """One table environment for each, for \\input; the paper's values are grey."""
    parts = ["% Made by recurtrace report; needs \\usepackage{booktabs} and \\usepackage{xcolor}."]
    for table in tables:
        body = [
            " & ".join(_latex_cell(table, i, j) for j in range(len(row))) + r" \\" for i, row in enumerate(table.rows)
        ]
        parts.append(
            "\n".join(
                [
                    r"\begin{table}[t]",
                    r"\centering\small",
                    rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in table.numeric)}}}",
                    r"\toprule",
                    " & ".join(map(escape.latex, table.columns)) + r" \\",
                    r"\midrule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                    rf"\caption{{{escape.latex(f'{table.title}. {table.note}'.strip())}}}",
                    rf"\label{{tab:{table.name}}}",
                    r"\end{table}",
                ]
            )
        )
    parts += [f"% {escape.plain(f'{title}: needs {needs}.')}" for title, _, needs in lacking]
    return "\n\n".join(parts) + "\n"


def _latex_cell(table: Table, i: int, j: int) -> str:
    text = escape.latex(table.rows[i][j])
    shown = rf"\textbf{{{text}}}" if i in table.strong and text else text
    return rf"{shown} \textcolor{{gray}}{{{escape.latex(table.beside[i, j])}}}" if (i, j) in table.beside else shown
