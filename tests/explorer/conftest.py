"""A server in a thread, with a tracer that is told what to do, and traces of a small model with answers put in."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import uvicorn

from recurtrace.evaluation.trace import trace
from recurtrace.explorer.server import About, Question, Sample, make_app
from recurtrace.records import LoopTrace
from tests.conftest import byte_tokenizer, tiny_looped

LOOPS = 6
SAMPLES = [Sample("where", "easy", "Ball is in Box. Where? Ball", "Box"), Sample("where", "hard", "Jar? <b>", "Sack")]


@pytest.fixture(scope="session")
def made_trace() -> LoopTrace:
    """Six loops; the head would stop after the third, from the fourth on the answer is wrong."""
    tokenizer = byte_tokenizer()
    model = tiny_looped(vocab_size=len(tokenizer))
    found = trace(model, tokenizer, SAMPLES[0].prompt, reference="Box", max_loops=LOOPS)
    loops = [
        replace(loop, continue_prob=0.9 - 0.15 * i, answer="Box" if i < 3 else "Sack", right=i < 3)
        for i, loop in enumerate(found.loops)
    ]
    return replace(found, model="looped", loops=loops, head=replace(found.head, threshold=0.65, min_depth=1))


@dataclass
class Tracing:
    """Stands for the model: gives the same trace to everyone, a loop at a time."""

    made: LoopTrace
    gate: threading.Event = field(default_factory=threading.Event)
    """Loops after the first wait for it."""
    running: int = 0
    most: int = 0
    ended: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self, question: Question, progress: Any) -> LoopTrace:
        self.running += 1
        self.most = max(self.most, self.running)
        done = 0
        for loop in self.made.loops[: question.max_loops]:
            done += 1
            if not progress(loop):
                break
            self.gate.wait(20)
        self.running -= 1
        self.ended.append((question.prompt, done))
        return replace(self.made, prompt=question.prompt, memory_off_from=question.memory_off_from)


@contextmanager
def serving(app: Any) -> Iterator[int]:
    """The port of a server that runs meanwhile."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def tracing(made_trace) -> Tracing:
    return Tracing(made_trace)


@pytest.fixture
def app(tracing):
    about = About(["looped", "other"], SAMPLES, max_loops=32, max_tokens=512)
    return make_app(
        about, tracing, lambda: iter([[], [Sample("where", "more loops turn it wrong", "Key?", "Pot")]]), waiting=1
    )


def call(port: int, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, what came (JSON where it is), headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    text = body if body is None or isinstance(body, str) else json.dumps(body)
    given = {"content-type": "application/json"} if text is not None else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if text is None else "POST", path, text, {**given, **named})
    answer = connection.getresponse()
    found = answer.read().decode()
    connection.close()
    kind = answer.headers.get("content-type", "")
    return answer.status, json.loads(found) if kind == "application/json" else found, answer.headers
