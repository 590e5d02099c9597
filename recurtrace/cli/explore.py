"""`recurtrace explore`: look at what the loop does, in the browser."""

import os
import secrets
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import next_step
from recurtrace.errors import RecurTraceError

EVERYWHERE = ("", "0.0.0.0", "::")  # every address that this machine has


@stage_command(stages.ExploreSettings)
def explore(
    settings: stages.ExploreSettings,
    browser: Annotated[
        bool, typer.Option(help="Open the page in a browser, if it is on this machine and this is a terminal.")
    ] = True,
) -> None:
    """Open a local page where a question is typed and the loop's answers, gates and memory are watched."""
    if settings.static is None:
        _require_server()
    if settings.token is None and settings.needs_token:
        settings = settings.model_copy(update={"token": secrets.token_urlsafe(16)})
    found = stages.explore(settings)
    if isinstance(found, Path):
        typer.echo(f"Wrote {found} ({found.stat().st_size / 1e6:.1f} MB).")
        next_step(f"open {found} in a browser")
        return

    import uvicorn

    with _listen(settings.host, settings.port) as listening:
        address = _address(settings, listening.getsockname()[1])
        typer.echo(f"The page is at {address}; Ctrl-C ends it.")
        if browser and not settings.needs_token and _has_screen():  # it waits until the server answers
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        uvicorn.Server(uvicorn.Config(found, log_level="warning", timeout_graceful_shutdown=2)).run(sockets=[listening])


def _address(settings: stages.ExploreSettings, port: int) -> str:
    """One that other machines can use too, where they may."""
    host = socket.gethostname() if settings.host in EVERYWHERE else settings.host
    query = f"?token={settings.token}" if settings.token is not None else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{query}"


def _has_screen() -> bool:
    """Without one, a text browser would take the terminal."""
    shown = sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return sys.stdout.isatty() and shown


def _require_server() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise RecurTraceError(
            f"the page needs {error.name}; install it with `pip install 'recurtrace[explore]'`."
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise RecurTraceError(
            f"cannot listen on {host}, port {port} ({error.strerror}); choose another with --port."
        ) from error
