"""Garbage of a run: what no reader and no worker will ever want again, and how it is deleted.

Collected, and when it is safe:

- ``spill``: data between the stages, once *every* stage is sealed;
- ``losing data``, ``losing quarantine``: run data and quarantine files that their item's commit record does not name: their attempt
  can never win any more; but not while another attempt of the item holds a running lease;
- ``losing upload``: pending uploads of this run that no commit record names, likewise; once the run is complete, all of them.

Never touched: anything of an item that is not committed (its attempt may still win, however old), anything that a commit record
names (but the spills of a complete run), claims, commit records and other records, objects of the output, other runs' objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from cloudshard.ledger import keys
from cloudshard.ledger.ledger import run_tag
from cloudshard.ledger.records import CommitRecord
from cloudshard.observe.collected import write_collected
from cloudshard.observe.fetch import list_objects
from cloudshard.observe.load import OpenOutput, OpenRun, open_run, read_commits
from cloudshard.observe.snapshot import StageSnapshot, snapshot_stage
from cloudshard.store.port import Store, Upload

Base = Literal["run", "output"]
Kind = Literal["spill", "losing data", "losing quarantine", "losing upload"]

#: Keys per delete request: the bound of S3's DeleteObjects.
DELETE_KEYS = 1000
#: ``<item>-<nonce>…`` in names of run data and quarantine files.
_ATTEMPT = re.compile(r"(?:^|/)(\d{8})-[^/]+$")
#: ``part-<item>-<part>-<tag>`` in names of this run's output parts.
_PART = r"(?:^|/)part-(\d{{6,}})-\d{{3,}}-{tag}\.[^/]*$"


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to delete. ``base``: "run" or "output"; ``upload_id``: set for a pending upload; ``bytes``: 0 when not known."""

    kind: Kind
    base: Base
    key: str
    bytes: int = 0
    upload_id: str | None = None


class GarbagePlan(msgspec.Struct, kw_only=True):
    """What gc would delete. ``complete``: whether the run is; ``kept``: committed spills that are kept because it is not."""

    url: str
    run_id: str
    complete: bool
    garbage: list[Garbage]
    kept: int

    @property
    def bytes(self) -> int:
        """Bytes of the objects (pending uploads not included: stores do not tell)."""
        return sum(thing.bytes for thing in self.garbage)

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """kind -> (number, bytes)."""
        found: dict[str, tuple[int, int]] = {}
        for thing in self.garbage:
            number, size = found.get(thing.kind, (0, 0))
            found[thing.kind] = (number + 1, size + thing.bytes)
        return found


def plan_gc(store: Store, open_output: OpenOutput) -> GarbagePlan:
    """Find the garbage of the run at ``store``; deletes nothing. Raises RecipeError when there is no run."""
    run = open_run(store)
    snapshots = [snapshot_stage(store, spec.index) for spec in run.plan.stages]
    complete = all(snapshot.sealed for snapshot in snapshots)
    now = store.server_time()
    plan = GarbagePlan(url=run.url, run_id=run.record.run_id, complete=complete, garbage=[], kept=0)
    for snapshot in snapshots:
        found = _Committed(run, snapshot, list(read_commits(store, snapshot)), now)
        for info in list_objects(store, f"{keys.stage(snapshot.stage)}runs/"):
            if complete:
                plan.garbage.append(Garbage(kind="spill", base="run", key=info.key, bytes=info.size))
            elif found.names(info.key):
                plan.kept += 1
            elif found.has_lost(info.key):
                plan.garbage.append(Garbage(kind="losing data", base="run", key=info.key, bytes=info.size))
        plan.garbage.extend(
            Garbage(kind="losing quarantine", base="run", key=info.key, bytes=info.size)
            for info in list_objects(store, f"{keys.QUARANTINE}{snapshot.stage:02d}/")
            if found.has_lost(info.key)
        )
        for prefix in (f"{keys.stage(snapshot.stage)}runs/", f"{keys.QUARANTINE}{snapshot.stage:02d}/"):
            plan.garbage.extend(found.losing_uploads(store, "run", prefix, _ATTEMPT, complete))
        sink = run.plan.stages[snapshot.stage].sink
        if sink.url:
            ours = re.compile(_PART.format(tag=re.escape(run_tag(run.record))))
            plan.garbage.extend(found.losing_uploads(open_output(sink), "output", "part-", ours, complete))
    return plan


class _Committed:
    """What the commit records of one stage say about objects and uploads."""

    def __init__(self, run: OpenRun, snapshot: StageSnapshot, records: list[CommitRecord], now: float) -> None:
        self._winners = {record.item: record for record in records}
        self._named = {part.key for record in records for part in record.parts if part.base == "run"}
        self._named |= {record.quarantine_key for record in records if record.quarantine_key}
        self._uploads = {part.upload.upload_id for record in records for part in record.parts if part.upload is not None}
        self._snapshot = snapshot
        self._live_since = now - run.record.settings.lease_seconds

    def names(self, key: str) -> bool:
        """Whether a commit record names the object."""
        return key in self._named

    def _contested(self, item: int) -> bool:
        """Whether an attempt other than the winner may still be at work: it would lose, but it need not stumble."""
        winner = self._winners[item].epoch
        claims = self._snapshot.claims.get(item, {})
        return any(epoch != winner and info.last_modified >= self._live_since for epoch, info in claims.items())

    def has_lost(self, key: str) -> bool:
        """Whether the object belongs to a committed item and its commit record does not name it."""
        match = _ATTEMPT.search(key)
        if match is None or key in self._named:
            return False
        item = int(match[1])
        return item in self._winners and not self._contested(item)

    def losing_uploads(self, store: Store, base: Base, prefix: str, name: re.Pattern[str], complete: bool) -> Iterator[Garbage]:
        """Pending uploads under ``prefix`` that no commit record names. ``name`` tells this run's keys and, in group 1, their item."""
        for pending in store.list_uploads(prefix):
            match = name.search(pending.key)
            if match is None or pending.upload_id in self._uploads:
                continue
            item = int(match[1])
            if complete or (item in self._winners and not self._contested(item)):
                yield Garbage(kind="losing upload", base=base, key=pending.key, upload_id=pending.upload_id)


def collect(store: Store, open_output: OpenOutput, plan: GarbagePlan, *, by: str, progress: Callable[[int], None] | None = None) -> None:
    """Delete what ``plan`` names; safe to repeat and to run in several places. ``progress`` is told the number deleted so far."""
    if not plan.garbage:
        return
    uploads = [thing for thing in plan.garbage if thing.upload_id is not None]
    write_collected(
        store,
        by=by,
        spills=any(thing.kind == "spill" for thing in plan.garbage),
        objects=len(plan.garbage) - len(uploads),
        bytes=plan.bytes,
        uploads=len(uploads),
    )
    run = open_run(store)
    sink = run.plan.stages[-1].sink
    bases: dict[str, Store] = {"run": store}
    if any(thing.base == "output" for thing in plan.garbage):
        bases["output"] = open_output(sink)
    done = 0
    for base, where in bases.items():
        doomed = [thing.key for thing in plan.garbage if thing.base == base and thing.upload_id is None]
        for start in range(0, len(doomed), DELETE_KEYS):
            where.delete(doomed[start : start + DELETE_KEYS])
            done += len(doomed[start : start + DELETE_KEYS])
            if progress is not None:
                progress(done)
    for thing in uploads:
        bases[thing.base].abort_upload(Upload(thing.key, thing.upload_id or "", 0))
        done += 1
        if progress is not None:
            progress(done)
