"""What to do about a work item, as a function of what was seen: no store, no clock, no randomness.

State of an item, from the names (and times) of its objects::

    committed   a commit record exists                                     final; beats everything
    dead        a dead record newer than the last revival                  until `retry`
    exhausted   more failures than the budget allows, no dead record yet   somebody should write it
    busy        the newest claim's lease is running
    free        none of these: claim at `next_epoch`

Failures and deaths up to the last revival's epoch no longer count. An epoch without a failure record whose holder neither
committed nor released *vanished*: infrastructure, unless it happens ``max_takeovers`` times to the same item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cloudshard.ledger.records import RunSettings


class State(StrEnum):
    """State of one work item."""

    COMMITTED = "committed"
    DEAD = "dead"
    EXHAUSTED = "exhausted"
    BUSY = "busy"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """One claim object as a LIST shows it (``lease_seconds``, ``released``: known after a HEAD only)."""

    renewed: float
    lease_seconds: float | None = None
    released: bool = False


@dataclass(slots=True)
class ItemSeen:
    """All that was seen of one item."""

    item: int
    committed: bool = False
    claims: dict[int, LeaseSeen] = field(default_factory=dict)
    failures: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    revived: int = 0

    @property
    def newest(self) -> int:
        """The highest epoch that left any trace (0: none)."""
        return max(max(self.claims, default=0), max(self.failures, default=0), max(self.dead, default=0), self.revived)

    @property
    def counted_failures(self) -> int:
        """Task failures that count against the retry budget."""
        return sum(epoch > self.revived for epoch in self.failures)


@dataclass(frozen=True, slots=True)
class Decision:
    """``state``; for FREE the ``next_epoch``; for BUSY the server time when the lease ends.

    ``vanished``: epochs whose holders are gone without a word; ``isolate``: run it alone and carefully.
    """

    state: State
    next_epoch: int = 0
    free_at: float = 0.0
    vanished: tuple[int, ...] = ()
    isolate: bool = False


def lease_end(lease: LeaseSeen, settings: RunSettings) -> float:
    """Server time after which others may take over."""
    if lease.released:
        return lease.renewed
    return lease.renewed + (lease.lease_seconds or settings.lease_seconds)


def decide(seen: ItemSeen, now: float, settings: RunSettings) -> Decision:
    """What to do about the item at server time ``now``."""
    if seen.committed:
        return Decision(State.COMMITTED)
    if any(epoch > seen.revived for epoch in seen.dead):
        return Decision(State.DEAD)
    if seen.counted_failures > settings.max_retries:
        return Decision(State.EXHAUSTED, next_epoch=max(seen.failures))
    newest = seen.newest
    lease = seen.claims.get(newest)
    over = lease is None or newest in seen.failures or lease.released
    if lease is not None and not over:
        end = lease_end(lease, settings)
        if now <= end:
            return Decision(State.BUSY, free_at=end)
    vanished = vanished_epochs(seen.claims, seen.failures, seen.revived)
    return Decision(State.FREE, next_epoch=newest + 1, vanished=vanished, isolate=len(vanished) >= settings.max_takeovers)


def vanished_epochs(claims: Mapping[int, LeaseSeen], failures: set[int], revived: int) -> tuple[int, ...]:
    """Epochs after the last revival that ended without failure record and without release."""
    return tuple(sorted(epoch for epoch, lease in claims.items() if epoch > revived and epoch not in failures and not lease.released))


def memory_class(oom_failures: int) -> int:
    """0: its share of the memory; 1: twice the share; 2: the machine alone. The same OOM never meets the same limit twice."""
    return min(oom_failures, 2)
