"""Store calls beside the event loop: a few daemon threads, and a way for their results to come back into the loop.

Daemon threads, because a call may keep trying for minutes while the store is away, and a worker that was asked to stop must not wait
for it. Threads are made when all others are busy, up to ``limit``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Job(NamedTuple):
    call: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class StoreCalls:
    """``fileno`` is readable when results wait for :meth:`deliver`, which runs their callbacks in the calling thread."""

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._signalled = False
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0
        self.pending = 0

    def fileno(self) -> int:
        """For a selector."""
        return self._read

    def submit(self, call: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Run ``call`` in a thread; ``done`` or ``failed`` later, in the thread that calls :meth:`deliver`."""
        self.pending += 1
        self._jobs.put(_Job(call, done, failed))
        with self._lock:
            if self._idle < self._jobs.qsize() and self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._work, name=f"cloudshard-store-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
            if job is None:
                return
            try:
                result: tuple[Callable[[Any], None], Any] = (job.done, job.call())
            except Exception as error:  # noqa: BLE001 - the edge of a thread: handed over to the loop
                result = (job.failed, error)
            self._results.append(result)
            if not self._signalled:
                self._signalled = True
                os.write(self._write, b"x")

    def deliver(self) -> int:
        """Run the callbacks of all finished calls; how many."""
        if self._signalled:
            with contextlib.suppress(BlockingIOError):  # a thread has raised the flag and not yet written
                os.read(self._read, 16)
            self._signalled = False  # before the results are taken: one that comes later wakes the loop again
        count = 0
        while self._results:
            callback, value = self._results.popleft()
            self.pending -= 1
            count += 1
            callback(value)
        return count

    def wait(self, seconds: float) -> bool:
        """Deliver until nothing is pending or the time is over; whether nothing is pending."""
        end = time.monotonic() + seconds
        while self.pending and time.monotonic() < end:
            if not self.deliver():
                time.sleep(0.005)
        return not self.pending

    def close(self) -> None:
        """Let idle threads end. Calls in flight go on; nobody hears of their results."""
        for _ in range(self._threads):
            self._jobs.put(None)
