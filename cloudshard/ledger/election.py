"""The election: whoever creates run.json has planned the run; everybody else joins it, or is told what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from cloudshard.errors import AlreadyExists, NotFound, PlanMismatch, RecipeError
from cloudshard.ledger import keys
from cloudshard.ledger.items import encode_items
from cloudshard.ledger.records import RunRecord, RunSettings, WorkItem, decode, encode
from cloudshard.ledger.stage import Surroundings, WorkerIdentity
from cloudshard.plan.values import Plan
from cloudshard.store.port import Store


class Planned(Protocol):
    """What the planner hands over (:class:`cloudshard.plan.build.Planned`)."""

    @property
    def plan(self) -> Plan: ...
    @property
    def items(self) -> Sequence[WorkItem]: ...
    @property
    def pickles(self) -> Mapping[str, bytes]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, Any]: ...


def load_run(store: Store) -> RunRecord:
    """The run under this prefix. Raises RecipeError when there is none."""
    try:
        return decode(RunRecord, store.get(keys.RUN), where=f"{store.url}/{keys.RUN}")
    except NotFound:
        raise RecipeError("there is no run under this prefix", where=store.url, mend="Start one with `cloudshard run`.") from None


def find_run(store: Store) -> RunRecord | None:
    """The run under this prefix, or None."""
    try:
        return decode(RunRecord, store.get(keys.RUN), where=f"{store.url}/{keys.RUN}")
    except NotFound:
        return None


def elect(
    store: Store,
    planned: Planned,
    settings: RunSettings,
    identity: WorkerIdentity,
    *,
    replaces: Sequence[str] = (),
    packages: Mapping[str, str] | None = None,
    surroundings: Surroundings | None = None,
) -> tuple[RunRecord, bool]:
    """Create the run, or join it: (the run in force, whether this call created it).

    Everything that run.json refers to is written before it, under names made of the contents' fingerprint: a planner that dies
    on the way leaves nothing that matters. ``replaces``: output keys that the run deletes once its own output is complete.
    Raises PlanMismatch when another plan owns the prefix.
    """
    around = surroundings or Surroundings()
    existing = find_run(store)
    if existing is not None:
        return _join(existing, planned, store.url), False
    body, suffix = encode_items(planned.items)
    items_key = f"plan/items-{planned.fingerprint[:16]}{suffix}"
    nonce = around.nonce()
    store.put(items_key, body)
    for key, pickle in planned.pickles.items():
        store.put(key, pickle)
    replaces_key = f"plan/replaces-{nonce}.json" if replaces else None
    if replaces_key is not None:
        store.put(replaces_key, msgspec.json.encode(list(replaces)))
    run = RunRecord(
        run_id=f"{planned.plan.name}-{nonce[:8]}",
        pipeline=planned.plan.name,
        nonce=nonce,
        fingerprint=planned.fingerprint,
        fingerprint_fields=dict(planned.fields),
        plan=msgspec.Raw(msgspec.json.encode(planned.plan)),
        settings=settings,
        items_key=items_key,
        item_count=len(planned.items),
        replaces_key=replaces_key,
        created_by=identity.worker,
        packages=dict(packages or {}),
    )
    try:
        store.create(keys.RUN, encode(run))
    except AlreadyExists:
        return _join(load_run(store), planned, store.url), False
    return run, True


def _join(run: RunRecord, planned: Planned, url: str) -> RunRecord:
    if run.fingerprint == planned.fingerprint:
        return run
    from cloudshard.plan.difference import describe_differences

    differences = tuple(describe_differences(run.fingerprint_fields, dict(planned.fields)))
    shown = "; ".join(f"{field}: {old} -> {new}" for field, old, new in differences[:8]) or "the fingerprint"
    raise PlanMismatch(
        f"another plan owns this run's prefix; what differs: {shown}",
        where=url,
        mend="Undo the change to resume that run, or give the new one a prefix of its own with --run.",
        differences=differences,
    )
