"""A stage as its key names tell it: who claimed, committed, failed, died and was revived, from LISTs alone.

No object is opened here, and what the names mean is decided by :func:`cloudshard.ledger.decide.decide`, the same function
that the workers ask. All ages are by the store's clock: the LIST answer's time minus the claim's ``Last-Modified``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cloudshard.ledger import keys
from cloudshard.ledger.decide import ItemSeen, LeaseSeen, State, decide
from cloudshard.ledger.records import RunSettings
from cloudshard.observe.fetch import list_objects
from cloudshard.store.port import ObjectInfo, Store

#: How people are told the state of an item. ``stale``: its holder has not renewed the lease; anybody may take over.
ItemState = Literal["pending", "running", "stale", "done", "failed"]

Epochs = dict[int, dict[int, ObjectInfo]]  # item -> epoch -> object
Leases = Mapping[tuple[int, int], LeaseSeen]  # (item, epoch) -> what a HEAD of the claim told


class OpenClaim(NamedTuple):
    """The newest claim of an item that is neither finished nor known to have failed at that epoch."""

    item: int
    epoch: int
    info: ObjectInfo


@dataclass(slots=True)
class StageSnapshot:
    """One stage's keys. ``blocks``: keys of the block summaries by block number; ``record``, ``seal``: stage.json, sealed.json."""

    stage: int
    claims: Epochs = field(default_factory=dict)
    failures: Epochs = field(default_factory=dict)
    dead: Epochs = field(default_factory=dict)
    revived: Epochs = field(default_factory=dict)
    commits: dict[int, ObjectInfo] = field(default_factory=dict)
    blocks: dict[int, str] = field(default_factory=dict)
    record: ObjectInfo | None = None
    seal: ObjectInfo | None = None

    @property
    def sealed(self) -> bool:
        """Whether the stage is finished for good."""
        return self.seal is not None

    @property
    def touched(self) -> set[int]:
        """Items that left any trace."""
        return {*self.claims, *self.commits, *self.failures, *self.dead, *self.revived}

    def seen(self, item: int, leases: Leases | None = None) -> ItemSeen:
        """The item as the protocol's decisions want it. ``leases``: what HEADs of claims told, where they were asked."""
        told = leases or {}
        claims = {epoch: told.get((item, epoch)) or LeaseSeen(info.last_modified) for epoch, info in self.claims.get(item, {}).items()}
        return ItemSeen(
            item,
            committed=item in self.commits,
            claims=claims,
            failures=set(self.failures.get(item, {})),
            dead=set(self.dead.get(item, {})),
            revived=max(self.revived.get(item, {}), default=0),
        )

    def newest_epoch(self, item: int) -> int:
        """The item's highest claimed epoch (0: none)."""
        return max(self.claims.get(item, {}), default=0)

    def state(self, item: int, *, now: float, settings: RunSettings, leases: Leases | None = None) -> ItemState:
        """The item's state at the store's time ``now``."""
        seen = self.seen(item, leases)
        decision = decide(seen, now, settings)
        if decision.state is State.COMMITTED:
            return "done"
        if decision.state in (State.DEAD, State.EXHAUSTED):
            return "failed"
        if decision.state is State.BUSY:
            return "running"
        return "stale" if seen.newest in decision.vanished else "pending"

    def open_claims(self) -> list[OpenClaim]:
        """The claims that may still be worked on, whatever the age of their leases."""
        found = []
        for item, epochs in self.claims.items():
            seen = self.seen(item)
            if not seen.committed and seen.newest in epochs and seen.newest not in seen.failures and seen.newest > seen.revived:
                found.append(OpenClaim(item, seen.newest, epochs[seen.newest]))
        return found

    def unsummarised_commits(self) -> list[str]:
        """Keys of the commit records that no block summary holds."""
        return [info.key for item, info in self.commits.items() if keys.block_of(item) not in self.blocks]


def snapshot_stage(store: Store, stage: int) -> StageSnapshot:
    """LIST everything of one stage but its data (runs/): one request per 1,000 records and kind.

    Commits are listed last, so that an item which finishes meanwhile is seen as done and never as vanished.
    """
    found = StageSnapshot(stage)
    for name, target in (("claims", found.claims), ("failures", found.failures), ("revived", found.revived), ("dead", found.dead)):
        for info in list_objects(store, keys.folder(stage, name)):
            item, epoch = keys.parse_entry(info.key)
            if epoch is not None:
                target.setdefault(item, {})[epoch] = info
    for info in list_objects(store, keys.stage(stage) + "blocks/"):
        found.blocks[block_number(info.key)] = info.key
    for info in list_objects(store, keys.folder(stage, "commits")):
        found.commits[keys.parse_entry(info.key).item] = info
    for info in list_objects(store, keys.stage(stage) + "s"):  # stage.json, sealed.json
        if info.key == keys.stage_record(stage):
            found.record = info
        elif info.key == keys.sealed(stage):
            found.seal = info
    return found


def block_number(key: str) -> int:
    """Number of the block of a summary's key (``…/blocks/<hash>-<block>.jsonl``)."""
    return int(key.rpartition("-")[2].partition(".")[0])


def count_states(
    snapshot: StageSnapshot, item_count: int, *, now: float, settings: RunSettings, leases: Leases | None = None
) -> Counter[ItemState]:
    """How many items are in each state; items that nobody touched are pending."""
    undone = snapshot.touched - snapshot.commits.keys()
    counts: Counter[ItemState] = Counter(snapshot.state(item, now=now, settings=settings, leases=leases) for item in undone)
    counts["done"] += len(snapshot.commits)
    counts["pending"] += max(0, item_count - len(undone) - len(snapshot.commits))
    return counts


def dead_items(snapshot: StageSnapshot, *, now: float, settings: RunSettings, among: Collection[int] | None = None) -> list[int]:
    """Items that are terminally failed, in order; ``among`` narrows the search."""
    candidates = snapshot.dead.keys() | snapshot.failures.keys()
    if among is not None:
        candidates &= set(among)
    return sorted(item for item in candidates if snapshot.state(item, now=now, settings=settings) == "failed")
