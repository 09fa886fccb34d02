"""A claim: the right to try a work item at one epoch, and its lease.

The claim object's body never changes (the nonce in it tells one's own create from somebody else's); the lease is the
object's user metadata and its Last-Modified. Only the owner overwrites it: to renew, or to release.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloudshard.ledger import keys
from cloudshard.ledger.decide import LeaseSeen
from cloudshard.ledger.records import ClaimRecord, RunSettings, WorkItem, encode
from cloudshard.store.port import ObjectInfo

HELD = "held"
RELEASED = "released"


def boot_clock() -> float:
    """Seconds that go on while the process is stopped *and* while the machine sleeps, where the platform has such a clock."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


def lease_metadata(record: ClaimRecord, lease_seconds: float, state: str) -> dict[str, str]:
    """User metadata of a claim object."""
    return {"owner": record.worker, "nonce": record.nonce, "lease-seconds": f"{lease_seconds:g}", "state": state}


def lease_of(info: ObjectInfo) -> LeaseSeen:
    """The lease that a HEAD shows; what is missing or unreadable counts as held for the run's usual time."""
    metadata: Mapping[str, str] = info.metadata or {}
    try:
        seconds: float | None = float(metadata["lease-seconds"])
    except (KeyError, ValueError):
        seconds = None
    return LeaseSeen(info.last_modified, seconds, metadata.get("state") == RELEASED)


@dataclass(eq=False)
class Claim:
    """One claim of this worker. Times are by this worker's monotonic clock.

    ``must_stop_at``: without a renewal the attempt ends here, a margin before others may take over. ``renew_at``: renew from
    here on, if the attempt has moved. ``isolate``: several holders vanished, run it alone and carefully. ``memory_class``: 0
    usual, 1 bigger, 2 alone. ``poison``: (object, position) of rows to skip and quarantine. ``failures``: earlier ones that count.
    """

    record: ClaimRecord
    work: WorkItem
    settings: RunSettings
    lease_seconds: float
    must_stop_at: float = 0.0
    renew_at: float = 0.0
    isolate: bool = False
    memory_class: int = 0
    poison: frozenset[tuple[str, int]] = frozenset()
    failures: int = 0
    poison_reasons: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def item(self) -> int:
        """Index of the work item."""
        return self.record.item

    @property
    def epoch(self) -> int:
        """Epoch of the claim."""
        return self.record.epoch

    @property
    def nonce(self) -> str:
        """What tells this claim's objects from everybody else's."""
        return self.record.nonce

    @property
    def key(self) -> str:
        """Key of the claim object."""
        return keys.entry(self.record.stage, "claims", self.record.item, self.record.epoch)

    @property
    def body(self) -> bytes:
        """Body of the claim object: the same at every renewal."""
        return encode(self.record)

    def metadata(self, state: str = HELD) -> dict[str, str]:
        """User metadata of the claim object."""
        return lease_metadata(self.record, self.lease_seconds, state)

    def extend(self, asked_at: float) -> None:
        """The store has confirmed a write that was *asked for* at ``asked_at``: the lease cannot end before that plus its length."""
        margin = min(self.settings.lease_margin_seconds, self.lease_seconds / 4)
        self.must_stop_at = asked_at + self.lease_seconds - margin
        self.renew_at = asked_at + self.lease_seconds / 3

    def expired(self, monotonic: Callable[[], float]) -> bool:
        """Whether this worker must stop the attempt."""
        return monotonic() >= self.must_stop_at
