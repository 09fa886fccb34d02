"""What every store gets on top: retries with full jitter, lost answers told from lost races, counters, the server's clock.

Three rules, each with a test that fails without it:

- A ``create`` whose answer was lost may have happened. The same bytes are put again until the answer is definite; if that
  says "already exists" after an unknown outcome, the object is read back, and equal bytes (every body carries a nonce)
  mean that this create won.
- A ``finish_upload`` whose answer was lost may have happened: UploadGone after an unknown outcome is passed on as such, and
  whoever finishes (:mod:`cloudshard.ledger.publish`) looks whether the object is there.
- The estimate of the server's clock never runs ahead: it is a lower bound, so that nobody's lease is declared over too early.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from cloudshard.errors import AlreadyExists, Transient, Unavailable
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Store, Upload, UploadPart

T = TypeVar("T")


class RequestLimiter(Protocol):
    """Slows down when the store says so; see :mod:`cloudshard.store.limiter`."""

    def acquire(self, verb: str) -> None: ...
    def throttled(self) -> None: ...
    def succeeded(self) -> None: ...


class ServerClock:
    """A lower bound of the server's time: the best recent (server time seen − monotonic time when it was seen).

    The best sample is the one with the fastest answer. It is kept for one or two windows only: the two clocks drift apart, and a
    bound that was true an hour ago may be ahead of the truth now (the simulation found that).
    """

    WINDOW_SECONDS = 60.0

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._current: float | None = None
        self._previous: float | None = None
        self._window_began = 0.0

    def observe(self, server_time: float | None) -> None:
        """Take a sample from an answer that has just arrived."""
        if server_time is None:
            return
        now = self._monotonic()
        offset = server_time - now
        if self._current is None or now - self._window_began > self.WINDOW_SECONDS:
            self._previous, self._current, self._window_began = self._current, offset, now
        else:
            self._current = max(self._current, offset)

    def now(self) -> float | None:
        """The server's time now, or None before the first sample."""
        if self._current is None:
            return None
        best = self._current if self._previous is None else max(self._current, self._previous)
        return best + self._monotonic()


class ReliableStore:
    """Wraps a raw store. ``deadline_seconds``: how long one call keeps trying before it raises the last Transient error."""

    def __init__(
        self,
        inner: Store,
        *,
        limiter: RequestLimiter | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        deadline_seconds: float = 120.0,
        base_delay_seconds: float = 0.1,
        max_delay_seconds: float = 10.0,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.default_part_size = inner.default_part_size
        self.clock = ServerClock(monotonic)
        self._limiter = limiter
        self._monotonic = monotonic
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._deadline_seconds = deadline_seconds
        self._base_delay = base_delay_seconds
        self._max_delay = max_delay_seconds
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    # ------------------------------------------------------------ counters

    def _count(self, name: str) -> None:
        with self._lock:
            self._requests[name] += 1

    @property
    def requests(self) -> dict[str, int]:
        """Requests made so far, by verb, retries included; ``retry``, ``throttled`` and ``lost_answer`` count events."""
        with self._lock:
            return dict(self._requests)

    # ------------------------------------------------------------ retrying

    def _attempts(self, verb: str, call: Callable[[], T], *, on_unknown: Callable[[], None] | None = None) -> T:
        started: float | None = None
        tries = 0
        while True:
            if self._limiter is not None:
                self._limiter.acquire(verb)
            self._count(verb)
            try:
                result = call()
            except Transient as error:
                if on_unknown is not None:
                    on_unknown()
                self._backoff(error, tries, started)
                if started is None:
                    started = self._monotonic()
                tries += 1
            else:
                if self._limiter is not None:
                    self._limiter.succeeded()
                return result

    def _backoff(self, error: Transient, tries: int, started: float | None) -> None:
        """Sleep before the next try, or raise ``error`` when the deadline is over."""
        throttled = not isinstance(error, Unavailable)
        self._count("throttled" if throttled else "retry")
        if throttled and self._limiter is not None:
            self._limiter.throttled()
        delay = self._rng.random() * min(self._max_delay, self._base_delay * 2.0 ** min(tries, 16))
        if started is not None and self._monotonic() + delay - started > self._deadline_seconds:
            raise error
        self._sleep(delay)

    # ------------------------------------------------------------ writes

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Put if absent. AlreadyExists means that *somebody else's* object is there: a lost answer is not a lost race."""
        unknown = False

        def mark() -> None:
            nonlocal unknown
            unknown = True

        try:
            info = self._attempts("create", lambda: self.inner.create(key, body, metadata=metadata), on_unknown=mark)
        except AlreadyExists:
            if not unknown or self.get(key) != body:
                raise
            self._count("lost_answer")
            info = self.head(key)
        self.clock.observe(info.last_modified)
        return info

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        info = self._attempts("put", lambda: self.inner.put(key, body, metadata=metadata))
        self.clock.observe(info.last_modified)
        return info

    def delete(self, keys: Sequence[str]) -> None:
        self._attempts("delete", lambda: self.inner.delete(keys))

    # ------------------------------------------------------------ reads

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        return self._attempts("get", lambda: self.inner.get(key, start=start, end=end, if_etag=if_etag))

    def head(self, key: str) -> ObjectInfo:
        return self._attempts("head", lambda: self.inner.head(key))

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        """As the port says; a page that fails is asked for again from the last key seen."""
        after = start_after
        pages = self.inner.list(prefix, start_after=after, delimiter=delimiter)

        def restart() -> None:
            nonlocal pages
            pages = self.inner.list(prefix, start_after=after, delimiter=delimiter)

        while True:
            page = self._attempts("list", lambda: next(pages, None), on_unknown=restart)
            if page is None:
                with self._lock:
                    self._requests["list"] -= 1  # the end of the iterator is no request
                return
            self.clock.observe(page.server_time)
            last = [page.objects[-1].key] if page.objects else []
            # everything under a common prefix has been told by it
            last += [page.prefixes[-1] + "\U0010ffff"] if page.prefixes else []
            after = max([after, *last])
            yield page

    # ------------------------------------------------------------ multipart

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        return self._attempts("begin_upload", lambda: self.inner.begin_upload(key, part_size=part_size))

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        return self._attempts("upload_part", lambda: self.inner.upload_part(upload, number, data))

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        info = self._attempts("finish_upload", lambda: self.inner.finish_upload(upload, parts))
        self.clock.observe(info.last_modified)
        return info

    def abort_upload(self, upload: Upload) -> None:
        self._attempts("abort_upload", lambda: self.inner.abort_upload(upload))

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        return iter(self._attempts("list_uploads", lambda: list(self.inner.list_uploads(prefix))))

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        return self._attempts("copy_part", lambda: self.inner.copy_part(upload, number, source_key, start, end))

    # ------------------------------------------------------------ time and end

    def server_time(self) -> float:
        now = self._attempts("server_time", self.inner.server_time)
        self.clock.observe(now)
        return now

    def now(self) -> float:
        """The server's time (a lower bound), asking the store only when nothing was heard from it yet."""
        now = self.clock.now()
        return self.server_time() if now is None else now

    def close(self) -> None:
        self.inner.close()
