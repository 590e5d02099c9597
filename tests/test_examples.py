"""The examples of the repository run as they are, on the embedded base instead of the one that they fetch."""

import runpy
import sys
from pathlib import Path

import pytest

from recurtrace.assets import TINY_BASE

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_stories15m(tmp_path, monkeypatch, capsys):
    arguments = ["--base", str(TINY_BASE), "--questions", "nested", "--steps", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["stories15m.py", *arguments])
    runpy.run_path(str(EXAMPLES / "stories15m.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "parameters trained, 2 steps" in said
    assert " 8 loops: " in said
