"""The records of a study without its models: what every table is made of, small enough to be kept beside the page.

    python -m studies.records pack runs/study studies/archives/embedded.tar.xz
    python -m studies.records unpack studies/archives/embedded.tar.xz runs/study

Paths of the study's folder and of the embedded models are written as everyone has them; --known-as does the same for
a base that lies in a folder of your own (`--known-as models/stories15M=nickypro/tinyllama-15M`).

A study that was packed before all of it was run can be carried on elsewhere: unpack it, and name the stages that are
missing (`recurtrace run embedded/study --only data --only 'train adapter 2' --only 'evaluate adapter 2'`). Stages that
need the weights of a packed run cannot be run.
"""

import argparse
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from recurtrace.assets import EMBEDDED
from recurtrace.errors import RecurTraceError, told
from recurtrace.files import writing
from recurtrace.report.workspace import read_workspace

ARCHIVES = Path(__file__).parent / "archives"
KEPT = (
    *("stages/*.json", "probe.json", "cost.json", "analysis/*.json", "task-analysis/*.json"),
    *("evaluations/**/evaluation.json", "evaluations/**/records*.jsonl", "full-test/evaluation.json"),
    *("full-test/records*.jsonl", "runs/*/recipe.json", "runs/*/seed-*/recipe.json"),
    *("runs/*/budget.json", "runs/*/seed-*/budget.json"),
    *("models/*/config.json", "models/*/head-budget.json"),
)
"""What a report reads, and how far the stages are."""


def pack(folder: Path, archive: Path, known_as: Mapping[Path, str] | None = None) -> int:
    """The same bytes for the same records, whoever packs them and when; returns the number of files."""
    read_workspace(folder)  # refused where there is nothing to report on
    places = _places(folder) | {str(place.absolute()): name for place, name in (known_as or {}).items()}
    files = sorted({file for pattern in KEPT for file in folder.glob(pattern)})
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for file in files:
            entry = tarfile.TarInfo(file.relative_to(folder).as_posix())
            content = _anywhere(file.read_bytes(), places)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
    archive.parent.mkdir(parents=True, exist_ok=True)
    with writing(archive) as temporary:
        temporary.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    return len(files)


def _places(folder: Path) -> dict[str, str]:
    """Where the study and the embedded models lie here, and the paths that everyone has of them."""
    places = {str(place): f"recurtrace/assets/{place.name}" for place in EMBEDDED.values()}
    return places | {str(folder.absolute()): f"runs/{folder.name}"}


def _anywhere(content: bytes, places: Mapping[str, str]) -> bytes:
    for place, name in sorted(places.items(), key=lambda one: -len(one[0])):  # what lies within another first
        content = content.replace(place.encode(), name.encode())
    return content


def _place(text: str) -> tuple[Path, str]:
    place, found, name = text.partition("=")
    if not (place and found and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not FOLDER=NAME")
    return Path(place), name


def unpack(archive: Path, folder: Path) -> None:
    """Into a folder that holds none of it yet."""
    try:
        with tarfile.open(archive, "r:xz") as tar:
            if there := [name for name in tar.getnames() if (folder / name).exists()]:
                raise RecurTraceError(f"{str(folder / there[0])!r} exists; unpack the archive into another folder.")
            tar.extractall(folder, filter="data")
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise RecurTraceError(f"{str(archive)!r} is not an archive of records ({error}).") from error


@contextmanager
def opened(records: Path) -> Iterator[Path]:
    """The folder of a study, or one in which its archive is unpacked for the time."""
    if records.is_dir():
        yield records
        return
    with TemporaryDirectory() as folder:
        unpack(records, Path(folder))
        yield Path(folder)


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("archive", type=Path)
    packing.add_argument("--known-as", type=_place, action="append", default=[], metavar="FOLDER=NAME")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("archive", type=Path)
    unpacking.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "pack":
        count = pack(given.folder, given.archive, dict(given.known_as))
        print(f"{given.archive}: {count} files, {given.archive.stat().st_size / 2**20:.1f} MiB")
    else:
        unpack(given.archive, given.folder)


if __name__ == "__main__":
    main()
