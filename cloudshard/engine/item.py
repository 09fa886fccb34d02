"""One open work item: its counters, its rows in flight, and whether it has failed.

Batches may hold rows of several items, so several items may be open at once. Each counts its own rows and completes, or fails, alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cloudshard.engine.attempt import AttemptContext, ItemOutput
from cloudshard.engine.block import Origin
from cloudshard.engine.quarantine import Quarantine
from cloudshard.errors import CloudshardError, ErrorBudgetExceeded
from cloudshard.ledger.records import RowCounts, StepCounts, WorkItem


class Counter:
    """Rows of one item through one step; see :class:`~cloudshard.ledger.records.StepCounts`."""

    __slots__ = ("added", "dropped", "filtered", "nulled", "quarantined", "rows_in", "rows_out", "seconds", "step")

    def __init__(self, step: str) -> None:
        self.step = step
        self.rows_in = self.rows_out = self.added = self.filtered = self.dropped = self.quarantined = self.nulled = 0
        self.seconds = 0.0

    def passed(self, rows_in: int, rows_out: int) -> None:
        """``rows_in`` rows became ``rows_out`` by the step's own logic."""
        self.rows_in += rows_in
        self.rows_out += rows_out
        if rows_out > rows_in:
            self.added += rows_out - rows_in
        else:
            self.filtered += rows_in - rows_out

    def as_record(self) -> StepCounts:
        """The counts as the commit record holds them."""
        return StepCounts(
            step=self.step,
            rows_in=self.rows_in,
            rows_out=self.rows_out,
            added=self.added,
            filtered=self.filtered,
            dropped=self.dropped,
            quarantined=self.quarantined,
            nulled=self.nulled,
            seconds=round(self.seconds, 6),
        )


class OpenItem:
    """A work item between its first row and its result.

    ``counters``: one per step, then one for the sink. ``held``: rows of this item in each step's queue. ``memory``: what a step remembers
    of this item, by the step's index. ``error``: why it failed; from then on its rows are let fall wherever they are.
    """

    def __init__(
        self, work: WorkItem, attempt: AttemptContext, output: ItemOutput, quarantine: Quarantine, steps: Sequence[str], budget: int | None
    ) -> None:
        self.work = work
        self.attempt = attempt
        self.output = output
        self.quarantine = quarantine
        self.counters = [Counter(step) for step in steps]
        self.reader = Counter("reader")
        self.sink = Counter("sink")
        self.held = [0] * len(steps)
        self.memory: dict[int, Any] = {}
        self.reader_counts: dict[str, int] = {}
        self.error: CloudshardError | None = None
        self.read_all = False
        #: A limit is full: what is left of the input need not be read.
        self.enough = False
        #: Steps up to this one have given all they have.
        self.settled = 0
        self.began = time.perf_counter()
        self.cpu_began = time.process_time()
        self._budget = budget
        self._suppressed = 0

    @property
    def failed(self) -> bool:
        """Whether its rows are worthless."""
        return self.error is not None

    def fail(self, error: CloudshardError) -> None:
        """The first error counts."""
        if self.error is None:
            self.error = error

    def suppressed(self) -> None:
        """One more row was dropped, nulled or quarantined after an error."""
        self._suppressed += 1
        if self._budget is not None and self._suppressed > self._budget:
            self.fail(
                ErrorBudgetExceeded(
                    f"{self._suppressed} rows of one work item were quarantined, dropped or nulled after an error; the run allows {self._budget}",
                    where=f"item {self.work.index}",
                    mend="Look at the quarantine, mend the step or the input, or raise the error budget.",
                )
            )

    def set_aside(self, counter: Counter, row: Any, origin: Origin, position: int, error: BaseException | str, step: str) -> None:
        """Quarantine one row, and count it for ``counter``."""
        self.quarantine.add(row, origin, position, error, step)
        counter.quarantined += 1
        self.suppressed()

    def totals(self, rows_out: int) -> RowCounts:
        """Over reader, steps and sink."""
        all_counters = [self.reader, *self.counters, self.sink]
        return RowCounts(
            rows_in=self.reader.rows_in,
            rows_out=rows_out,
            added=sum(counter.added for counter in all_counters),
            filtered=sum(counter.filtered for counter in all_counters),
            dropped=sum(counter.dropped for counter in all_counters),
            quarantined=sum(counter.quarantined for counter in all_counters),
            nulled=sum(counter.nulled for counter in all_counters),
        )
