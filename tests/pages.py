"""Pages of documentation: their blocks, commands and links; what they say is run and parsed by tests/test_docs.py.

    python -m tests.pages write README.md docs/python-api.md     # put in what the examples print now (`make docs`)
    python -m tests.pages check docs/extending.md                # run the examples and parse the commands of a page

In a page, Python blocks share one namespace and run in their order, unless `<!-- not run: why -->` stands before one. A
`text` block after a Python block is what it prints. `<!-- file: NAME -->` before a block makes it a file. A `diff`
block is a change of the package: files as `--- path`, hunks as `@@`, each found by its own lines.
"""

import contextlib
import difflib
import io
import re
import shlex
import sys
import tempfile
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (not run|file): (.*?) -->\n$")


class PageError(AssertionError):
    """A page says something that is not so."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    start: int
    """Where its text is in the page."""
    mark: str = ""
    """"not run" or "file"."""
    note: str = ""


def blocks(page: str) -> list[Block]:
    found = []
    for fence in _FENCE.finditer(page):
        mark = _MARK.search(page, 0, fence.start())
        mark = mark if mark and mark.end() == fence.start() else None
        line = page.count("\n", 0, fence.start()) + 1
        found.append(Block(fence[1], fence[2], line, fence.start(2), *(mark.groups() if mark else ())))
    return found


def prose(page: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", page)


def inline_code(page: str) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


# --- commands ----------------------------------------------------------------------------------------------------


def command_lines(page: str) -> list[str]:
    """Whole commands, from `sh` blocks: what follows `recurtrace`."""
    lines = []
    for block in blocks(page):
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                lines += _after_recurtrace(line)
    return lines


def comment_commands(recipe: str) -> list[str]:
    """Commands in the comments at the head of a recipe."""
    comments = [line.lstrip("# ") for line in recipe.splitlines() if line.startswith("#")]
    return [found for line in comments for found in _after_recurtrace(line)]


def _after_recurtrace(line: str) -> list[str]:
    found = re.search(r"^(?:recurtrace|accelerate launch .*-m recurtrace|recurtrace) (.*?)(?:\s+#.*)?$", line.strip())
    return [found[1]] if found else []


def check_command(line: str, partial: bool = False, files: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Parse what follows `recurtrace` with the real command; capitals, `$NAME` and … are placeholders.

    A `partial` command may lack arguments. `files` are recipes that the page itself makes.
    """
    import typer
    from typer.core import TyperGroup

    from recurtrace.cli import app

    UsageError: Any = typer.BadParameter.__base__  # noqa: N806 (of click, or of typer's own copy of it)
    words = [re.sub(r"\$\w+", "MODEL", word) for word in shlex.split(line)]
    command: Any = typer.main.get_command(app)
    path = []
    while isinstance(command, TyperGroup) and words:
        if words[0] not in command.commands:
            if partial and words[0].startswith("-"):
                return
            raise PageError(f"there is no command `recurtrace {' '.join([*path, words[0]])}`")
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if isinstance(command, TyperGroup):
        return
    if partial:
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
        for word in words:
            if word.startswith("--") and word.split("=")[0] not in known and not command.allow_extra_args:
                raise PageError(f"`recurtrace {line}`: there is no option {word}")
        return
    try:
        context = command.make_context(" ".join(path), list(words))
    except typer.Exit:  # --help
        return
    except UsageError as error:
        if not any(_is_placeholder(word) and repr(word) in error.format_message() for word in words):
            raise PageError(f"`recurtrace {line}`: {error.format_message()}") from error
        return
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in context.params.items()}
    _check_settings(path, {name: value for name, value in given.items() if value is not None}, line, files)


