"""The async segment: a window of calls in flight over one event loop, across blocks and items.

A thread runs the loop. ``push`` submits rows and blocks only while the window is full, so that it never drains between batches or
shards. Results go down in input order (``ordered``) or as they come.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.engine.convert import as_rows
from cloudshard.engine.item import ItemFailed
from cloudshard.engine.policy import BeforeRow, suppress
from cloudshard.engine.segments import Segment
from cloudshard.plan.values import StepSpec


@dataclass(eq=False, slots=True)
class _Call:
    origin: Origin
    position: int
    row: Row
    kept: Row
    future: Future[Any]
    began: float


class AsyncSegment(Segment):
    """``map_async``: ``await function(row)`` for each row, ``concurrency`` at a time."""

    def __init__(self, spec: StepSpec, index: int, function: Callable[[Row], Awaitable[Any]], *, careful: bool) -> None:
        super().__init__()
        self.spec = spec
        self.index = index
        self.before_row: BeforeRow | None = None
        self._function = function
        self._window = 1 if careful else int(spec.params.get("concurrency", 64))
        self._ordered = bool(spec.params.get("ordered", False))
        self._calls: deque[_Call] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"async {spec.name}", daemon=True)
        self._thread.start()

    def push(self, block: Block) -> None:
        block = as_rows(block)
        self.held[block.origin.item] += len(block)
        keep = self.spec.on_error == "quarantine"
        for row, position in zip(block.rows or [], block.positions, strict=True):
            while self._running() >= self._window:
                self._collect(wait_for_one=True)
            if self.failed(block.origin.item):
                return
            if self.before_row is not None:
                self.before_row(block.origin.object, position, self.spec.name)
            future = asyncio.run_coroutine_threadsafe(self._one(row), self._loop)
            self._calls.append(_Call(block.origin, position, row, row.copy() if keep else row, future, time.perf_counter()))
        self._collect(wait_for_one=False)

    async def _one(self, row: Row) -> Any:
        return await self._function(row)

    def _running(self) -> int:
        return sum(not call.future.done() for call in self._calls)

    def drain(self) -> None:
        while self._calls:
            self._collect(wait_for_one=True)

    def forget(self, item: int) -> None:
        super().forget(item)
        for call in self._calls:
            if call.origin.item == item:
                call.future.cancel()
        self._calls = deque(call for call in self._calls if call.origin.item != item)

    def close(self) -> None:
        for call in self._calls:
            call.future.cancel()
        self._calls.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()

    # ------------------------------------------------------------ results

    def _collect(self, *, wait_for_one: bool) -> None:
        """Send on what is done; wait until something is, if asked to."""
        if wait_for_one and self._calls:
            wait([self._calls[0].future] if self._ordered else [call.future for call in self._calls], return_when=FIRST_COMPLETED)
        done: list[_Call] = []
        if self._ordered:
            while self._calls and self._calls[0].future.done():
                done.append(self._calls.popleft())
        else:
            done = [call for call in self._calls if call.future.done()]
            finished = set(map(id, done))
            self._calls = deque(call for call in self._calls if id(call) not in finished)
        at = 0
        while at < len(done):  # neighbours of one origin travel as one block
            end = at
            while end < len(done) and done[end].origin == done[at].origin:
                end += 1
            self._deliver(done[at:end])
            at = end

    def _deliver(self, calls: list[_Call]) -> None:
        item = calls[0].origin.item
        if self.failed(item):
            return
        tally = self.states[item].tallies[self.index]
        rows: list[Row] = []
        positions: list[int] = []
        suppressed = 0
        into = self.spec.params.get("into")
        for call in calls:
            try:
                result = call.future.result()
                if into is None and result is not None and not isinstance(result, dict):
                    raise TypeError(f"the function returned {type(result).__name__}, expected a row (dict) or None")
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                where = {"step": self.spec.name, "origin": call.origin, "position": call.position, "row": call.kept}
                try:
                    stays = suppress(self.states[item], tally, self.spec.on_error, error, **where)  # type: ignore[arg-type]
                except ItemFailed:
                    break
                if not stays:
                    suppressed += 1
                    continue
                result = None
            if into is not None:
                call.row[into] = result
                result = call.row
            if result is not None:
                rows.append(result)
                positions.append(call.position)
        now = time.perf_counter()
        tally.seconds += sum(now - call.began for call in calls) / max(self._window, 1)
        tally.through(len(calls), len(rows), suppressed)
        self.emit(Block(calls[0].origin, positions, rows=rows))
        self.held[item] -= len(calls)
        self.settle(item)
