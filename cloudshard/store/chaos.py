"""Any store with the faults of real ones, on purpose and by seed: for the contract suite, the simulation and chaos runs.

===============  =====================================================================================================
kind             what happens
===============  =====================================================================================================
throttled        503 SlowDown; nothing was done
conflict         409 ConditionalRequestConflict (``create`` only); nothing was done
lost_request     the request never arrived; Unavailable
lost_answer      the request was done, its answer was lost; Unavailable
duplicate        a write is delivered again, later: after some other requests of this store (as a retrying proxy does)
torn_read        the body of a ``get`` breaks off; the client notices: Unavailable
truncated        the body of a ``get`` breaks off and nobody notices: short bytes (only what checks sizes survives this)
delay            the request takes up to ``delay_seconds``
===============  =====================================================================================================

``clock_offset`` is added to every time that the store tells, as if its clock ran ahead.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from cloudshard.errors import CloudshardError, Conflict, RecipeError, StoreError, Throttled, Unavailable
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Store, Upload, UploadPart

T = TypeVar("T")

KINDS = ("throttled", "conflict", "lost_request", "lost_answer", "duplicate", "torn_read", "truncated", "delay")
#: Verbs that change the bucket: only these are delivered twice.
WRITES = frozenset({"create", "put", "delete", "begin_upload", "upload_part", "finish_upload", "abort_upload", "copy_part"})
VERBS = WRITES | {"get", "head", "list", "list_uploads", "server_time"}
#: A duplicate arrives after at most this many further requests.
LATEST_DUPLICATE = 20

#: Probability by kind, for all verbs that know the kind, or by verb and kind.
Rates = Mapping[str, float | Mapping[str, float]]


class ChaosStore:
    """``inner``, with faults. ``rates``: ``{"lost_answer": 0.05}``, or by verb ``{"create": {"lost_answer": 0.5}}``, or both.

    The same seed and the same sequence of calls give the same faults. ``injected`` counts them by kind, ``injected_by_verb``
    by (verb, kind). ``sleep`` is called for delays.
    """

    def __init__(
        self,
        inner: Store,
        seed: int,
        rates: Rates,
        *,
        clock_offset: float = 0.0,
        delay_seconds: float = 0.05,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.default_part_size = inner.default_part_size
        self.clock_offset = clock_offset
        self.injected: Counter[str] = Counter()
        self.injected_by_verb: Counter[tuple[str, str]] = Counter()
        self._rates = _by_verb(rates)
        self._delay_seconds = delay_seconds
        self._sleep = sleep
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._requests = 0
        self._duplicates: list[tuple[int, Callable[[], object]]] = []

    # ------------------------------------------------------------ faults

    def _hit(self, verb: str, kind: str) -> bool:
        rate = self._rates.get((verb, kind), 0.0)
        if not rate:
            return False
        with self._lock:
            hit = self._random.random() < rate
            if hit:
                self.injected[kind] += 1
                self.injected_by_verb[verb, kind] += 1
        return hit

    def _call(self, verb: str, key: str, action: Callable[[], T]) -> T:
        where = f"{self.url}/{key}"
        self._deliver_duplicates()
        if self._hit(verb, "delay"):
            with self._lock:
                seconds = self._random.random() * self._delay_seconds
            self._sleep(seconds)
        if self._hit(verb, "throttled"):
            raise Throttled("chaos: slow down", where=where)
        if self._hit(verb, "conflict"):
            raise Conflict("chaos: a conditional write of this key is in flight", where=where)
        if self._hit(verb, "lost_request"):
            raise Unavailable("chaos: the request was lost", where=where)
        lost = self._hit(verb, "lost_answer")
        if self._hit(verb, "duplicate"):
            with self._lock:
                self._duplicates.append((self._requests + self._random.randint(1, LATEST_DUPLICATE), action))
        try:
            result = action()
        except StoreError as error:
            if lost:  # so was the answer "no"
                raise Unavailable("chaos: the answer was lost", where=where) from error
            raise
        if lost:
            raise Unavailable("chaos: the answer was lost", where=where)
        return result

    def _deliver_duplicates(self) -> None:
        with self._lock:
            self._requests += 1
            due = [action for at, action in self._duplicates if at <= self._requests]
            self._duplicates = [(at, action) for at, action in self._duplicates if at > self._requests]
        for action in due:
            self._deliver(action)

    def deliver_all(self) -> None:
        """Let every duplicate that is still under way arrive now."""
        with self._lock:
            due, self._duplicates = self._duplicates, []
        for _, action in due:
            self._deliver(action)

    def _deliver(self, action: Callable[[], object]) -> None:
        try:
            action()
        except CloudshardError:  # nobody waits for this answer
            self.injected["duplicate_refused"] += 1

    def _shift(self, info: ObjectInfo) -> ObjectInfo:
        return msgspec.structs.replace(info, last_modified=info.last_modified + self.clock_offset) if self.clock_offset else info

    # ------------------------------------------------------------ verbs

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        return self._shift(self._call("create", key, lambda: self.inner.create(key, body, metadata=metadata)))

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        return self._shift(self._call("put", key, lambda: self.inner.put(key, body, metadata=metadata)))

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        body = self._call("get", key, lambda: self.inner.get(key, start=start, end=end, if_etag=if_etag))
        if body and self._hit("get", "torn_read"):
            raise Unavailable(f"chaos: the body of {len(body)} bytes broke off", where=f"{self.url}/{key}")
        if body and self._hit("get", "truncated"):
            with self._lock:
                return body[: self._random.randrange(len(body))]
        return body

    def head(self, key: str) -> ObjectInfo:
        return self._shift(self._call("head", key, lambda: self.inner.head(key)))

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        pages = self.inner.list(prefix, start_after=start_after, delimiter=delimiter)
        while (page := next(pages, None)) is not None:
            self._call("list", prefix, lambda: None)  # the fault, if any; the end of the iterator is no request
            if self.clock_offset:
                time_told = None if page.server_time is None else page.server_time + self.clock_offset
                page = ListPage(tuple(map(self._shift, page.objects)), page.prefixes, time_told)
            yield page

    def delete(self, keys: Sequence[str]) -> None:
        self._call("delete", keys[0] if keys else "", lambda: self.inner.delete(keys))

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        return self._call("begin_upload", key, lambda: self.inner.begin_upload(key, part_size=part_size))

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        # A duplicate arrives when the caller has long reused its buffer, and carries the bytes as they were sent
        body = bytes(data) if self._rates.get(("upload_part", "duplicate")) else data
        return self._call("upload_part", upload.key, lambda: self.inner.upload_part(upload, number, body))

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        return self._shift(self._call("finish_upload", upload.key, lambda: self.inner.finish_upload(upload, parts)))

    def abort_upload(self, upload: Upload) -> None:
        self._call("abort_upload", upload.key, lambda: self.inner.abort_upload(upload))

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        found = self._call("list_uploads", prefix, lambda: list(self.inner.list_uploads(prefix)))
        for pending in found:
            yield msgspec.structs.replace(pending, started=pending.started + self.clock_offset)

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        return self._call("copy_part", upload.key, lambda: self.inner.copy_part(upload, number, source_key, start, end))

    def server_time(self) -> float:
        return self._call("server_time", "", self.inner.server_time) + self.clock_offset

    def close(self) -> None:
        self.inner.close()


# ---------------------------------------------------------------- rates


def _applies(verb: str, kind: str) -> bool:
    if kind == "conflict":
        return verb == "create"
    if kind == "duplicate":
        return verb in WRITES
    if kind in ("torn_read", "truncated"):
        return verb == "get"
    return True


def _by_verb(rates: Rates) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for name, value in sorted(rates.items(), key=lambda item: isinstance(item[1], Mapping)):  # the special after the general
        if isinstance(value, Mapping):
            if name not in VERBS:
                raise RecipeError(f"chaos: no verb {name!r}", mend=f"Verbs: {', '.join(sorted(VERBS))}.")
            for kind, rate in value.items():
                if kind not in KINDS or not _applies(name, kind):
                    raise RecipeError(f"chaos: {name} knows no fault {kind!r}", mend=f"Faults: {', '.join(KINDS)}.")
                found[name, kind] = float(rate)
        elif name not in KINDS:
            raise RecipeError(f"chaos: no fault {name!r}", mend=f"Faults: {', '.join(KINDS)}.")
        else:
            found.update({(verb, name): float(value) for verb in VERBS if _applies(verb, name)})
    return found


def from_spec(inner: Store, spec: str) -> ChaosStore:
    """``seed=7,lost_answer=0.02,create.conflict=0.5,clock_offset=30,delay_seconds=0.1``: as in CLOUDSHARD_CHAOS.

    Processes that share a spec still see different faults: the process id is mixed into the seed when it is written ``seed=7+pid``.
    """
    rates: dict[str, float | dict[str, float]] = {}
    numbers = {"clock_offset": 0.0, "delay_seconds": 0.05}
    seed = 0
    for piece in filter(None, (part.strip() for part in spec.split(","))):
        name, _, text = piece.partition("=")
        try:
            if name == "seed":
                base, plus, _ = text.partition("+")
                seed = int(base) + (os.getpid() if plus else 0)
            elif name in numbers:
                numbers[name] = float(text)
            elif "." in name:
                verb, _, kind = name.partition(".")
                by_kind = rates.setdefault(verb, {})
                if isinstance(by_kind, dict):
                    by_kind[kind] = float(text)
            else:
                rates[name] = float(text)
        except ValueError as error:
            raise RecipeError(f"chaos: {piece!r} is not name=number", where="CLOUDSHARD_CHAOS") from error
    return ChaosStore(inner, seed, rates, clock_offset=numbers["clock_offset"], delay_seconds=numbers["delay_seconds"])
