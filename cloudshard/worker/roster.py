"""The worker's own record in the bucket: written at the start, once a minute, and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

from cloudshard.errors import StoreError
from cloudshard.ledger import keys
from cloudshard.ledger.ledger import Ledger
from cloudshard.ledger.records import WorkerRecord, encode
from cloudshard.store.registry import opened_stores
from cloudshard.worker.desk import Totals
from cloudshard.worker.resources import packages

EVERY_SECONDS = 60.0

State = Literal["running", "draining", "ended"]


class Roster:
    """Makes and writes the record. ``child_requests``: store requests of the children so far."""

    def __init__(self, ledger: Ledger, processes: int, totals: Totals, child_requests: Callable[[], Mapping[str, int]]) -> None:
        self._ledger = ledger
        self._processes = processes
        self._totals = totals
        self._child_requests = child_requests
        self._started: float | None = None
        self._before = own_requests()
        self.next_at = 0.0

    def record(self, state: State, exit_code: int | None = None) -> bytes:
        """The record as of now. Makes no request unless nothing has been heard from the store yet."""
        now = self._ledger.store.now()
        if self._started is None:
            self._started = now
        identity, totals = self._ledger.identity, self._totals
        record = WorkerRecord(
            worker=identity.worker,
            host=identity.host,
            pid=identity.pid,
            processes=self._processes,
            started=self._started,
            seen=now,
            state=state,
            exit_code=exit_code,
            items_committed=totals.committed,
            items_failed=totals.failed,
            lost_races=totals.lost,
            requests=self.requests(),
            packages=packages(),
        )
        return encode(record)

    def requests(self) -> dict[str, int]:
        """Store requests of this worker, supervisor and children together."""
        total = own_requests()
        for verb, count in self._before.items():
            total[verb] = total.get(verb, 0) - count
        for verb, count in self._child_requests().items():
            total[verb] = total.get(verb, 0) + count
        return {verb: count for verb, count in sorted(total.items()) if count}

    def write(self, state: State, exit_code: int | None = None) -> None:
        """Put the record; one request. Call it from a thread."""
        self.next_at = time.monotonic() + EVERY_SECONDS
        self._ledger.store.put(keys.worker(self._ledger.identity.worker), self.record(state, exit_code))

    def try_write(self, state: State, exit_code: int | None = None) -> str | None:
        """As :meth:`write`, but a store that fails is no reason to stop: says what went wrong instead."""
        try:
            self.write(state, exit_code)
        except StoreError as error:
            return f"the worker's record could not be written: {error}"
        return None


def own_requests() -> dict[str, int]:
    """Requests of all stores that this process has opened, by verb."""
    total: dict[str, int] = {}
    for store in opened_stores():
        for verb, count in store.requests.items():
            total[verb] = total.get(verb, 0) + count
    return total
