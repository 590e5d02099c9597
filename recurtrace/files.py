"""Files are written whole or not at all: under a temporary name first, then renamed.

A folder is written by one process at a time (`locked`) and holds one thing (`claim`): every command that writes one
begins with these two.
"""

import errno
import fcntl
import filecmp
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from recurtrace.errors import RecurTraceError

LOCK = ".lock"
STAGING = ".saving"
"""How folders begin in which something is not whole yet."""
WHOLE = f"{STAGING}-whole.tmp"
"""The folder whose files are all written and only have to move up."""
GONE = f"{STAGING}-gone.tmp"
"""In it: an empty file by the name of each older one that goes first."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # some network file systems
# The last two are what torch.save says of it.
_FULL = (*map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)), "PytorchStreamWriter", "inline_container.cc")


@dataclass(frozen=True)
class Kind:
    """What a command makes of a folder."""

    name: str
    manifest: str
    """The file by which it is known."""
    files: tuple[str, ...]
    """Patterns of all others it consists of."""
    fields: tuple[str, ...] = ()
    """What its manifest says, by which it is told from someone else's file of that name."""

    def is_in(self, folder: Path) -> bool:
        """Whether a folder holds one."""
        file = folder / self.manifest
        if not self.fields:
            return file.is_file()
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(found, dict) and all(name in found for name in self.fields)

    def paths(self, folder: Path) -> list[Path]:
        """What is there of it, or is called so."""
        return [path for pattern in (*self.files, self.manifest) for path in folder.glob(pattern)]

    def remove(self, folder: Path) -> None:
        """Take it out of a folder, and what a killed process was writing of it; files of other kinds stay."""
        _remove(self.paths(folder))
        self.remove_temporary(folder)

    def remove_temporary(self, folder: Path) -> None:
        for place in {Path(pattern).parent for pattern in (*self.files, self.manifest)}:
            _remove((folder / place).glob(".*.tmp"))


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes to the folder meanwhile; one that is empty in the end and was not there before is removed.

    The system gives up the lock of a process that dies, so there are no stale ones; the file says who has it.
    """
    if folder.is_file():
        raise RecurTraceError(f"{str(folder)!r} is a file; choose a folder.")
    with disk_full_told(folder), made_folder(folder), lock(folder / LOCK, f"{str(folder)!r} is being written"):
        _move_up(folder)
        yield


class BusyError(RecurTraceError):
    """Another process has the lock."""


@contextmanager
def lock(path: Path, what: str, required: bool = False) -> Iterator[None]:
    """A file that one process at a time can have; `what` begins the sentence that the others get.

    Some file systems have no locks. There nobody is kept out, and a lock that is `required` is refused.
    """
    file = _lock(path, what, required)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _lock(path: Path, what: str, required: bool) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 1000).decode(errors="replace").strip() or "which has just begun"
            os.close(file)
            said = f"{what} by another process, {owner}; wait until it ends, or choose another folder."
            raise BusyError(said) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(file)
                raise
            if required:
                os.close(file)
                said = f"the file system of {str(path.parent)!r} has no locks; divide the stages with --only instead."
                raise RecurTraceError(said) from error
        if _is_at(file, path):
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()} on {socket.gethostname()}\n".encode())
            return file
        os.close(file)  # its owner ended and took it away in this moment


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at the path."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def holds_something(folder: Path) -> bool:
    """Other than what an interrupted run left half-written."""
    return folder.exists() and any(not file.name.endswith(".tmp") and file.name != LOCK for file in folder.iterdir())


def claim(
    folder: Path, kind: Kind, what: Mapping[str, Any], overwrite: bool = False, paths: Collection[str] = ()
) -> dict[str, Any] | None:
    """The manifest of the same work, begun here earlier; None where it is to `begin`. Anything else is refused.

    `what` is all that the work depends on, as the manifest holds it. Settings that are `paths` are the same if they
    lead to the same place, or from the folder (`out` among them) the same way: it may have been moved.
    """
    if overwrite or not (folder / kind.manifest).is_file():
        claim_new(folder, kind, overwrite)
        return None
    found = load_manifest(folder / kind.manifest, kind.name)
    if (name := difference(found, what, paths)) is not None:
        raise RecurTraceError(
            f"{str(folder)!r} already holds a different {kind.name} (different {name.replace('_', ' ')}); choose "
            "another folder, or pass --overwrite to replace it."
        )
    kind.remove_temporary(folder)
    return found


def difference(found: Mapping[str, Any], what: Mapping[str, Any], paths: Collection[str] = ()) -> str | None:
    """The first setting in which what was found differs; `paths` as in `claim`."""

    def same(name: str) -> bool:
        one, other = found.get(name), what[name]
        if name not in paths or not isinstance(one, str) or not isinstance(other, str):
            return one == other
        return one == other or os.path.relpath(one, found["out"]) == os.path.relpath(other, what["out"])

    return next((name for name in what if not same(name)), None)


def claim_new(folder: Path, kind: Kind, overwrite: bool = False) -> None:
    """Refuse a folder that holds anything, unless that is to be overwritten: one of the kind, never another's files."""
    if not holds_something(folder):
        return
    if overwrite:
        if not kind.is_in(folder) and (foreign := kind.paths(folder)):
            raise _foreign(foreign[0], kind)
        return
    if (folder / kind.manifest).is_file():
        raise RecurTraceError(
            f"{str(folder)!r} already holds a {kind.name}; choose another folder, or pass --overwrite to replace it."
        )
    raise RecurTraceError(
        f"{str(folder)!r} is not empty and holds no {kind.name}; choose another folder, or pass --overwrite to write "
        "beside what is there."
    )


