"""How a call ends for a user: well, or with one sentence. A traceback, a question or a stray file is neither."""

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recurtrace.cli import app
from recurtrace.errors import RecurTraceError

LONGEST = 600
"""Characters; a sentence that echoes a whole file is none."""
runner = CliRunner(env={"COLUMNS": "200"})


def outcome(call: Callable[[], Any]) -> str:
    """The sentence of a call, or nothing if it went well; every other end fails the test."""
    try:
        call()
    except RecurTraceError as error:
        return checked(str(error))
    except Exception:
        pytest.fail(f"a traceback:\n{traceback.format_exc()[-3000:]}")
    return ""


def command(*arguments: Any) -> str:
    """The same for a command line; what typer itself refuses is a sentence too."""
    done = runner.invoke(app, [str(argument) for argument in arguments], input="y\n")
    if isinstance(done.exception, RecurTraceError):
        return checked(str(done.exception))
    if done.exit_code == 2:
        return done.output
    if done.exception is not None:
        text = "".join(traceback.format_exception(done.exception))
        pytest.fail(f"a traceback:\n{text[-3000:]}")
    assert "[y/N]" not in done.output, "somebody was asked"
    return ""


def checked(text: str) -> str:
    assert text.strip(), "an empty sentence"
    assert "\n" not in text.strip(), f"more than one line: {text[:LONGEST]}"
    assert len(text) <= LONGEST, f"{len(text)} characters: {text[:LONGEST]}"
    return text


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def written(folder: Path, name: str, what: object) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(what), encoding="utf-8")
    return file


def put(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
