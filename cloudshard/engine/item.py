"""State of one open work item inside an engine: where its rows are, what became of them."""

from __future__ import annotations

import time

from cloudshard.engine.attempt import AttemptContext
from cloudshard.engine.quarantine import Quarantine
from cloudshard.errors import CloudshardError, ErrorBudgetExceeded
from cloudshard.ledger.records import RowCounts, ShardStats, StepCounts, WorkItem


class Tally:
    """Mutable counts of one step (see :class:`cloudshard.ledger.records.StepCounts`)."""

    __slots__ = ("added", "dropped", "filtered", "nulled", "quarantined", "rows_in", "rows_out", "seconds", "step")

    def __init__(self, step: str) -> None:
        self.step = step
        self.rows_in = self.rows_out = self.added = self.filtered = self.dropped = self.quarantined = self.nulled = 0
        self.seconds = 0.0

    def through(self, rows_in: int, rows_out: int, suppressed: int = 0) -> None:
        """``rows_in`` went in, ``rows_out`` came out, ``suppressed`` were removed by the error policy (counted elsewhere)."""
        self.rows_in += rows_in
        self.rows_out += rows_out
        difference = rows_in - suppressed - rows_out
        if difference > 0:
            self.filtered += difference
        else:
            self.added -= difference

    def frozen(self) -> StepCounts:
        """As the record keeps it."""
        return StepCounts(**{name: getattr(self, name) for name in self.__slots__})


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far (resident)."""
    import resource
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class ItemFailed(Exception):
    """Unwinds to whoever handed rows of this item down; the error is in its state."""


class ItemState:
    """One open item: tallies per step, quarantine, and the first error if it failed."""

    def __init__(
        self, item: WorkItem, attempt: AttemptContext, steps: tuple[str, ...], quarantine: Quarantine, *, budget: int | None = None
    ) -> None:
        """``budget``: rows that may be dropped, nulled or quarantined after an error; None: any number."""
        self.item = item
        self.attempt = attempt
        #: What the reader counts besides rows (see :class:`cloudshard.formats.port.ReadContext`).
        self.reader_counts: dict[str, int] = {}
        self.reader = Tally("read")
        self.tallies = tuple(Tally(step) for step in steps)
        self.writer = Tally("write")
        self.quarantine = quarantine
        self.error: CloudshardError | None = None
        self.limit_left: dict[str, int] = {}
        self.started = time.monotonic()
        self.cpu_started = time.process_time()
        self._suppressed = 0
        self._budget = budget

    def suppressed_one_more(self) -> None:
        """Count a suppressed row. Raises ItemFailed when this attempt alone has spent the run's error budget."""
        self._suppressed += 1
        if self._budget is not None and self._suppressed > self._budget:
            raise self.fail(
                ErrorBudgetExceeded(
                    f"more than {self._budget} rows of one work item were quarantined, dropped or nulled after an error",
                    where=f"item {self.item.index}",
                    mend="Look at the first of them, mend the step or the input, or raise the error budget.",
                )
            )

    def fail(self, error: CloudshardError) -> ItemFailed:
        """Remember the first error; what to raise."""
        if self.error is None:
            self.error = error
        return ItemFailed()

    def all_tallies(self) -> tuple[Tally, ...]:
        """Reader, steps, writer."""
        return (self.reader, *self.tallies, self.writer)

    def counts(self) -> RowCounts:
        """Totals: rows that entered the reader, rows that were written, and all that lies between."""
        tallies = self.all_tallies()
        return RowCounts(
            rows_in=self.reader.rows_in,
            rows_out=self.writer.rows_out,
            added=sum(tally.added for tally in tallies),
            filtered=sum(tally.filtered for tally in tallies),
            dropped=sum(tally.dropped for tally in tallies),
            quarantined=sum(tally.quarantined for tally in tallies),
            nulled=sum(tally.nulled for tally in tallies),
        )

    def steps(self) -> tuple[StepCounts, ...]:
        """Counts of reader, steps and writer, in order."""
        return tuple(tally.frozen() for tally in self.all_tallies())

    def stats(self, bytes_written: int) -> ShardStats:
        """Measurements of the attempt."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        return ShardStats(
            runtime_seconds=round(seconds, 6),
            rows_processed=self.reader.rows_in,
            throughput_rows_per_sec=round(self.reader.rows_in / seconds, 3),
            cpu_seconds=round(time.process_time() - self.cpu_started, 6),
            bytes_read=self.reader_counts.get("bytes_read", 0),
            bytes_written=bytes_written,
            peak_memory_bytes=peak_memory_bytes(),
        )
