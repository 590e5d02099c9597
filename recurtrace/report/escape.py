"""Texts from files (titles, names of tasks, commands) as they must stand in Markdown and LaTeX: shown, never obeyed."""

import re

_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {mark: f"\\{mark}" for mark in "\\`*_]|$"}
# An underscore inside a word means nothing, nor does a bracket that no link can follow.
_MARKS = r"[&<>\\`*|$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])"
_LATEX = {
    **{mark: f"\\{mark}" for mark in "&%#_{}$"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "τ": r"$\tau$",
    "×": r"$\times$",
    "✓": r"$\checkmark$",
}


def plain(text: str) -> str:
    """One line that can be written and drawn: no control characters, no halves of characters."""
    return "".join(c if c.isprintable() else " " for c in text.encode(errors="replace").decode())


def short(text: str, length: int = 60) -> str:
    """For a place on a figure."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def markdown(text: str) -> str:
    return re.sub(_MARKS, lambda found: _MARKDOWN[found[0]], plain(text))


def markdown_code(text: str) -> str:
    """A span of code: its fence is longer than any in the text."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{plain(text)}{space}{fence}"


def latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in plain(text))
