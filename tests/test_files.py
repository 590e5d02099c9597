"""A folder has one owner and holds one thing; a full disk is told in a sentence and leaves nothing behind."""

import errno
import multiprocessing
import os
import time

import pytest
from datasets.exceptions import DatasetGenerationError
from safetensors import SafetensorError

from recurtrace.errors import RecurTraceError
from recurtrace.files import (
    WHOLE,
    Kind,
    begin,
    claim,
    claim_new,
    disk_full_told,
    is_half_moved,
    lock,
    locked,
    write_json,
    writing,
    writing_folder,
)

THING = Kind("thing", "thing.json", ("part-*", "sub/*"))


def hold(folder, ready):
    with locked(folder):
        ready.set()
        time.sleep(600)


@pytest.fixture
def owner(tmp_path):
    """Another process that writes to the folder."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "out", ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("recurtrace.files.fcntl.flock", none)
    with lock(tmp_path / "one.lock", "it is taken"):
        pass  # as well as can be
    with (
        pytest.raises(RecurTraceError, match="has no locks; divide the stages with --only"),
        lock(tmp_path / "one.lock", "it is taken", required=True),
    ):
        pytest.fail("shared without locks")


def test_one_process_at_a_time_and_a_dead_one_is_succeeded(owner, tmp_path):
    with (
        pytest.raises(RecurTraceError, match=f"'.*out' is being written by another process, {owner.pid} on "),
        locked(tmp_path / "out"),
    ):
        pytest.fail("two owners")
    owner.kill()
    owner.join()
    assert (tmp_path / "out" / ".lock").exists()  # the dead one could not take it away
    with locked(tmp_path / "out"):
        assert (tmp_path / "out" / ".lock").read_text().startswith(f"{os.getpid()} on ")
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_folder_that_stays_empty_is_removed_again(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
        raise KeyError
    assert not (tmp_path / "a").exists()
    (tmp_path / "own").mkdir()
    with locked(tmp_path / "own"):
        pass
    assert (tmp_path / "own").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(RecurTraceError, match="is a file; choose a folder"), locked(tmp_path / "file"):
        pass


def test_what_a_folder_holds(tmp_path):
    assert claim(tmp_path, THING, {"size": 3}) is None
    (tmp_path / ".thing.json.77.tmp").touch()  # a process was killed while writing
    (tmp_path / ".lock").touch()
    assert claim(tmp_path, THING, {"size": 3}) is None
    begin(tmp_path, THING, {"size": 3, "command": "x"})
    (tmp_path / "part-0").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".x.77.tmp").touch()
    assert claim(tmp_path, THING, {"size": 3}) == {"size": 3, "command": "x"}
    assert not (tmp_path / "sub" / ".x.77.tmp").exists()
    with pytest.raises(
        RecurTraceError, match="a different thing .different size.; choose another folder, or pass --ov"
    ):
        claim(tmp_path, THING, {"size": 4})
    with pytest.raises(RecurTraceError, match="already holds a thing; choose another folder, or pass --overwrite"):
        claim_new(tmp_path, THING)


def test_overwriting_leaves_what_is_not_its_own(tmp_path):
    begin(tmp_path, THING, {"size": 3})
    for name in ("part-0", "thesis.txt"):
        (tmp_path / name).touch()
    assert claim(tmp_path, THING, {"size": 4}, overwrite=True) is None
    assert (tmp_path / "part-0").exists()  # nothing goes before there is something new
    begin(tmp_path, THING, {"size": 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.txt", "thing.json"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "part-of-my-life").touch()
    with pytest.raises(RecurTraceError, match="is not empty and holds no thing; .* --overwrite to write beside"):
        claim(other, THING, {})
    with pytest.raises(RecurTraceError, match="part-of-my-life' is not part of a thing and would be replaced; choose"):
        claim(other, THING, {}, overwrite=True)
    (other / "part-of-my-life").rename(other / "diary")
    assert claim(other, THING, {}, overwrite=True) is None
    begin(other, THING, {})
    assert (other / "diary").exists()


def test_a_manifest_is_known_by_what_it_says(tmp_path):
    kind = Kind("thing", "thing.json", ("part-*",), ("size",))
    for text in ('{"mine": 1}', "[]", "{", "\udcff"):
        (tmp_path / "thing.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        (tmp_path / "part-1").touch()
        with pytest.raises(RecurTraceError, match="is not part of a thing and would be replaced"):
            claim(tmp_path, kind, {"size": 1}, overwrite=True)
        begin(tmp_path / "new", kind, {"size": 1})
        assert (tmp_path / "part-1").exists()
    (tmp_path / "thing.json").write_text("{")
    with pytest.raises(RecurTraceError, match="thing.json is damaged; run the same command again, into another folder"):
        claim(tmp_path, kind, {"size": 1})


def test_a_file_that_could_not_be_written_leaves_no_folders(tmp_path):
    with pytest.raises(KeyError), writing(tmp_path / "a" / "b" / "c.json"):
        raise KeyError
    assert not (tmp_path / "a").exists()
    write_json(tmp_path / "a" / "b" / "c.json", {})
    assert (tmp_path / "a" / "b" / "c.json").is_file()


def test_a_moved_folder_is_the_same(tmp_path):
    settings = {"out": str(tmp_path / "runs/a"), "data": str(tmp_path / "data"), "hub": "Qwen/Qwen3", "size": 3}
    begin(tmp_path / "runs/a", THING, settings)
    (tmp_path / "runs/a").rename(tmp_path / "b")
    paths = ("out", "data", "hub")
    alone = settings | {"out": str(tmp_path / "b")}
    assert claim(tmp_path / "b", THING, alone, paths=paths)
    (tmp_path / "new/runs").mkdir(parents=True)
    (tmp_path / "b").rename(tmp_path / "new/runs/a")
    together = settings | {"out": str(tmp_path / "new/runs/a"), "data": str(tmp_path / "new/data")}
    assert claim(tmp_path / "new/runs/a", THING, together, paths=paths)
    with pytest.raises(RecurTraceError, match="different data"):
        claim(tmp_path / "new/runs/a", THING, together | {"data": str(tmp_path / "elsewhere")}, paths=paths)
    with pytest.raises(RecurTraceError, match="different hub"):
        claim(tmp_path / "new/runs/a", THING, together | {"hub": "Qwen/Qwen2"}, paths=paths)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"),  # Arrow
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 2633216 vs 2633104"),  # torch.save
        DatasetGenerationError("An error occurred while generating the dataset"),
    ],
    ids=["system", "arrow", "safetensors", "torch", "datasets"],
)
def test_a_full_disk(error, tmp_path):
    def write():
        with locked(tmp_path / "out"), writing_folder(tmp_path / "out") as temporary:
            (temporary / "weights").touch()
            raise error from (FULL if isinstance(error, DatasetGenerationError) else None)

    with pytest.raises(RecurTraceError, match="no space was left on the disk for '.*/out'; free some"):
        write()
    assert not (tmp_path / "out").exists()
    with pytest.raises(RuntimeError, match="something else"), disk_full_told(tmp_path):
        raise RuntimeError("something else")


def test_files_replaced_as_one(tmp_path):
    for name in ("model-1.safetensors", "model-2.safetensors", "own.txt"):
        (tmp_path / name).write_text("old")
    (tmp_path / "calibration").mkdir()
    write_json(tmp_path / "calibration" / "head.json", {})
    with writing_folder(tmp_path, replaces=["model*.safetensors", "calibration"]) as temporary:
        (temporary / "model-1.safetensors").write_text("new")
        assert (tmp_path / "model-2.safetensors").exists()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "model-1.safetensors": "new",
        "own.txt": "old",
    }


class Killed(BaseException):
    """Nothing catches it, as nothing catches kill -9."""


def test_nothing_moves_by_a_link_out_of_the_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "out" / WHOLE / "sub").mkdir(parents=True)
    (tmp_path / "out" / "sub").symlink_to(tmp_path / "mine")
    (tmp_path / "out" / WHOLE / "sub" / "file").write_text("foreign")
    with pytest.raises(RecurTraceError, match="leads out of its folder by a link"), locked(tmp_path / "out"):
        pass
    assert not any((tmp_path / "mine").iterdir())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / WHOLE).symlink_to(tmp_path / "out")
    with locked(tmp_path / "other"):
        assert not is_half_moved(tmp_path / "other")


@pytest.mark.parametrize("moves", range(3))
def test_a_kill_while_files_move(moves, tmp_path, monkeypatch):
    """The next process that writes there finds a folder as if there had been none."""
    (tmp_path / "calibration").mkdir()
    for name in ("config.json", "old.safetensors", "calibration/head.json"):
        (tmp_path / name).write_text("old")
    left = iter(range(moves))
    replace = os.replace

    def until_killed(one, other):
        if next(left, None) is None:
            raise Killed
        replace(one, other)

    def write():
        with writing_folder(tmp_path, replaces=["*.safetensors", "calibration"]) as temporary:
            (temporary / "calibration").mkdir()
            for name in ("config.json", "new.safetensors", "calibration/head.json"):
                (temporary / name).write_text("new")
            monkeypatch.setattr(os, "replace", until_killed)

    with pytest.raises(Killed):
        write()
    monkeypatch.undo()
    with locked(tmp_path):
        pass
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == dict.fromkeys(("config.json", "new.safetensors", "calibration/head.json"), "new")
