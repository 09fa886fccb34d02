"""The async segment: a window of calls in flight over one event loop, across blocks and items.

A thread runs the loop. ``push`` submits rows and waits only while the window is full, so that it never drains between batches or shards.
Results go down in input order (``ordered``) or as they come; behind a step whose choice depends on the order, the driver asks for order.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.engine.convert import as_rows
from cloudshard.engine.item import ItemFailed
from cloudshard.engine.policy import BeforeRow, suppress
from cloudshard.engine.segments import Segment
from cloudshard.plan.values import StepSpec

#: Results that wait for an earlier one, in windows: one slow call must not stop the others, nor fill the memory.
WAITING_WINDOWS = 16
_CLOSE_SECONDS = 5.0


class EventLoop:
    """One loop in one thread, started when it is first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="cloudshard-async", daemon=True)
            self._thread.start()
        return self._loop

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for ``awaitable``, run in the loop, and return its result or raise what it raises."""

        async def awaited() -> Any:
            return await awaitable

        future: Future[Any] = asyncio.run_coroutine_threadsafe(awaited(), self.loop)
        return future.result()

    def close(self) -> None:
        """Cancel what runs and stop; user code that does not let itself be cancelled is left behind in its daemon thread."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(_CLOSE_SECONDS)
        if not thread.is_alive():
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Runs in the loop: cancel its tasks, and stop once they have ended."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()

    async def wait() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()

    loop.create_task(wait())


class _Call:
    """One row on its way. ``kept``: the row as it came, when the function might change it before it fails."""

    __slots__ = ("done", "error", "kept", "origin", "position", "result", "row", "task")

    def __init__(self, origin: Origin, position: int, row: Row, kept: Row) -> None:
        self.origin = origin
        self.position = position
        self.row = row
        self.kept = kept
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.task: asyncio.Task[None] | None = None