def _check_settings(path: list[str], given: dict[str, Any], line: str, files: set[str]) -> None:
    """What the command itself would refuse: settings, recipes, tasks."""
    from recurtrace import stages
    from recurtrace.data.mixture import MixtureRecipe
    from recurtrace.data.selection import named_tasks
    from recurtrace.errors import RecurTraceError
    from recurtrace.halting.objectives import DistillRecipe
    from recurtrace.pipeline import PipelineRecipe
    from recurtrace.training.recipe import PretrainRecipe, TrainRecipe

    name = path[-1]
    readers = {"train": TrainRecipe, "pretrain": PretrainRecipe, "run": PipelineRecipe, "build": MixtureRecipe}
    recipe = str(given.get("recipe", ""))
    try:
        if name in readers and not _is_placeholder(recipe) and recipe not in files:
            readers[name].read_with(recipe, given.get("changes") or [])
        kind = getattr(stages, f"{path[0].capitalize()}Settings" if name in ("build", path[0]) else "none", None)
        if kind is not None:
            own = {field: value for field, value in given.items() if field in kind.model_fields}  # not the command's
            settings = kind.check(own, "settings")
            if name == "distill":
                DistillRecipe.check(settings.set, "--set")
        data = str(given.get("data", "MIXTURE"))
        if "/" not in data and not _is_placeholder(data) and data not in files:
            named_tasks(data)
        if given.get("tasks") and name != "lm-eval":
            named_tasks(given["tasks"])
    except RecurTraceError as error:
        raise PageError(f"`recurtrace {line}`: {error}") from error


def _is_placeholder(word: str) -> bool:
    return bool(re.fullmatch(r"[A-Z][A-Z_-]*|…", word))


# --- examples ----------------------------------------------------------------------------------------------------


def run_examples(page: Path) -> str:
    """Run the Python blocks in the working directory; the page with what they print."""
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    names: dict[str, Any] = {"__name__": "__page__"}
    changes: list[tuple[Block, str]] = []
    for number, block in enumerate(found):
        if block.mark == "file":
            Path(block.note).write_text(block.text, encoding="utf-8")
        if block.language != "python":
            continue
        code = compile("\n" * block.line + block.text, str(page), "exec")
        if block.mark == "not run":
            continue
        printed = io.StringIO()
        names["print"] = partial(print, file=printed)  # the page's own lines, not the log of a trainer
        try:
            exec(code, names)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in where if frame.filename == str(page)), block.line)
            raise PageError(f"{page.name}, line {line}: {type(error).__name__}: {error}") from error
        if number + 1 < len(found) and found[number + 1].language == "text":
            changes.append((found[number + 1], "".join(f"{one.rstrip()}\n" for one in printed.getvalue().splitlines())))
    for block, output in reversed(changes):
        text = text[: block.start] + output + text[block.start + len(block.text) :]
    return text


def difference(said: str, printed: str) -> str:
    lines = difflib.unified_diff(said.splitlines(), printed.splitlines(), lineterm="", n=0)
    return "\n".join(["its examples print something else (`make docs` puts it in)", *lines])


def made_files(page: str) -> set[str]:
    return {block.note for block in blocks(page) if block.mark == "file"}


# --- changes of the package --------------------------------------------------------------------------------------


def apply_changes(page: str, folder: Path) -> list[str]:
    """Apply the `diff` blocks of a page to a copy of the project; returns the files they touch."""
    touched = []
    for block in blocks(page):
        if block.language != "diff":
            continue
        for part in re.split(r"^--- ", block.text, flags=re.MULTILINE)[1:]:
            name, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
            file = folder / name.strip()
            text = file.read_text(encoding="utf-8")
            for hunk in hunks:
                lines = hunk.splitlines()
                before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
                after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
                if text.count(before) != 1:
                    raise PageError(f"{name.strip()} has these lines {text.count(before)} times, not once:\n{before}")
                text = text.replace(before, after)
            file.write_text(text, encoding="utf-8")
            touched.append(name.strip())
    return touched


# --- the tree ----------------------------------------------------------------------------------------------------


def documented_tree(page: str) -> set[str]:
    """Files and folders (with a slash) of the `tree` block."""
    (block,) = [block for block in blocks(page) if block.language == "tree"]
    found: list[str] = []
    parents: list[str] = []
    for line in block.text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r"\s{2,}", line.strip())[0].split(" · ")
        parents = parents[:depth]
        found += ["".join(parents) + name for name in names]
        if names[0].endswith("/"):
            parents.append(names[0])
    if len(found) != len(set(found)):
        raise PageError("the tree names something twice")
    return set(found)


def main() -> None:
    what, *pages = sys.argv[1:]
    for page in [Path(name).resolve() for name in pages]:
        text = page.read_text(encoding="utf-8")
        if what == "check":
            for line in command_lines(text):
                check_command(line, files=made_files(text))
        with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
            new = run_examples(page)
        if what == "write":
            page.write_text(new, encoding="utf-8")
        elif new != text:
            raise PageError(f"{page.name}: {difference(text, new)}")


if __name__ == "__main__":
    main()
