"""README and docs are true: commands parse, paths exist, examples print what the page says, the tree is the disk."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from recurtrace.recipes import shipped
from tests.pages import (
    PAGES,
    ROOT,
    PageError,
    apply_changes,
    blocks,
    check_command,
    command_lines,
    comment_commands,
    difference,
    documented_tree,
    inline_code,
    made_files,
    prose,
    run_examples,
)

TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
EXTENDING = "docs/extending.md"  # its commands need its own changes of the package
FILES = {
    file.relative_to(ROOT).as_posix()
    for file in ROOT.rglob("*")
    if not {".git", ".venv", ".venv-serve", "runs"} & set(file.parts)
}
every_page = pytest.mark.parametrize("name", TEXTS)


def test_the_readme_is_short():
    assert len(TEXTS["README.md"].splitlines()) <= 180


# --- commands ----------------------------------------------------------------------------------------------------


@every_page
def test_commands_parse(name):
    text = TEXTS[name]
    if name != EXTENDING:
        for line in command_lines(text):
            check_command(line, files=made_files(text))
    for code in inline_code(text):
        if code.startswith("recurtrace ") and "{" not in code:
            check_command(code.removeprefix("recurtrace "), partial=True)


def test_there_are_commands_to_parse():
    """The whole pipeline, and every command, is shown somewhere."""
    shown = {line.split()[0] for text in TEXTS.values() for line in command_lines(text)}
    from recurtrace.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    assert known - {"demo"} <= shown
    eight = [line.split()[0] for line in command_lines(TEXTS["README.md"])][:8]
    assert eight == ["data", "train", "sweep", "distill", "calibrate", "compare", "evaluate", "report"]


@pytest.mark.parametrize("recipe", shipped())
def test_commands_in_recipes_parse(recipe):
    for line in comment_commands(shipped()[recipe].read_text(encoding="utf-8")):
        check_command(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("evaluate looped --tasks mathqa --out x", "Missing option"),
        ("evaluate looped --data mathqa --out x --loop 2", "No such option"),
        ("convert Qwen/Qwen3-0.6B-Base --out x --merge", "No such option"),
        ("train recipes/no-such-recipe.yaml", "there is no recipe"),
        ("train paper/qwen3-1.7b-loop --set stepz=3", "no field 'stepz'"),
        ("calibrate M --sweep s --signal nonsense", "not one of"),
        ("sweep M --data nonsense --out x", "there is no task 'nonsense'"),
        ("distil M --sweep s", "there is no command"),
        ("distill M --sweep s --set stepz=3", "no field 'stepz'"),
        ("info looped more", "unexpected extra argument"),
        ("evaluate M --data mathqa --out x --seeds 8 --count 3", "leave out count"),
    ],
)
def test_a_command_that_is_not_so_is_found(line, why):
    with pytest.raises(PageError, match=why):
        check_command(line)


# --- paths -------------------------------------------------------------------------------------------------------


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@every_page
def test_links_lead_somewhere(name):
    folder = (ROOT / name).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(TEXTS[name])):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        file = (folder / path).resolve() if path else ROOT / name
        assert file.is_file(), f"{name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in map(slug, headings), f"{name}: {target}"


@every_page
def test_paths_exist(name):
    """Files and folders of the project that a page names; in tables, from the package's own folder."""
    text = TEXTS[name]
    for code in inline_code(text):
        is_file = re.fullmatch(r"[\w./-]+\.(py|md|lock|toml|cff)", code)
        is_folder = re.fullmatch(r"(recurtrace|tests|docs|benchmarks|studies)/[\w./-]*", code)
        if (is_file or is_folder) and "<" not in code and not re.search(r"\breport\.md$", code):
            wanted = code.rstrip("/")
            assert any(file == wanted or file.endswith(f"/{wanted}") for file in FILES), f"{name}: {code}"
    for found in re.findall(r"--config_file ([^\s']+)", text):
        if found != "…":
            assert found.removeprefix("recipes/").removesuffix(".yaml") in shipped(), f"{name}: {found}"


@every_page
def test_names_are_in_the_files_that_are_said_to_have_them(name):
    for first, second, file in re.findall(r"`([\w.]+)`(?: and `([\w.]+)`)? in `([\w/]+\.py)`", prose(TEXTS[name])):
        (path,) = [path for path in FILES if path.endswith(f"/{file}") and path.startswith("recurtrace/")] or [file]
        source = (ROOT / path).read_text(encoding="utf-8")
        for part in (part for one in (first, second) for part in one.split(".") if part):
            assert re.search(rf"\b{part}\b", source), f"{name}: {part} is not in {file}"