class AsyncSegment(Segment):
    """``map_async``: ``await function(row)`` for each row, ``concurrency`` at a time."""

    def __init__(
        self, spec: StepSpec, index: int, function: Callable[[Row], Awaitable[Any]], loop: EventLoop, *, careful: bool, ordered: bool
    ) -> None:
        super().__init__()
        self.spec = spec
        self.index = index
        self.before_row: BeforeRow | None = None
        self._function = function
        self._loop = loop
        self._window = 1 if careful else int(spec.params.get("concurrency", 64))
        self._ordered = ordered
        self._into: str | None = spec.params.get("into")
        self._copies = spec.on_error in ("quarantine", "null") or self._into is not None
        #: Submitted and not yet delivered, in input order.
        self._calls: deque[_Call] = deque()
        #: Of these, how many have not ended.
        self._running = 0
        self._ended_calls: SimpleQueue[_Call] = SimpleQueue()

    # ------------------------------------------------------------ in the loop's thread

    def _begin(self, calls: list[_Call]) -> None:
        for call in calls:
            call.task = self._loop.loop.create_task(self._one(call))

    async def _one(self, call: _Call) -> None:
        try:
            awaitable = self._function(call.row)
            if not inspect.isawaitable(awaitable):
                raise TypeError(f"the function returned {type(awaitable).__name__} and nothing to await: map_async needs an async function")
            call.result = await awaitable
        except asyncio.CancelledError as error:
            call.error = error
        except (KeyboardInterrupt, SystemExit) as error:  # they would end the loop, and with it every other call
            call.error = RuntimeError(f"the function raised {type(error).__name__}")
            call.error.__cause__ = error
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
            call.error = error
        self._ended_calls.put(call)

    # ------------------------------------------------------------ in the driver's thread

    def push(self, block: Block) -> None:
        block = as_rows(block)
        rows, origin = block.rows or [], block.origin
        self.held[origin.item] += len(rows)
        position = 0
        while position < len(rows):
            free = self._free()
            while free <= 0:
                self._collect(wait=True)
                free = self._free()
            if self.failed(origin.item):
                return
            calls = []
            for row, place in zip(rows[position : position + free], block.positions[position : position + free], strict=True):
                calls.append(_Call(origin, place, row, row.copy() if self._copies else row))
            if self.before_row is not None:
                self.before_row(origin.object, calls[0].position, self.spec.name)
            self._calls.extend(calls)
            self._running += len(calls)
            self._loop.loop.call_soon_threadsafe(self._begin, calls)
            position += len(calls)
        self._collect(wait=False)

    def _free(self) -> int:
        """Calls that may be submitted now."""
        return min(self._window - self._running, WAITING_WINDOWS * self._window - len(self._calls))

    def drain(self) -> None:
        left = len(self._calls)
        while left:
            self._collect(wait=True)
            left = len(self._calls)

    def forget(self, item: int) -> None:
        super().forget(item)
        mine = [call for call in self._calls if call.origin.item == item]
        if mine:
            self._calls = deque(call for call in self._calls if call.origin.item != item)
            self._loop.loop.call_soon_threadsafe(_cancel, mine)

    def close(self) -> None:
        calls, self._calls = list(self._calls), deque()
        if calls:
            self._loop.loop.call_soon_threadsafe(_cancel, calls)

    # ------------------------------------------------------------ results

    def _collect(self, *, wait: bool) -> None:
        """Send on what has ended; wait until something has, if asked to."""
        fresh: list[_Call] = []
        if wait and self._running:
            fresh.append(self._ended_calls.get())
        try:
            while True:
                fresh.append(self._ended_calls.get_nowait())
        except Empty:
            pass
        self._running -= len(fresh)
        for call in fresh:
            call.done = True
            call.task = None
        ready: list[_Call] = []
        if self._ordered:
            while self._calls and self._calls[0].done:
                ready.append(self._calls.popleft())
        elif fresh:
            ready = fresh
            self._calls = deque(call for call in self._calls if not call.done)
        at = 0
        while at < len(ready):  # neighbours of one origin travel as one block
            end = at + 1
            while end < len(ready) and ready[end].origin == ready[at].origin:
                end += 1
            self._deliver(ready[at:end])
            at = end

    def _deliver(self, calls: list[_Call]) -> None:
        item, origin = calls[0].origin.item, calls[0].origin
        if self.failed(item):
            return
        began = time.perf_counter()
        tally = self.states[item].tallies[self.index]
        rows: list[Row] = []
        positions: list[int] = []
        suppressed = 0
        for call in calls:
            try:
                result = self._result(call)
            except Exception as error:  # noqa: BLE001 - user code's; the policy decides
                place = {"step": self.spec.name, "origin": origin, "position": call.position, "row": call.kept}
                try:
                    stays = suppress(self.states[item], tally, self.spec.on_error, error, **place)  # type: ignore[arg-type]
                except ItemFailed:
                    return
                if not stays:
                    suppressed += 1
                    continue
                result = {**call.kept, str(self._into): None}
            if result is not None:
                rows.append(result)
                positions.append(call.position)
        tally.through(len(calls), len(rows), suppressed)
        tally.seconds += time.perf_counter() - began
        self.emit(Block(origin, positions, rows=rows))
        self.held[item] -= len(calls)
        self.settle(item)

    def _result(self, call: _Call) -> Row | None:
        """The row that the call has made. Raises what it raised."""
        if call.error is not None:
            if isinstance(call.error, asyncio.CancelledError):
                raise TimeoutError("the call was cancelled from inside") from call.error
            raise call.error
        if self._into is not None:
            return {**call.kept, self._into: call.result}
        if call.result is not None and not isinstance(call.result, dict):
            raise TypeError(f"the function returned {type(call.result).__name__}, expected a row (dict) or None")
        return call.result


def _cancel(calls: list[_Call]) -> None:
    """Runs in the loop's thread."""
    for call in calls:
        if call.task is not None:
            call.task.cancel()


__all__ = ["AsyncSegment", "EventLoop"]
