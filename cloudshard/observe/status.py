"""What a run is doing: items by state, rows and bytes so far, workers, live claims, failures by cause, ETA.

Read from whole-prefix LISTs; objects are opened for detail only, and only so many (the ``…_OPENED`` bounds). All ages are
by the store's clock: no wall clock of this machine or of a worker is compared with anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from cloudshard.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE
from cloudshard.ledger import keys
from cloudshard.ledger.claims import lease_of
from cloudshard.ledger.decide import LeaseSeen
from cloudshard.observe.failures import FailureGroup, group_failures
from cloudshard.observe.fetch import head_many
from cloudshard.observe.items import item_count, read_weights
from cloudshard.observe.load import OpenRun, open_run, read_commits, read_failures, read_seal, read_workers
from cloudshard.observe.progress import Progress, estimate
from cloudshard.observe.snapshot import ItemState, Leases, StageSnapshot, count_states, dead_items, snapshot_stage

if TYPE_CHECKING:
    from cloudshard.store.port import ObjectInfo, Store

SCHEMA_VERSION = 1
#: How many single commit records, claims and failures one status opens at most (block summaries are always read).
COMMITS_OPENED = 2000
CLAIMS_OPENED = 256
FAILURES_OPENED = 500

RunState = Literal["complete", "failed", "running", "idle"]


class ItemCounts(msgspec.Struct, kw_only=True):
    """Work items by state. ``stale``: a lease ran out, anybody may take over; ``failed``: the retry budget is spent."""

    pending: int = 0
    running: int = 0
    stale: int = 0
    done: int = 0
    failed: int = 0


class StageStatus(msgspec.Struct, kw_only=True):
    """One stage; rows and bytes are those of committed items.

    ``item_count`` is None until the stage has begun. ``rows_exact``: every commit record was counted; otherwise
    ``commits_counted`` of ``items.done`` were. ``input_bytes`` are the items' estimated weights.
    """

    stage: int
    steps: list[str]
    boundary: str | None
    started: bool
    sealed: bool
    item_count: int | None
    items: ItemCounts
    commits_counted: int = 0
    rows_exact: bool = True
    rows_in: int = 0
    rows_out: int = 0
    added: int = 0
    filtered: int = 0
    dropped: int = 0
    quarantined: int = 0
    nulled: int = 0
    parts: int = 0
    bytes_written: int = 0
    input_bytes: int | None = None
    input_bytes_done: int | None = None


class WorkerStatus(msgspec.Struct, kw_only=True):
    """A worker that took part. ``seen_seconds_ago``: since the store last heard from it (its record, or a lease it renewed)."""

    worker: str
    host: str
    pid: int
    processes: int
    state: str
    seen_seconds_ago: float
    items_held: int
    items_committed: int
    items_failed: int


class ClaimStatus(msgspec.Struct, kw_only=True):
    """The newest claim of an unfinished item. ``lease_age_seconds``: since its last renewal; ``worker`` is empty when not looked up."""

    stage: int
    item: int
    epoch: int
    worker: str
    state: Literal["held", "stale", "released"]
    lease_age_seconds: float
    lease_seconds: float


class ItemStatus(msgspec.Struct, kw_only=True):
    """One item. ``epoch``: the newest (0: never claimed); ``failures``: failed attempts, revived ones included."""

    stage: int
    item: int
    state: ItemState
    epoch: int
    failures: int


class RunStatus(msgspec.Struct, kw_only=True):
    """The whole run at ``server_time`` (seconds since the epoch by the store's clock).

    ``age_seconds``: since the run was planned; ``took_seconds``: from then to the last seal (None while it is not complete).
    ``state``: complete; running (a lease is live); failed (dead items and nobody at work); idle (nobody at work).
    ``bytes_per_second``, ``eta_seconds``: of the stage at work, by input bytes; None when they cannot be told.
    ``items``: only when asked for.
    """

    version: int = SCHEMA_VERSION
    url: str
    run_id: str
    pipeline: str
    state: RunState
    server_time: float
    age_seconds: float
    took_seconds: float | None
    bytes_per_second: float | None
    eta_seconds: float | None
    stages: list[StageStatus]
    workers: list[WorkerStatus]
    claims: list[ClaimStatus]
    failures: list[FailureGroup]
    items: list[ItemStatus] | None = None

    @property
    def exit_code(self) -> int:
        """0 complete; 2 when items are dead; else 1."""
        if self.state == "complete":
            return EXIT_DONE
        return EXIT_FAILED if any(stage.items.failed for stage in self.stages) else EXIT_INCOMPLETE


def read_status(store: Store, *, every_item: bool = False) -> RunStatus:
    """The run at ``store``. ``every_item``: fill ``items``. Raises RecipeError when there is no run."""
    run = open_run(store)
    created = store.head(keys.RUN).last_modified
    snapshots = [snapshot_stage(store, stage.index) for stage in run.plan.stages]
    now = store.server_time()
    settings = run.record.settings
    stages: list[StageStatus] = []
    claims: list[ClaimStatus] = []
    failures: list[FailureGroup] = []
    items: list[ItemStatus] = []
    progress: Progress | None = None
    for snapshot in snapshots:
        heads = _head_open_claims(store, snapshot)
        leases = {place: lease_of(info) for place, info in heads.items()}
        owners = {place: (info.metadata or {}).get("owner", "") for place, info in heads.items()}
        claims.extend(_claims(run, snapshot, leases, owners, now))
        count = item_count(run, snapshot.stage)
        status = _stage(run, snapshot, count, now, leases)
        stages.append(status)
        if snapshot.failures:
            dead = dead_items(snapshot, now=now, settings=settings)
            failures.extend(group_failures(snapshot.stage, read_failures(store, snapshot, limit=FAILURES_OPENED), dead))
        if status.started and not status.sealed:
            progress = _progress(run, snapshot, status, now)
        if every_item:
            items.extend(_item(snapshot, item, now, run, leases) for item in range(count or 0))
    complete = bool(stages) and all(stage.sealed for stage in stages)
    held = any(claim.state == "held" for claim in claims)
    return RunStatus(
        url=store.url,
        run_id=run.record.run_id,
        pipeline=run.record.pipeline,
        state="complete" if complete else "running" if held else "failed" if any(stage.items.failed for stage in stages) else "idle",
        server_time=now,
        age_seconds=round(max(0.0, now - created), 3),
        took_seconds=round(max(0.0, snapshots[-1].seal.last_modified - created), 3) if complete and snapshots[-1].seal else None,
        bytes_per_second=progress.bytes_per_second if progress and held else None,
        eta_seconds=progress.eta_seconds if progress and held else None,
        stages=stages,
        workers=_workers(store, now, claims),
        claims=claims,
        failures=failures,
        items=items if every_item else None,
    )


def _head_open_claims(store: Store, snapshot: StageSnapshot) -> dict[tuple[int, int], ObjectInfo]:
    """Heads (with the lease) of the unfinished items' newest claims: the latest renewed, at most CLAIMS_OPENED."""
    newest = sorted(snapshot.open_claims(), key=lambda claim: claim.info.last_modified, reverse=True)[:CLAIMS_OPENED]
    by_key = {claim.info.key: (claim.item, claim.epoch) for claim in newest}
    return {by_key[key]: info for key, info in head_many(store, by_key)}


def _claims(
    run: OpenRun, snapshot: StageSnapshot, leases: dict[tuple[int, int], LeaseSeen], owners: dict[tuple[int, int], str], now: float
) -> list[ClaimStatus]:
    usual = run.record.settings.lease_seconds
    found = []
    for claim in snapshot.open_claims():
        place = (claim.item, claim.epoch)
        lease = leases.get(place, LeaseSeen(claim.info.last_modified))
        seconds = lease.lease_seconds or usual
        age = max(0.0, now - lease.renewed)
        found.append(
            ClaimStatus(
                stage=snapshot.stage,
                item=claim.item,
                epoch=claim.epoch,
                worker=owners.get(place, ""),
                state="released" if lease.released else "held" if age <= seconds else "stale",
                lease_age_seconds=round(age, 3),
                lease_seconds=seconds,
            )
        )
    return sorted(found, key=lambda claim: claim.item)


def _stage(run: OpenRun, snapshot: StageSnapshot, count: int | None, now: float, leases: Leases) -> StageStatus:
    spec = run.plan.stages[snapshot.stage]
    states = count_states(snapshot, count or 0, now=now, settings=run.record.settings, leases=leases)
    status = StageStatus(
        stage=snapshot.stage,
        steps=[step.name for step in spec.steps],
        boundary=spec.boundary,
        started=bool(snapshot.record or snapshot.touched or (snapshot.stage == 0 and count)),
        sealed=snapshot.sealed,
        item_count=count,
        items=ItemCounts(**{state: states[state] for state in ("pending", "running", "stale", "done", "failed")}),
    )
    seal = read_seal(run.store, snapshot.stage) if snapshot.sealed else None
    if seal is not None:
        status.commits_counted = seal.item_count
        status.parts, status.bytes_written = seal.parts, seal.bytes
        for name in ("rows_in", "rows_out", "added", "filtered", "dropped", "quarantined", "nulled"):
            setattr(status, name, getattr(seal.counts, name))
        return status
    for commit in read_commits(run.store, snapshot, limit=COMMITS_OPENED):
        status.commits_counted += 1
        status.parts += len(commit.parts)
        status.bytes_written += sum(part.bytes for part in commit.parts)
        for name in ("rows_in", "rows_out", "added", "filtered", "dropped", "quarantined", "nulled"):
            setattr(status, name, getattr(status, name) + getattr(commit.counts, name))
    status.rows_exact = status.commits_counted == len(snapshot.commits)
    return status


def _progress(run: OpenRun, snapshot: StageSnapshot, status: StageStatus, now: float) -> Progress | None:
    weights = read_weights(run, snapshot.stage)
    if not weights:
        return None
    committed = {item: info.last_modified for item, info in snapshot.commits.items()}
    first_claims = [info.last_modified for epochs in snapshot.claims.values() for info in epochs.values()]
    progress = estimate(weights, committed, began=min(first_claims, default=now), now=now)
    status.input_bytes, status.input_bytes_done = progress.total, progress.done
    return progress


def _item(snapshot: StageSnapshot, item: int, now: float, run: OpenRun, leases: Leases) -> ItemStatus:
    return ItemStatus(
        stage=snapshot.stage,
        item=item,
        state=snapshot.state(item, now=now, settings=run.record.settings, leases=leases),
        epoch=snapshot.seen(item).newest,
        failures=len(snapshot.failures.get(item, {})),
    )


def _workers(store: Store, now: float, claims: list[ClaimStatus]) -> list[WorkerStatus]:
    found = []
    for info, record in read_workers(store):
        mine = [claim for claim in claims if claim.worker == record.worker]
        age = min([now - info.last_modified, *(claim.lease_age_seconds for claim in mine)])
        found.append(
            WorkerStatus(
                worker=record.worker,
                host=record.host,
                pid=record.pid,
                processes=record.processes,
                state=record.state,
                seen_seconds_ago=round(max(0.0, age), 3),
                items_held=sum(claim.state == "held" for claim in mine),
                items_committed=record.items_committed,
                items_failed=record.items_failed,
            )
        )
    return sorted(found, key=lambda worker: worker.worker)
