"""The recipes that come with the package, by kind: paper · embedded · stories15m · smollm2 · accelerate."""

import shutil
from pathlib import Path

from recurtrace.errors import RecurTraceError

ROOT = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """`{"paper/qwen3-1.7b-loop": file, …}`."""
    return {f"{file.parent.name}/{file.stem}": file for file in sorted(ROOT.glob("*/*.yaml"))}


def find(name: str | Path) -> Path:
    """A recipe by its path, or by its name if it is a shipped one (`paper/qwen3-1.7b-loop`)."""
    path = Path(name)
    if path.is_file():
        return path
    known = shipped()
    wanted = str(name).removeprefix("recipes/").removesuffix(".yaml")
    if wanted not in known:
        raise RecurTraceError(
            f"there is no recipe file {str(name)!r}, and no shipped recipe of that name; see `recurtrace recipes list`."
        )
    return known[wanted]


def about(file: Path) -> str:
    """The first line of a recipe, which says what it is."""
    first = file.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def copy(name: str, out: Path) -> list[Path]:
    """Copy a shipped recipe, or all of a kind, to `out/<kind>/`; files that are there are left alone."""
    wanted = {key: file for key, file in shipped().items() if name in (key, key.split("/")[0])}
    if not wanted:
        raise RecurTraceError(f"there is no shipped recipe {name!r}; see `recurtrace recipes list`.")
    targets = {file: out / file.parent.name / file.name for file in wanted.values()}
    if there := [target for target in targets.values() if target.exists()]:
        raise RecurTraceError(f"{str(there[0])!r} already exists; choose another --out.")
    for file, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return list(targets.values())