@every_page
def test_targets_and_modules_exist(name):
    text = TEXTS[name]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    code = "\n".join([*inline_code(text), *(block.text for block in blocks(text) if block.language == "sh")])
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", code, flags=re.MULTILINE):
        assert target in targets, f"{name}: make {target}"
    for module in re.findall(r"python -m ((?:benchmarks|studies|tests)\.\w+)", code):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), f"{name}: {module}"


def test_the_documented_tree_is_the_disk():
    package = ROOT / "recurtrace"
    inside = {"recipes", "assets"}  # folders whose files are listed elsewhere
    folders = {
        f"{folder.relative_to(ROOT).as_posix()}/"
        for folder in (package, *package.iterdir())
        if folder.is_dir() and folder.name != "__pycache__"
    }
    files = {
        file.relative_to(ROOT).as_posix()
        for file in package.rglob("*.py")
        if file.name not in ("__init__.py", "__main__.py") and file.relative_to(package).parts[0] not in inside
    }
    documented = documented_tree(TEXTS["docs/architecture.md"])
    assert sorted(documented - folders - files) == []  # documented, not there
    assert sorted((folders | files) - documented) == []  # there, not documented


# --- examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if name != EXTENDING and "```python" in text])
def test_examples_run_and_print_what_the_page_says(name):
    said, printed = TEXTS[name], run_examples(ROOT / name)
    assert printed == said, difference(said, printed)


def test_the_worked_examples_of_extending(tmp_path):
    """Every change of the page is made in a copy of the package; then its commands parse and its examples run there."""
    shutil.copytree(ROOT / "recurtrace", tmp_path / "recurtrace", ignore=shutil.ignore_patterns("__pycache__"))
    touched = apply_changes(TEXTS[EXTENDING], tmp_path)
    assert touched[:2] == ["recurtrace/halting/objectives.py", "recurtrace/halting/methods.py"]  # a halting method
    assert touched[2:4] == ["recurtrace/halting/signals.py", "recurtrace/halting/methods.py"]  # a signal
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.pages", "check", str(ROOT / EXTENDING)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_example_that_is_not_so_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert run_examples(page).count("2\n") == 1
    page.write_text("```python\nimport recurtrace.nothing\n```\n")
    with pytest.raises(PageError, match="line 2: ModuleNotFoundError"):
        run_examples(page)


# --- words and numbers -------------------------------------------------------------------------------------------

OLD_WORDS = r"\bours\b(?!=)|\bdistil\b|\bat birth\b|after a kill|goes on (?:after|where)|was begun otherwise"


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "docs/log.md"])
def test_settled_words(name):
    assert not re.findall(OLD_WORDS, prose(TEXTS[name]))


def test_settled_words_in_help():
    import typer

    from recurtrace.cli import app

    def texts(command):
        yield command.help or ""
        yield from (getattr(option, "help", None) or "" for option in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from texts(inner)

    assert [text for text in texts(typer.main.get_command(app)) if re.search(OLD_WORDS, text)] == []


def test_the_readme_quotes_what_the_benchmarks_wrote():
    """Every number of the README's table stands, as it is, in the page that a benchmark writes."""
    table = re.search(r"<!-- measured: begin -->(.*?)<!-- measured: end -->", TEXTS["README.md"], flags=re.DOTALL)[1]
    written = TEXTS["docs/performance.md"] + TEXTS["docs/serving.md"]
    results = [row.split("|")[2] for row in table.strip().splitlines()[2:]]
    numbers = [number for result in results for number in re.findall(r"\d+\.\d+×?", result)]
    assert len(numbers) > 10
    assert [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}", written)] == []


@pytest.mark.parametrize(
    "name",
    ["README.md", *(f"docs/{page}.md" for page in ("results", "performance", "serving", "reproducing", "choices"))],
)
def test_marks_that_code_writes_between_are_whole(name):
    begins, ends = (re.findall(rf"<!-- ([\w -]+): {end} -->", TEXTS[name]) for end in ("begin", "end"))
    assert begins == ends
    assert begins
