"""The page itself: linked to its parts where a server has them, or everything in one file."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recurtrace.records import LoopTrace

STATIC = Path(__file__).parent / "static"
SCRIPTS = (
    "trace.js",
    "svg.js",
    "charts.js",
    "grid.js",
    "panel.js",
    "export.js",
    "app.js",
)  # each may use those before it
TRACES = '["traces"]'  # stands in an empty page for the traces to come


def served_page(traces: Iterable[LoopTrace] = ()) -> str:
    return _page(
        styles='<link rel="stylesheet" href="static/style.css">',
        scripts="".join(f'<script defer src="static/{name}"></script>\n' for name in SCRIPTS),
        given=_data({"alone": False, "traces": [trace.as_json() for trace in traces]}),
    )


def whole_page(traces: Iterable[LoopTrace]) -> str:
    """One file without a server: it can be mailed, and opened offline."""
    return empty_page().replace(TRACES, _data([trace.as_json() for trace in traces]), 1)


def empty_page() -> str:
    """The same, with `TRACES` where the traces go."""
    return _page(
        styles=f"<style>\n{_read('style.css')}</style>",
        scripts="".join(f"<script>\n{_read(name)}</script>\n" for name in SCRIPTS),
        given=f'{{"alone":true,"traces":{TRACES}}}',
    )


def _page(styles: str, scripts: str, given: str) -> str:
    page = _read("index.html").replace("<!-- styles -->", styles).replace("<!-- given -->", given)
    return page.replace("<!-- scripts -->", scripts)


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _data(value: Any) -> str:
    """JSON that can stand in a script element, whatever a prompt has in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
