"""The page's server: a trace for a question, streamed as one JSON object a line.

Without a token it answers this machine only. Bodies, prompts, loops and the number of waiting visitors are limited.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from secrets import compare_digest
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recurtrace import __version__
from recurtrace.explorer.page import STATIC, empty_page, served_page
from recurtrace.explorer.runs import BusyError, Event, Runs
from recurtrace.records import LoopTrace, TracedLoop

LOCAL = ("localhost", "127.0.0.1", "[::1]")
LARGEST_BODY = 64 * 1024
COOKIE = "recurtrace_token"
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Question(BaseModel):
    """What the page asks for."""

    model_config = ConfigDict(extra="forbid")

    model: str
    prompt: Annotated[str, Field(min_length=1, max_length=20_000)]
    reference: Annotated[str, Field(max_length=500)] | None = None
    max_loops: Annotated[int, Field(ge=1, le=64)] = 16
    memory_off_from: Annotated[int, Field(ge=2, le=64)] | None = None


@dataclass(frozen=True)
class Sample:
    """An example to click."""

    kind: str
    level: str
    prompt: str
    reference: str


@dataclass(frozen=True)
class About:
    """What the page must know before it asks."""

    models: list[str]
    samples: list[Sample]
    max_loops: int
    max_tokens: int
    without_memory: list[str] = field(default_factory=list)
    """Models that have no memory to switch off."""
    stories: bool = False
    """Whether the embedded model is among them, which knows nothing but its stories."""
    version: str = __version__


Tracer = Callable[[Question, Callable[[TracedLoop], bool]], LoopTrace]


def make_app(
    about: About,
    tracer: Tracer,
    turning: Callable[[], Iterator[list[Sample]]] = lambda: iter(()),
    traces: Sequence[LoopTrace] = (),
    token: str | None = None,
    waiting: int = 4,
) -> FastAPI:
    """`tracer` makes a trace; `turning` looks for examples that more loops turn, a little at a time.

    Both run one after the other: a model may be used by one of them only.
    """
    app = FastAPI(title="RecurTrace explorer", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.runs = runs = Runs(waiting)
    app.add_middleware(Guard, token=token)
    if token is None:  # another site's page may not ask under a name of its own
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL))
    app.mount("/static", StaticFiles(directory=STATIC))
    search, searching, found = turning(), asyncio.Lock(), list[Sample]()

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return served_page(traces)

    @app.get("/empty.html", response_class=HTMLResponse)
    def empty() -> str:
        return empty_page()

    @app.get("/api/about")
    def tell() -> dict[str, Any]:
        return asdict(about)

    @app.get("/api/turning")
    async def examples_that_turn() -> list[dict[str, str]]:
        async with searching:  # between two steps, questions have their turn
            while (step := await runs.once(lambda: next(search, None))) is not None:
                found[:] = step
        return [asdict(sample) for sample in found]

    @app.post("/api/trace")
    async def trace(question: Question) -> StreamingResponse:
        if question.model not in about.models:
            raise HTTPException(422, f"there is no model {question.model!r} here; choose {' or '.join(about.models)}.")
        if question.max_loops > about.max_loops:
            raise HTTPException(422, f"max_loops is at most {about.max_loops} here, got {question.max_loops}.")
        try:
            events = runs.start(lambda progress: tracer(question, progress))
        except BusyError as error:
            raise HTTPException(429, str(error)) from error
        return StreamingResponse(_lines(events), media_type="application/x-ndjson")

    @app.exception_handler(StarletteHTTPException)
    def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"message": error.detail}, error.status_code)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str))
        said = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        return JSONResponse({"message": f"{where}: {said}." if where else f"the question is malformed: {said}."}, 422)

    return app


async def _lines(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    async for event in events:
        yield json.dumps(event, ensure_ascii=False) + "\n"


class Guard:
    """Asks for the token, refuses large bodies, and adds headers. (A plain ASGI layer, so that streams can be left.)"""

    def __init__(self, app: ASGIApp, token: str | None):
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        given = request.query_params.get("token") or request.cookies.get(COOKIE) or ""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        length = request.headers.get("content-length", "")
        refusal = None
        if self.token is not None and not any(
            compare_digest(self.token.encode(), one.encode()) for one in (given, bearer)
        ):
            refusal = 401, "this page needs the token that `recurtrace explore` printed; open the address with ?token=…"
        elif request.method == "POST" and not length.isdecimal():
            refusal = 411, "a question needs a content-length header."
        elif request.method == "POST" and int(length) > LARGEST_BODY:
            refusal = 413, f"the question has {int(length):,} bytes, more than {LARGEST_BODY:,}; shorten it."

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = dict(HEADERS)
                if refusal is None and self.token is not None and "token" in request.query_params:
                    added["set-cookie"] = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in added.items())]
            await send(message)

        target: ASGIApp = self.app if refusal is None else JSONResponse({"message": refusal[1]}, refusal[0])
        await target(scope, receive, answer)
