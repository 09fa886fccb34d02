"""The ledger as tables: runs, stages, items, claims, attempts, commits, failures, workers, outputs, requests.

Only what the asked-for tables need is fetched, in parallel, and block summaries (all commit records of 256 items in one object)
are preferred to single records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from cloudshard.errors import RecipeError
from cloudshard.ledger import keys
from cloudshard.ledger.claims import lease_of
from cloudshard.ledger.decide import LeaseSeen
from cloudshard.ledger.records import ClaimRecord, CommitRecord, FailureRecord, SealRecord, WorkerRecord
from cloudshard.observe import tables
from cloudshard.observe.fetch import head_many
from cloudshard.observe.items import item_count, read_item_table
from cloudshard.observe.load import (
    OpenRun,
    OpenStore,
    decode_many,
    find_runs,
    read_commits,
    read_failures,
    read_seal,
    read_workers,
)
from cloudshard.observe.snapshot import StageSnapshot, snapshot_stage

if TYPE_CHECKING:
    import pyarrow as pa

    from cloudshard.store.port import ObjectInfo

Rows = Iterator[tuple[Any, ...]]
_COUNT_NAMES = ("rows_in", "rows_out", "added", "filtered", "dropped", "quarantined", "nulled")


def ledger_tables(urls: Sequence[str], *, open_store: OpenStore, only: Iterable[str] | None = None) -> dict[str, pa.Table]:
    """The views over the runs at ``urls`` (runs, or folders of runs) by name; ``only``: these, and fetch no more than they need.

    Raises RecipeError when a URL holds no run or a name in ``only`` is no view.
    """
    names = list(tables.COLUMNS) if only is None else list(only)
    for name in names:
        if name not in tables.COLUMNS:
            raise RecipeError(f"there is no view {name!r}", mend=f"Views: {', '.join(tables.COLUMNS)}.")
    loaders = [_Loader(run) for run in find_runs(urls, open_store)]
    return {name: tables.build(name, (row for loader in loaders for row in loader.rows(name))) for name in names}


class _Loader:
    """One run's ledger; each part of it is read once, when the first table asks for it."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._store = run.store
        self._url = run.url

    def rows(self, table: str) -> Rows:
        makers: dict[str, Callable[[], Rows]] = {
            "runs": self._runs,
            "stages": self._stages,
            "items": self._items,
            "claims": self._claims,
            "attempts": self._attempts,
            "commits": self._commits,
            "failures": self._failures,
            "workers": self._workers,
            "outputs": self._outputs,
            "requests": self._requests,
        }
        return makers[table]()

    # ------------------------------------------------------------ what is read

    @cached_property
    def snapshots(self) -> list[StageSnapshot]:
        return [snapshot_stage(self._store, stage.index) for stage in self._run.plan.stages]

    @cached_property
    def now(self) -> float:
        return self._store.server_time()

    @cached_property
    def seals(self) -> dict[int, tuple[float, SealRecord]]:
        found = {}
        for snapshot in self.snapshots:
            seal = read_seal(self._store, snapshot.stage) if snapshot.seal else None
            if seal is not None and snapshot.seal is not None:
                found[snapshot.stage] = (snapshot.seal.last_modified, seal)
        return found

    @cached_property
    def commit_records(self) -> list[CommitRecord]:
        return [record for snapshot in self.snapshots for record in read_commits(self._store, snapshot)]

    @cached_property
    def failure_records(self) -> list[FailureRecord]:
        found = [record for snapshot in self.snapshots for record in read_failures(self._store, snapshot)]
        return sorted(found, key=lambda record: (record.stage, record.item, record.epoch))

    @cached_property
    def claim_records(self) -> list[tuple[ObjectInfo, ClaimRecord]]:
        infos = {info.key: info for s in self.snapshots for epochs in s.claims.values() for info in epochs.values()}
        found = [(infos[key], record) for key, record in decode_many(self._store, ClaimRecord, infos)]
        return sorted(found, key=lambda pair: (pair[1].stage, pair[1].item, pair[1].epoch))

    @cached_property
    def leases(self) -> dict[tuple[int, int, int], LeaseSeen]:
        """The leases of claims that neither committed nor failed, by (stage, item, epoch): one HEAD each, and they are few."""
        winners = {(record.stage, record.item, record.epoch) for record in self.commit_records}
        wanted: dict[str, tuple[int, int, int]] = {}
        for snapshot in self.snapshots:
            for item, epochs in snapshot.claims.items():
                for epoch, info in epochs.items():
                    place = (snapshot.stage, item, epoch)
                    if place not in winners and epoch not in snapshot.failures.get(item, {}):
                        wanted[info.key] = place
        return {wanted[key]: lease_of(info) for key, info in head_many(self._store, wanted)}

    @cached_property
    def worker_records(self) -> list[tuple[ObjectInfo, WorkerRecord]]:
        return list(read_workers(self._store))

    # ------------------------------------------------------------ rows

    def _runs(self) -> Rows:
        record, plan = self._run.record, self._run.plan
        last = plan.stages[-1]
        seal = self.seals.get(last.index)
        yield (
            self._url,
            record.run_id,
            record.pipeline,
            record.fingerprint,
            record.created_by,
            self._store.head(keys.RUN).last_modified,
            seal[0] if seal else None,
            seal is not None,
            len(plan.stages),
            record.item_count,
            last.sink.url,
            last.sink.format,
            record.settings.lease_seconds,
            record.settings.max_retries,
            _json(plan.parameters),
            _json(record.packages),
        )

    def _stages(self) -> Rows:
        by_stage: dict[int, list[CommitRecord]] = {}
        if len(self.seals) < len(self.snapshots):
            for record in self.commit_records:
                by_stage.setdefault(record.stage, []).append(record)
        for spec, snapshot in zip(self._run.plan.stages, self.snapshots, strict=True):
            at, seal = self.seals.get(spec.index, (None, None))
            commits = by_stage.get(spec.index, [])
            counts = [getattr(seal.counts, name) if seal else sum(getattr(c.counts, name) for c in commits) for name in _COUNT_NAMES]
            yield (
                self._url,
                spec.index,
                [step.name for step in spec.steps],
                spec.source.format,
                spec.sink.format,
                spec.boundary,
                item_count(self._run, spec.index),
                snapshot.sealed,
                at,
                seal.worker if seal else None,
                *counts,
                seal.parts if seal else sum(len(c.parts) for c in commits),
                seal.bytes if seal else sum(part.bytes for c in commits for part in c.parts),
            )

    def _items(self) -> Rows:
        for snapshot in self.snapshots:
            table = read_item_table(self._run, snapshot.stage)
            if table is None:
                continue
            leases = {(item, epoch): lease for (stage, item, epoch), lease in self.leases.items() if stage == snapshot.stage}
            columns = [table[name].to_pylist() for name in ("index", "kind", "weight", "input", "start", "end", "unit", "inputs")]
            for index, kind, weight, url, start, end, unit, inputs in zip(*columns, strict=True):
                state = snapshot.state(index, now=self.now, settings=self._run.record.settings, leases=leases)
                epoch = snapshot.seen(index).newest
                failures = len(snapshot.failures.get(index, ()))
                yield (self._url, snapshot.stage, index, kind, state, epoch, failures, weight, url, start, end, unit, inputs)

    def _claims(self) -> Rows:
        for info, record in self.claim_records:
            yield (
                self._url,
                record.stage,
                record.item,
                record.epoch,
                record.worker,
                record.host,
                record.pid,
                record.nonce,
                record.started,
                info.last_modified,
            )

    def _attempts(self) -> Rows:
        commits = {(record.stage, record.item): record for record in self.commit_records}
        failures = {(record.stage, record.item, record.epoch): record for record in self.failure_records}
        for info, claim in self.claim_records:
            place = (claim.stage, claim.item, claim.epoch)
            commit, failure = commits.get(place[:2]), failures.get(place)
            won = commit is not None and commit.nonce == claim.nonce
            lease = self.leases.get(place)
            outcome = self._outcome(claim, commit, failure, lease)
            ended: float | None = info.last_modified
            if won and commit is not None:
                ended = commit.finished
            elif failure is not None:
                ended = failure.finished
            elif outcome == "running":
                ended = None
            yield (
                self._url,
                *place,
                outcome,
                claim.worker,
                claim.host,
                claim.pid,
                claim.nonce,
                claim.started,
                ended,
                None if ended is None else max(0.0, ended - claim.started),
                commit.counts.rows_in if won and commit else None,
                commit.counts.rows_out if won and commit else None,
                failure.error_type if failure else None,
                failure.message if failure else None,
            )

    def _outcome(self, claim: ClaimRecord, commit: CommitRecord | None, failure: FailureRecord | None, lease: LeaseSeen | None) -> str:
        """committed; failed; released; lost (an earlier epoch committed after all); running; vanished (its lease ran out)."""
        if commit is not None and commit.nonce == claim.nonce:
            return "committed"
        if failure is not None:
            return "failed"
        if lease is not None and lease.released:
            return "released"
        if commit is not None:
            return "lost" if commit.epoch < claim.epoch else "vanished"
        settings = self._run.record.settings
        end = 0.0 if lease is None else lease.renewed + (lease.lease_seconds or settings.lease_seconds)
        newest = self.snapshots[claim.stage].newest_epoch(claim.item) == claim.epoch
        return "running" if newest and self.now <= end else "vanished"

    def _commits(self) -> Rows:
        for record in self.commit_records:
            stats = record.stats
            yield (
                self._url,
                record.stage,
                record.item,
                record.epoch,
                record.nonce,
                record.worker,
                record.host,
                record.started,
                record.finished,
                max(0.0, record.finished - record.started),
                *(getattr(record.counts, name) for name in _COUNT_NAMES),
                len(record.parts),
                sum(part.bytes for part in record.parts),
                record.quarantine_key,
                stats.cpu_seconds,
                stats.bytes_read,
                stats.peak_memory_bytes,
                stats.input_tokens,
                stats.output_tokens,
                stats.gpu_util_mean,
            )

    def _failures(self) -> Rows:
        for record in self.failure_records:
            seen = self.snapshots[record.stage].seen(record.item)
            yield (
                self._url,
                record.stage,
                record.item,
                record.epoch,
                record.kind,
                record.error_type,
                record.message,
                record.step,
                record.where,
                record.traceback,
                record.worker,
                record.host,
                record.started,
                record.finished,
                record.epoch <= seen.revived,
                record.epoch in seen.dead,
            )

    def _workers(self) -> Rows:
        for info, record in self.worker_records:
            yield (
                self._url,
                record.worker,
                record.host,
                record.pid,
                record.processes,
                record.state,
                record.exit_code,
                record.started,
                info.last_modified,
                record.items_committed,
                record.items_failed,
                record.lost_races,
                _json(record.packages),
            )

    def _outputs(self) -> Rows:
        for record in self.commit_records:
            sink = self._run.plan.stages[record.stage].sink
            for number, part in enumerate(record.parts):
                base = (sink.url or "") if part.base == "output" else self._url
                url = f"{base.rstrip('/')}/{part.key}"
                final = part.base == "output"
                yield (self._url, record.stage, record.item, number, part.key, url, part.rows, part.bytes, part.checksum, final)
        for stage, (_, seal) in self.seals.items():
            empty = seal.empty_part
            if empty is not None:
                url = f"{(self._run.plan.stages[stage].sink.url or '').rstrip('/')}/{empty.key}"
                yield (self._url, stage, None, 0, empty.key, url, empty.rows, empty.bytes, empty.checksum, True)

    def _requests(self) -> Rows:
        for _, record in self.worker_records:
            for verb, count in sorted(record.requests.items()):
                yield (self._url, record.worker, verb, count)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
