"""A sweep that belongs to a model: what distill, calibrate and compare begin with."""

from collections.abc import Sequence
from pathlib import Path

from recurtrace.errors import RecurTraceError
from recurtrace.halting.sweep_files import Sweep, read_manifest, read_sweep
from recurtrace.model.base import read_looped_config
from recurtrace.model.heads import was_of_folder


def read_sweep_of(model: Path, folder: Path, arrays: list[str] | None, tasks: Sequence[str] = ()) -> Sweep:
    """A sweep, refused if another model made it; `arrays` are those to read, all of them if None."""
    read_looped_config(model)  # there is one
    manifest = read_manifest(folder)
    if not was_of_folder(manifest.loop_fingerprint, model):
        raise RecurTraceError(
            f"the sweep {str(folder)!r} was made with other loop modules than {str(model)!r} has; sweep this model."
        )
    if not manifest.states and any(name.startswith("state_") for name in arrays or ["state_mean"]):
        raise RecurTraceError(f"the sweep {str(folder)!r} kept no pooled states; sweep again with --states.")
    found = read_sweep(folder, arrays)
    return found.of_tasks(list(tasks)) if tasks else found
