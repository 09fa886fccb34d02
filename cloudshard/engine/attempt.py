"""What goes into an attempt and what comes out of it: values, and the protocol of where its output goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import BinaryIO, Literal, Protocol

from cloudshard.engine.block import Block
from cloudshard.errors import CloudshardError
from cloudshard.formats.port import BadRow
from cloudshard.ledger.records import PartRecord, RowCounts, ShardStats, StepCounts, WorkItem

#: (object, position): the identity of a row.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """One attempt at one item. ``nonce`` tells its objects from every other attempt's; ``run_tag`` one run's files from another's.

    ``skip``: rows that are not touched but quarantined, for the reason in ``skip_reasons`` if it is there. ``careful``: row by row.
    """

    stage: int
    item: int
    epoch: int
    nonce: str
    run_tag: str
    skip: frozenset[Place] = frozenset()
    careful: bool = False
    skip_reasons: Mapping[Place, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """A complete attempt. ``quarantine``: key of its quarantine file (written already), None when nothing was quarantined.

    ``reader``: what the reader counts besides rows (``bytes_read``, ``blank_lines``, ``row_groups_skipped``…).
    """

    item: int
    nonce: str
    parts: tuple[PartRecord, ...]
    counts: RowCounts
    steps: tuple[StepCounts, ...]
    quarantine: str | None
    schema: str | None
    stats: ShardStats
    reader: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """A failed attempt; its output is aborted."""

    item: int
    nonce: str
    error: CloudshardError
    kind: Literal["error"] = "error"


class ItemOutput(Protocol):
    """Where the rows of one attempt go. Exactly one of ``finish`` and ``abort`` ends it."""

    def write(self, block: Block, bad_row: BadRow | None) -> None:
        """Append rows, already of the sink's schema when it has one. ``bad_row`` takes those that the format cannot hold."""
        ...

    def keep_quarantine(self, file: BinaryIO, size: int) -> str | None:
        """Store the quarantine file (Parquet, read from its start); returns its key."""
        ...

    def finish(self) -> tuple[PartRecord, ...]:
        """Complete the parts. No rows, no parts."""
        ...

    def abort(self) -> None:
        """Forget everything; no error when there is nothing."""
        ...


class OutputFactory(Protocol):
    """Makes the output of each attempt."""

    def open(self, item: WorkItem, attempt: AttemptContext) -> ItemOutput:
        """Costs nothing until rows are written."""
        ...
