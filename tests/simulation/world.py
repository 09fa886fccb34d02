"""A world in one thread: a virtual clock, simulated workers as greenlets, and a bucket that misbehaves.

The *real* ledger code runs here, unmodified: every store call of a worker switches to the scheduler, which lets others run before
and after the call takes effect. All that happens follows from one seed, so a failure is replayed by its number.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import greenlet

from cloudshard.errors import CloudshardError, Conflict, Throttled, Unavailable
from cloudshard.store.memory import MemoryStore
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Upload, UploadPart


class Killed(BaseException):
    """The simulated process is gone: nothing may catch it."""


@dataclass(frozen=True)
class Chaos:
    """Probabilities per store call (or per step of a worker)."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    throttled: float = 0.0
    conflict: float = 0.0
    duplicate: float = 0.0
    crash: float = 0.0
    freeze: float = 0.0
    freeze_seconds: tuple[float, float] = (1.0, 200.0)
    latency_seconds: float = 0.05
    clock_rate: float = 0.01
    frozen_clock: float = 0.0
    task_failure: float = 0.0
    infrastructure_error: float = 0.0


class Scheduler:
    """Runs greenlets in virtual time. ``now`` is the store's true clock."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1_000_000.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._main = greenlet.getcurrent()
        self.steps = 0

    def at(self, delay: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay, self._number, call))

    def spawn(self, body: Callable[[], None], delay: float = 0.0) -> greenlet.greenlet:
        made = greenlet.greenlet(body, parent=self._main)
        self.at(delay, made.switch)
        return made

    def sleep(self, seconds: float) -> None:
        """Called inside a greenlet: let others run, come back after ``seconds``."""
        me = greenlet.getcurrent()
        self.at(seconds, me.switch)
        self._main.switch()

    def run(self, *, until: Callable[[], bool], max_seconds: float, max_steps: int = 200_000) -> bool:
        """Run until ``until()`` or the limits; returns whether ``until()`` holds."""
        end = self.now + max_seconds
        while self._queue and not until():
            when, _, call = heapq.heappop(self._queue)
            if when > end or self.steps > max_steps:
                return until()
            self.now = max(self.now, when)
            self.steps += 1
            call()
        return until()

    def drain(self, max_seconds: float) -> None:
        """Let everything that is still queued happen (late duplicates, frozen workers waking up)."""
        self.run(until=lambda: False, max_seconds=max_seconds)


class Process:
    """One simulated worker process: its clock, its fate."""

    def __init__(self, scheduler: Scheduler, chaos: Chaos, name: str) -> None:
        self.scheduler = scheduler
        self.chaos = chaos
        self.name = name
        self.alive = True
        rng = scheduler.rng
        self._born = scheduler.now
        self._rate = 1.0 + rng.uniform(-chaos.clock_rate, chaos.clock_rate)
        self._offset = rng.uniform(-1e6, 1e6)
        self._counts_frozen_time = rng.random() >= chaos.frozen_clock
        self._lost = 0.0
        self.doomed = False

    def monotonic(self) -> float:
        return self._offset + (self.scheduler.now - self._born - self._lost) * self._rate

    def pause(self, seconds: float) -> None:
        """Let time pass for this process; it may freeze or die meanwhile."""
        self.scheduler.sleep(seconds)
        rng, chaos = self.scheduler.rng, self.chaos
        if self.doomed or (chaos.crash and rng.random() < chaos.crash):
            self.alive = False
            raise Killed(self.name)
        if chaos.freeze and rng.random() < chaos.freeze:
            frozen = rng.uniform(*chaos.freeze_seconds)
            if not self._counts_frozen_time:
                self._lost += frozen
            self.scheduler.sleep(frozen)


class Bucket:
    """The true bucket, watched: monitors see each write at the moment it takes effect."""

    def __init__(self, scheduler: Scheduler, resolution: float = 1.0) -> None:
        self.memory = MemoryStore("sim", clock=lambda: scheduler.now, resolution=resolution)
        self.monitors: list[Callable[[str, str, Any], None]] = []
        self.injected: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.actor = ""

    def apply(self, verb: str, key: str, call: Callable[[], Any]) -> Any:
        result = call()
        for monitor in self.monitors:
            monitor(verb, key, result)
        return result


class SimulatedStore:
    """A raw store as one process reaches it, under a key prefix: slow, forgetful, and now and then twice."""

    default_part_size = 1 << 20

    def __init__(self, bucket: Bucket, process: Process, prefix: str = "") -> None:
        self.bucket = bucket
        self.process = process
        self.prefix = prefix
        self.url = f"memory://sim/{prefix}".rstrip("/")

    def _do(self, verb: str, key: str, call: Callable[[], Any], *, write: bool) -> Any:
        process, bucket = self.process, self.bucket
        rng, chaos = process.scheduler.rng, process.chaos
        bucket.requests[verb] += 1
        process.pause(rng.expovariate(1.0 / chaos.latency_seconds))
        draw = rng.random()
        if draw < chaos.throttled:
            bucket.injected["throttled"] += 1
            raise Throttled("SlowDown")
        draw -= chaos.throttled
        if draw < chaos.conflict and verb == "create":
            bucket.injected["conflict"] += 1
            raise Conflict("ConditionalRequestConflict")
        draw -= chaos.conflict
        if draw < chaos.lost_request:
            bucket.injected["lost_request"] += 1
            process.pause(rng.uniform(0.1, 5.0))
            raise Unavailable("time-out")
        draw -= chaos.lost_request
        if draw < chaos.lost_answer:
            bucket.injected["lost_answer"] += 1
            bucket.actor = process.name
            with contextlib.suppress(CloudshardError):  # the answer would have been an error; it is lost all the same
                bucket.apply(verb, key, call)
            process.pause(rng.uniform(0.1, 5.0))
            raise Unavailable("time-out")
        draw -= chaos.lost_answer
        if write and draw < chaos.duplicate:
            bucket.injected["duplicate"] += 1

            def again() -> None:
                bucket.actor = process.name
                try:
                    bucket.apply(verb, key, call)
                except CloudshardError:
                    return  # nobody waits for this answer

            process.scheduler.at(rng.choice((0.01, 1.0, 30.0, 90.0)) * rng.random(), again)
        bucket.actor = process.name
        result = bucket.apply(verb, key, call)
        process.pause(rng.expovariate(1.0 / chaos.latency_seconds))
        return result

    def _strip(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key[len(self.prefix) :], info.size, info.etag, info.last_modified, info.metadata)

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        full = self.prefix + key
        return self._strip(self._do("create", full, lambda: self.bucket.memory.create(full, body, metadata=metadata), write=True))

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        full = self.prefix + key
        return self._strip(self._do("put", full, lambda: self.bucket.memory.put(full, body, metadata=metadata), write=True))

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        full = self.prefix + key
        body: bytes = self._do("get", full, lambda: self.bucket.memory.get(full, start=start, end=end, if_etag=if_etag), write=False)
        return body

    def head(self, key: str) -> ObjectInfo:
        full = self.prefix + key
        return self._strip(self._do("head", full, lambda: self.bucket.memory.head(full), write=False))

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        full, cut = self.prefix + prefix, len(self.prefix)
        after = self.prefix + start_after if start_after else ""
        pages = self.bucket.memory.list(full, start_after=after, delimiter=delimiter)
        while True:
            page = self._do("list", full, lambda: next(pages, None), write=False)
            if page is None:
                self.bucket.requests["list"] -= 1
                return
            yield ListPage(
                tuple(self._strip(info) for info in page.objects), tuple(prefix[cut:] for prefix in page.prefixes), page.server_time
            )

    def delete(self, keys: Sequence[str]) -> None:
        full = [self.prefix + key for key in keys]
        for key in full:
            self._do("delete", key, lambda key=key: self.bucket.memory.delete([key]), write=True)

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        full = self.prefix + key
        upload: Upload = self._do("begin_upload", full, lambda: self.bucket.memory.begin_upload(full, part_size=part_size), write=True)
        return Upload(key, upload.upload_id, upload.part_size)

    def _full(self, upload: Upload) -> Upload:
        return Upload(self.prefix + upload.key, upload.upload_id, upload.part_size)

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        full = self._full(upload)
        part: UploadPart = self._do("upload_part", full.key, lambda: self.bucket.memory.upload_part(full, number, data), write=True)
        return part

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        full = self._full(upload)
        return self._strip(self._do("finish_upload", full.key, lambda: self.bucket.memory.finish_upload(full, parts), write=True))

    def abort_upload(self, upload: Upload) -> None:
        full = self._full(upload)
        self._do("abort_upload", full.key, lambda: self.bucket.memory.abort_upload(full), write=True)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        return self.bucket.memory.list_uploads(self.prefix + prefix)

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        return self.upload_part(upload, number, self.get(source_key, start=start, end=end))

    def server_time(self) -> float:
        now: float = self._do("server_time", "", self.bucket.memory.server_time, write=False)
        return now

    def close(self) -> None:
        """Nothing to release."""
