"""The run's error budget: how many rows may be suppressed (quarantined, dropped or nulled after an error) before the run stops.

While the run goes on, a worker knows its own commits only: it stops when these alone break the limit on rows, or when they do so for
the fraction even if every other row of the stage were good. Before a stage is sealed, all commit records are counted.
"""

from __future__ import annotations

from cloudshard.errors import ErrorBudgetExceeded
from cloudshard.ledger.records import CommitRecord, RowCounts, RunSettings
from cloudshard.ledger.stage import StageLedger

#: Below this many rows a projection says little.
_MIN_ROWS = 1000
#: Adding up the weights of more items than this costs more than the projection is worth.
_MAX_ITEMS = 20_000


def suppressed(counts: RowCounts) -> int:
    """Rows that the error policies removed or nulled."""
    return counts.dropped + counts.quarantined + counts.nulled


class ErrorBudget:
    """Counts of one stage against the run's limits. ``limited``: the run has any."""

    def __init__(self, settings: RunSettings) -> None:
        self.rows = settings.error_budget_rows
        self.fraction = settings.error_budget_fraction
        self.limited = self.rows is not None or self.fraction is not None
        self._stage: StageLedger | None = None
        self._weight_total = 0
        self._suppressed = 0
        self._rows_in = 0
        self._weight = 0

    def begin(self, stage: StageLedger) -> None:
        """A stage begins (counting from nothing, unless it is the one before)."""
        if stage is self._stage:
            return
        self._stage = stage
        self._suppressed = self._rows_in = self._weight = 0
        self._weight_total = 0
        if self.fraction is not None and len(stage.items) <= _MAX_ITEMS:
            self._weight_total = sum(item.weight for item in stage.items)

    def add(self, record: CommitRecord, weight: int) -> ErrorBudgetExceeded | None:
        """Count a commit of this worker; the error to stop with, if the budget is certainly spent."""
        if not self.limited:
            return None
        self._suppressed += suppressed(record.counts)
        self._rows_in += record.counts.rows_in
        self._weight += weight
        if self.rows is not None and self._suppressed > self.rows:
            return self._exceeded(self._suppressed, None)
        if self.fraction is not None and self._rows_in >= _MIN_ROWS and self._weight and self._weight_total:
            projected = self._rows_in * max(1.0, self._weight_total / self._weight)
            if self._suppressed > self.fraction * projected:
                return self._exceeded(self._suppressed, self._rows_in)
        return None

    def check_all(self, stage: StageLedger) -> None:
        """Count all commit records of a complete stage (requests: one per block). Raises ErrorBudgetExceeded."""
        if not self.limited:
            return
        bad = rows = 0
        for record in stage.records():
            bad += suppressed(record.counts)
            rows += record.counts.rows_in
        if (self.rows is not None and bad > self.rows) or (self.fraction is not None and bad > self.fraction * rows):
            raise self._exceeded(bad, rows)

    def _exceeded(self, bad: int, rows: int | None) -> ErrorBudgetExceeded:
        limits = []
        if self.rows is not None:
            limits.append(f"{self.rows} rows")
        if self.fraction is not None:
            limits.append(f"{self.fraction:.2%} of the rows")
        of = "" if rows is None else f" of {rows}"
        where = "" if self._stage is None else f"stage {self._stage.number}"
        return ErrorBudgetExceeded(
            f"{bad}{of} rows were quarantined, dropped or nulled after an error; the run allows {' and '.join(limits)}",
            where=where,
            mend="Look at the quarantine, mend the step or the input, or raise the error budget.",
        )
