"""Imports point one way, and the command line imports late."""

import ast
import subprocess
import sys
from pathlib import Path

import recurtrace
from recurtrace.assets import TINY_LOOP

ROOT = Path(recurtrace.__file__).parent
# Each may import those in later rows, never those in earlier ones; within a row, nothing of the others.
ORDER = [
    {"cli"},
    {"pipeline"},
    {"stages"},
    {"report", "explorer"},
    {"probe"},
    {"training", "evaluation", "serving"},
    {"halting"},
    {"data", "model"},
    {"halting.rule", "halting.methods", "records"},
    {"recipe"},
    {"recipes", "depths", "assets", "shape", "config_file", "hub"},
    {"files"},
    {"errors"},
]
RANK = {part: rank for rank, row in enumerate(ORDER) for part in row}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_imports_point_one_way():
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        for name in imported(file):
            if not name.startswith("recurtrace."):
                continue
            other = ".".join(name.split(".")[1:3])
            other = other if other in RANK else other.split(".")[0]
            ok = other.split(".")[0] == part or RANK[other] > RANK[part]
            assert ok, f"{file.relative_to(ROOT)} imports {name}"


def test_report_and_explorer_do_without_torch():
    for part in ("report", "explorer", "records", "halting/methods", "halting/rule"):
        for file in ROOT.glob(f"{part}*/**/*.py") if (ROOT / part).is_dir() else ROOT.glob(f"{part}.py"):
            assert not {name.split(".")[0] for name in imported(file)} & {"torch", "transformers"}, file


def test_help_does_not_import_torch():
    for start in (
        [sys.executable, "-X", "importtime", "-m", "recurtrace"],
        [Path(sys.executable).parent / "recurtrace"],
    ):
        done = subprocess.run(
            [*start, "convert", "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPROFILEIMPORTTIME": "1"},
        )
        modules = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "recurtrace.cli.convert" in modules
        assert not modules & {"torch", "transformers", "numpy"}


def test_importing_the_package_is_enough_for_the_auto_classes_and_takes_little_more_than_one_of_their_models():
    """Counted in modules: a time would depend on the machine."""
    code = """
import sys
from transformers import Qwen3ForCausalLM
theirs = len(sys.modules)
import recurtrace
print(len(sys.modules) <= 1.2 * theirs)
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
print(AutoConfig.for_model("qwen3").model_type, "recurtrace" in CONFIG_MAPPING)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\nqwen3 True\n"


def test_info_of_a_folder_does_without_torch():
    command = [sys.executable, "-X", "importtime", "-m", "recurtrace", "info", str(TINY_LOOP)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "recurtrace.shape" in modules
    assert not modules & {"torch", "transformers", "numpy"}
