"""`recurtrace explore`: look at what the loop does, in the browser."""

import secrets
import socket
from pathlib import Path

import typer

from recurtrace import stages
from recurtrace.cli.fields import stage_command
from recurtrace.cli.options import next_step
from recurtrace.errors import RecurTraceError


@stage_command(stages.ExploreSettings)
def explore(settings: stages.ExploreSettings) -> None:
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
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        query = f"/?token={settings.token}" if settings.token is not None else ""
        typer.echo(f"Open http://{host}:{listening.getsockname()[1]}{query} in a browser; Ctrl-C ends it.")
        uvicorn.Server(uvicorn.Config(found, log_level="warning", timeout_graceful_shutdown=2)).run(sockets=[listening])


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
