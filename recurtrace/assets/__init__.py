"""The embedded base and its trained loop modules; `studies/embed.py` says how they came here."""

from pathlib import Path

from recurtrace.errors import RecurTraceError

TINY_BASE = Path(__file__).parent / "tiny-base"
TINY_LOOP = Path(__file__).parent / "tiny-loop"
EMBEDDED = {"embedded/base": TINY_BASE, "embedded/loop": TINY_LOOP}


def refuse_embedded(folder: Path) -> None:
    """Heads and thresholds go into a copy: the package stays as it was installed."""
    if folder.resolve() in EMBEDDED.values():
        raise RecurTraceError(
            f"{str(folder)!r} is part of the package and is not changed; make a copy with a head of its own: "
            "`recurtrace distill … --out looped`."
        )


def place(model: str) -> str:
    """Where a model is: the embedded ones have names, any other is a folder or a hub id."""
    return str(EMBEDDED.get(model, model))