def _foreign(path: Path, kind: Kind) -> RecurTraceError:
    return RecurTraceError(
        f"{str(path)!r} is not part of a {kind.name} and would be replaced; choose another folder, or move it away."
    )


def begin(folder: Path, kind: Kind, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of new work; what it replaces goes only now, when nothing can be refused any more."""
    if kind.is_in(folder):
        kind.remove(folder)
    write_json(folder / kind.manifest, manifest)


def empty(folder: Path) -> None:
    """Remove all that a folder holds, unless another process is writing there."""
    with locked(folder):
        _remove(path for path in folder.iterdir() if path.name != LOCK)


@contextmanager
def disk_full_told(path: Path) -> Iterator[None]:
    """One sentence, whichever library was writing: each has an exception of its own for it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RecurTraceError) or not any(sign in said for said in _texts(error) for sign in _FULL):
            raise
        place = Path(*takewhile(lambda part: not part.startswith(STAGING), path.parts))
        raise RecurTraceError(
            f"no space was left on the disk for {str(place)!r}; free some and run the same command again."
        ) from error


def _texts(error: BaseException | None) -> Iterator[str]:
    """Of an error, and of those it came from."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what was written there takes its name when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with made_folder(path.parent):
        try:
            with disk_full_told(path):
                yield temporary
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, what: Any) -> None:
    with writing(path) as temporary:
        temporary.write_text(json.dumps(what, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_manifest(file: Path, kind: str, command: str = "") -> dict[str, Any]:
    """What a stage wrote about its folder, with a sentence where there is none; `command` is the one that makes it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("a manifest has fields")
        return found
    except FileNotFoundError as error:
        raise RecurTraceError(f"{str(file.parent)!r} holds no {kind}; make one with `{command}`.") from error
    except (ValueError, RecursionError) as error:
        again = f"`{command}`" if command else "the same command"
        raise RecurTraceError(f"{file} is damaged; run {again} again, into another folder.") from error


@contextmanager
def writing_folder(folder: Path, replaces: Iterable[str] = ()) -> Iterator[Path]:
    """Gives a temporary folder inside `folder`; its files move up when the block ends well, config.json last.

    What matches the patterns of `replaces` and was not written anew is removed, so that nothing old is taken for new.
    A process that is killed while files move leaves the rest to the next one that writes here (`locked`,
    `finish_writing`).
    """
    with made_folder(folder):
        temporary = Path(tempfile.mkdtemp(prefix=f"{STAGING}-", suffix=".tmp", dir=folder))
        try:
            with disk_full_told(folder):
                yield temporary
                new = _files_in(temporary)
                old = [path.relative_to(folder) for pattern in replaces for path in folder.glob(pattern)] if new else []
                for path in {path for path in old if path not in new}:
                    (temporary / GONE / path).parent.mkdir(parents=True, exist_ok=True)
                    (temporary / GONE / path).touch()
            if new:  # of several processes only one writes
                temporary.rename(folder / WHOLE)
                _move_up(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def finish_writing(folder: Path) -> None:
    """What a killed process had written whole moves to its place, before anyone asks what the folder holds."""
    if is_half_moved(folder):
        with locked(folder):
            pass


def is_half_moved(folder: Path) -> bool:
    """Whether new files lie there beside old ones, since a process was killed while they moved."""
    return (folder / WHOLE).is_dir() and not (folder / WHOLE).is_symlink()


def _move_up(folder: Path) -> None:
    """Finish what was written whole, if there is such: older files go, the new ones take their places."""
    if not is_half_moved(folder):
        return
    whole = folder / WHOLE
    for path in [*_files_in(whole), *_files_in(whole / GONE)]:
        if not (folder / path).parent.resolve().is_relative_to(folder.resolve()):
            raise RecurTraceError(f"{str(whole)!r} leads out of its folder by a link; remove it.")
    old = [folder / name for name in _files_in(whole / GONE)]
    _remove(path for path in old if path.exists())
    for place in {path.parent for path in old} - {folder}:
        _remove_if_empty(place)
    shutil.rmtree(whole / GONE, ignore_errors=True)
    for file in sorted(_files_in(whole), key=lambda file: (file.name == "config.json", file)):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(whole / file, folder / file)
    shutil.rmtree(whole)


def refuse_foreign(folder: Path, temporary: Path, kind: Kind) -> None:
    """What is about to move to a folder must not replace another file there that is not part of the kind."""
    own = set(kind.paths(folder)) if kind.is_in(folder) else set()
    for file in _files_in(temporary):
        there = folder / file
        if there.exists() and there not in own and not filecmp.cmp(temporary / file, there, shallow=False):
            raise _foreign(there, kind)


def _files_in(folder: Path) -> list[Path]:
    return [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """The folder is there; of those that had to be made for it, the ones that stay empty are removed."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for place in made:
            _remove_if_empty(place)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something, or is gone
        folder.rmdir()
