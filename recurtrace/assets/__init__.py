"""The embedded base and its trained loop modules; `studies/embed.py` says how they came here."""

from pathlib import Path

TINY_BASE = Path(__file__).parent / "tiny-base"
TINY_LOOP = Path(__file__).parent / "tiny-loop"
