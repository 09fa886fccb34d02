"""Runs and their records, opened: run.json, stage.json, commit and failure records, worker records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cloudshard.errors import NotFound, RecipeError
from cloudshard.ledger import keys
from cloudshard.ledger.election import load_run
from cloudshard.ledger.records import CommitRecord, FailureRecord, RunRecord, SealRecord, StageRecord, WorkerRecord, decode
from cloudshard.observe.fetch import get_many, list_folders, list_objects, parallel
from cloudshard.observe.snapshot import StageSnapshot
from cloudshard.plan.values import Plan, SinkSpec
from cloudshard.store.port import ObjectInfo, Store

R = TypeVar("R", bound=msgspec.Struct)

#: Opens the store at a URL: :func:`cloudshard.store.registry.open_store` in real life, a dictionary in tests.
OpenStore = Callable[[str], Store]
#: Opens the store at a sink's URL with its options.
OpenOutput = Callable[[SinkSpec], Store]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run whose run.json was read."""

    store: Store
    record: RunRecord
    plan: Plan

    @property
    def url(self) -> str:
        """The run's URL."""
        return self.store.url


def open_run(store: Store) -> OpenRun:
    """Read run.json. Raises RecipeError when the prefix holds no run."""
    record = load_run(store)
    return OpenRun(store, record, msgspec.json.decode(bytes(record.plan), type=Plan))


def find_runs(urls: Iterable[str], open_store: OpenStore) -> list[OpenRun]:
    """The runs at ``urls``; a URL that is no run itself stands for the runs directly under it.

    Raises RecipeError when a URL holds neither.
    """
    found: list[OpenRun] = []
    for url in urls:
        store = open_store(url)
        try:
            found.append(open_run(store))
        except RecipeError:
            under = _runs_under(store, url, open_store)
            if not under:
                raise
            found.extend(under)
    return found


def _runs_under(store: Store, url: str, open_store: OpenStore) -> list[OpenRun]:
    names = [name.rstrip("/") for name in list_folders(store)]

    def holds_run(name: str) -> bool:
        return any(info.key == f"{name}/{keys.RUN}" for page in store.list(f"{name}/{keys.RUN}") for info in page.objects)

    held = list(parallel(holds_run, names))
    return [open_run(open_store(f"{url.rstrip('/')}/{name}")) for name, yes in zip(names, held, strict=True) if yes]


def decode_many(store: Store, kind: type[R], keys_: Iterable[str]) -> Iterator[tuple[str, R]]:
    """(key, record) for every key that is still there."""
    for key, body in get_many(store, keys_):
        yield key, decode(kind, body, where=f"{store.url}/{key}")


def commit_lines(store: Store, key: str, body: bytes) -> Iterator[CommitRecord]:
    """The commit records of a block summary (JSON lines)."""
    for number, line in enumerate(body.splitlines(), 1):
        if line.strip():
            yield decode(CommitRecord, line, where=f"{store.url}/{key}, line {number}")


def read_commits(store: Store, snapshot: StageSnapshot, *, limit: int | None = None) -> Iterator[CommitRecord]:
    """The stage's commit records: from block summaries where there are any, else one by one.

    ``limit``: open at most that many single records (summaries are always read whole).
    """
    for key, body in get_many(store, (snapshot.blocks[block] for block in sorted(snapshot.blocks))):
        yield from commit_lines(store, key, body)
    single = sorted(snapshot.unsummarised_commits())
    for _, record in decode_many(store, CommitRecord, single if limit is None else single[:limit]):
        yield record


def read_failures(store: Store, snapshot: StageSnapshot, *, limit: int | None = None) -> Iterator[FailureRecord]:
    """The stage's failure records, newest first when ``limit`` cuts them."""
    infos = [info for epochs in snapshot.failures.values() for info in epochs.values()]
    infos.sort(key=lambda info: info.last_modified, reverse=True)
    for _, record in decode_many(store, FailureRecord, [info.key for info in infos[:limit]]):
        yield record


def read_stage(store: Store, stage: int) -> StageRecord | None:
    """stage.json, or None when the stage has not begun."""
    return _optional(store, keys.stage_record(stage), StageRecord)


def read_seal(store: Store, stage: int) -> SealRecord | None:
    """sealed.json, or None."""
    return _optional(store, keys.sealed(stage), SealRecord)


def read_workers(store: Store) -> Iterator[tuple[ObjectInfo, WorkerRecord]]:
    """Every worker's record with its object (whose ``last_modified`` is when the store last heard from it)."""
    infos = {info.key: info for info in list_objects(store, keys.WORKERS)}
    for key, record in decode_many(store, WorkerRecord, infos):
        yield infos[key], record


def _optional(store: Store, key: str, kind: type[R]) -> R | None:
    try:
        return decode(kind, store.get(key), where=f"{store.url}/{key}")
    except NotFound:
        return None
