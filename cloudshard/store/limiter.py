"""Slowing down when a bucket asks for it, and speeding up again: additive increase, multiplicative decrease.

A bucket that answers 503 SlowDown is splitting its prefixes, or is shared with somebody; hammering on makes it worse for
everybody. Until the first such answer the limiter only counts (about 0.2 µs per request). Then it holds the process to a
rate: half of what it was doing, plus a little with every second without throttling, until the limit no longer matters and
is lifted. Every process does so for itself, as TCP senders do, and a fleet shares a bucket without talking to each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: One request per second at least: a process that stopped asking could not notice that the bucket has recovered.
FLOOR = 1.0
#: Answers of requests that were in flight together are one event: a hundred threads throttled at once halve the rate once.
EVENT_SECONDS = 1.0
#: The rate before any limit is measured over windows of this length.
WINDOW_SECONDS = 1.0
#: Share of the rate before throttling that is won back per second: full speed again after 20 s, tried for as long before lifting.
RECOVERY_PER_SECOND = 0.05
#: Beyond this multiple of the rate at which the bucket throttled, the limit is lifted.
LIFT = 2.0


class AdaptiveLimiter:
    """A token bucket whose rate (requests per second) follows the store's answers. Safe for threads.

    ``monotonic`` and ``sleep`` are the clock; ``rate`` is None while there is no limit; ``waited_seconds`` adds up all waits.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self.rate: float | None = None
        self.waited_seconds = 0.0
        self.events = 0
        self._throttled_at = 0.0  # the rate at which the store last said "slow down"
        self._event_time = float("-inf")
        self._raised_time = 0.0
        self._next_free = 0.0  # when the next request may go
        self._window_start = float("-inf")
        self._window_count = 0
        self._last_window = (float("-inf"), 0.0)  # when it ended, its rate

    def acquire(self, verb: str) -> None:
        """Wait for this request's turn. All verbs share the bucket's capacity."""
        if self.rate is None:
            self._count()
            return
        with self._lock:
            now = self._monotonic()
            rate = self._recover(now)
            if rate is None:
                return
            turn = max(now, self._next_free)
            self._next_free = turn + 1.0 / rate
            wait = turn - now
            self.waited_seconds += wait
        if wait > 0:
            self._sleep(wait)

    def throttled(self) -> None:
        """The store said "slow down"."""
        with self._lock:
            now = self._monotonic()
            if now - self._event_time < EVENT_SECONDS:
                return
            self._event_time = now
            self.events += 1
            before = self.rate if self.rate is not None else self._measured(now)
            self._throttled_at = max(FLOOR, before)
            self.rate = max(FLOOR, before / 2)
            self._raised_time = now
            self._next_free = max(self._next_free, now)

    def succeeded(self) -> None:
        """An answer that was no throttling; recovery goes by time, so this costs nothing."""

    def _count(self) -> None:
        """Measure the rate while nothing limits it. Updates lost among threads only make the first guess a little lower."""
        now = self._monotonic()
        age = now - self._window_start
        if age >= WINDOW_SECONDS:
            if age < 2 * WINDOW_SECONDS:
                self._last_window = (now, self._window_count / age)
            self._window_start, self._window_count = now, 0
        self._window_count += 1

    def _measured(self, now: float) -> float:
        """Requests per second of late, when no limit was set."""
        ended, rate = self._last_window
        current = self._window_count / max(now - self._window_start, 0.1)
        return max(current, rate) if now - ended < 2 * WINDOW_SECONDS else current

    def _recover(self, now: float) -> float | None:
        """The rate now, after what was won back since it was last looked at."""
        if self.rate is not None and now > self._raised_time and now - self._event_time >= EVENT_SECONDS:
            self.rate += self._throttled_at * RECOVERY_PER_SECOND * (now - self._raised_time)
            self._raised_time = now
            if self.rate > self._throttled_at * LIFT:
                self.rate = None
                self._window_start, self._window_count = now, 0
        return self.rate
