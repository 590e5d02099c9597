"""Runs of the model for several visitors: one at a time, told loop by loop, ended when the visitor leaves."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from recurtrace.errors import RecurTraceError
from recurtrace.records import LoopTrace, TracedLoop

Event = dict[str, Any]
Run = Callable[[Callable[[TracedLoop], bool]], LoopTrace]
"""Makes a trace; calls what it is given after each loop, and stops if that returns False."""
SUMMARY = ("loop", "continue_prob", "confidence", "answer", "answer_prob", "right", "loss")


class BusyError(RecurTraceError):
    """Too many visitors wait already."""


class Runs:
    def __init__(self, waiting: int):
        self.waiting = waiting
        self.active = 0
        """Runs that wait, run, or have been left and not ended yet."""
        self.aside = 0
        """Other work that waits or runs: it is ahead of a new run, but keeps nobody out."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trace")

    async def once(self, work: Callable[[], Any]) -> Any:
        """Something else that needs the model, when it is free."""
        self.aside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self.aside -= 1

    def start(self, run: Run) -> AsyncIterator[Event]:
        """What happens, for one visitor: waiting, each loop, and the trace or an error. Leaving it ends the run."""
        if self.active > self.waiting:
            raise BusyError(f"{self.active} questions are being traced or waiting; try again in a moment.")
        here, events, left = asyncio.get_running_loop(), asyncio.Queue[Event | None](), threading.Event()
        before = self.active + self.aside
        self.active += 1

        def tell(event: Event) -> None:
            here.call_soon_threadsafe(events.put_nowait, event)

        def progress(loop: TracedLoop) -> bool:
            tell({"event": "loop", **{name: getattr(loop, name) for name in SUMMARY}})
            return not left.is_set()

        def work() -> None:
            if left.is_set():
                return
            try:
                tell({"event": "trace", "trace": run(progress).as_json()})
            except RecurTraceError as error:
                tell({"event": "error", "message": str(error)})

        def ended(_: Any) -> None:
            self.active -= 1
            events.put_nowait(None)

        running = here.run_in_executor(self._pool, work)
        running.add_done_callback(ended)

        async def told() -> AsyncIterator[Event]:
            try:
                if before:
                    yield {"event": "waiting", "before": before}
                while (event := await events.get()) is not None:
                    yield event
                await running  # raises what nobody expected
            finally:
                left.set()

        return told()
