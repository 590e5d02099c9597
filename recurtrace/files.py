"""Files are written whole or not at all: under a temporary name first, then renamed."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recurtrace.errors import RecurTraceError


def holds_something(folder: Path) -> bool:
    """Other than what an interrupted run left half-written."""
    return folder.exists() and any(not file.name.endswith(".tmp") for file in folder.iterdir())


def claim(
    folder: Path, manifest: str, what: Mapping[str, Any], kind: str, remedy: str = "or remove that one"
) -> dict[str, Any] | None:
    """The manifest of the same work, begun here earlier; None where the folder is free. Anything else is refused.

    `what` is all that the work depends on, as the manifest holds it.
    """
    if (folder / manifest).is_file():
        found = load_manifest(folder / manifest, kind, "the same command")
        if changed := [name for name in what if found.get(name) != what[name]]:
            raise RecurTraceError(
                f"{str(folder)!r} already holds a different {kind} (different {changed[0].replace('_', ' ')}); choose "
                f"another folder, {remedy}."
            )
        return found
    if holds_something(folder):
        raise RecurTraceError(f"{str(folder)!r} is not empty and holds no {kind}; choose another folder.")
    return None


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what was written there takes its name when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, what: Any) -> None:
    with writing(path) as temporary:
        temporary.write_text(json.dumps(what, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_manifest(file: Path, kind: str, command: str) -> dict[str, Any]:
    """What a stage wrote about its folder, with a sentence where there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecurTraceError(f"{str(file.parent)!r} holds no {kind}; make one with `{command}`.") from error
    except ValueError as error:
        raise RecurTraceError(f"{file} is damaged; run `{command}` again, into another folder.") from error


@contextmanager
def writing_folder(folder: Path, replaces: str | None = None) -> Iterator[Path]:
    """Gives a temporary folder inside `folder`; its files move up when the block ends well, config.json last.

    Old files that match the pattern `replaces` and were not written anew are removed, so that none is taken for new.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        yield temporary
        new = sorted(temporary.iterdir(), key=lambda file: (file.name == "config.json", file.name))
        for old in folder.glob(replaces) if replaces and new else ():
            if not (temporary / old.name).exists():
                old.unlink()
        for file in new:
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
