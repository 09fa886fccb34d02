"""Give dead items another chance: append-only, so that the history of what failed stays.

A ``revived`` record at the item's newest epoch makes all failures and deaths up to that epoch no longer count. Nothing is
written unless every asked-for item may be revived.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from cloudshard.errors import AlreadyExists, RecipeError
from cloudshard.ledger import keys
from cloudshard.ledger.claims import lease_of
from cloudshard.ledger.records import RevivedRecord, encode
from cloudshard.observe.fetch import head_many
from cloudshard.observe.load import OpenRun, open_run
from cloudshard.observe.snapshot import StageSnapshot, dead_items, snapshot_stage
from cloudshard.store.port import Store


class Revived(msgspec.Struct, frozen=True):
    """One item that was given another chance. ``failures`` up to ``epoch`` no longer count."""

    stage: int
    item: int
    epoch: int
    failures: int


class RetryReport(msgspec.Struct, kw_only=True):
    """What ``retry`` did. ``untouched``: asked-for items without any failure that counts, as ``STAGE/INDEX``."""

    url: str
    run_id: str
    revived: list[Revived]
    untouched: list[str]


def parse_item(text: str) -> tuple[int, int]:
    """``STAGE/INDEX`` as two numbers. Raises RecipeError."""
    stage, slash, index = text.partition("/")
    if not (slash and stage.isdecimal() and index.isdecimal()):
        raise RecipeError(f"{text!r} names no work item", mend="Write STAGE/INDEX, for example 0/17; `cloudshard status --all` shows them.")
    return int(stage), int(index)


def revive(store: Store, items: Sequence[tuple[int, int]] | None, *, by: str) -> RetryReport:
    """Revive ``items`` ((stage, index); None: every dead item).

    Raises RecipeError, before anything is written, when an item does not exist, is committed, or has a claim whose lease runs.
    """
    run = open_run(store)
    settings = run.record.settings
    now = store.server_time()
    revived: list[Revived] = []
    untouched: list[str] = []
    wanted = None if items is None else sorted(set(items))
    plan: list[tuple[StageSnapshot, list[int]]] = []
    for number in range(len(run.plan.stages)) if wanted is None else sorted({stage for stage, _ in wanted}):
        _check_stage(run, number)
        snapshot = snapshot_stage(store, number)
        if wanted is None:
            chosen = dead_items(snapshot, now=now, settings=settings)
        else:
            chosen = [index for stage, index in wanted if stage == number]
            _check_items(run, snapshot, chosen)
        failed = [
            item for item in chosen if snapshot.seen(item).counted_failures or snapshot.state(item, now=now, settings=settings) == "failed"
        ]
        untouched += [f"{number}/{item}" for item in chosen if item not in failed]
        plan.append((snapshot, failed))
    for snapshot, chosen in plan:
        _refuse_live(store, snapshot, chosen, now, settings.lease_seconds)
    for snapshot, chosen in plan:
        revived += [_revive(store, snapshot, item, by) for item in chosen]
    return RetryReport(url=run.url, run_id=run.record.run_id, revived=revived, untouched=untouched)


def _check_stage(run: OpenRun, number: int) -> None:
    if number >= len(run.plan.stages):
        last = len(run.plan.stages) - 1
        raise RecipeError(
            f"the run has no stage {number}", where=run.url, mend=f"Its stages are 0 to {last}." if last else "Its only stage is 0."
        )


def _check_items(run: OpenRun, snapshot: StageSnapshot, chosen: Iterable[int]) -> None:
    from cloudshard.observe.items import item_count

    count = item_count(run, snapshot.stage)
    for item in chosen:
        if count is None or item >= count:
            what = f"stage {snapshot.stage} has not begun" if count is None else f"stage {snapshot.stage} has no item {item}"
            raise RecipeError(what, where=run.url, mend="" if count is None else f"Its items are 0 to {count - 1}.")
        if item in snapshot.commits:
            raise RecipeError(f"item {snapshot.stage}/{item} is committed: there is nothing to retry", where=run.url)


def _refuse_live(store: Store, snapshot: StageSnapshot, chosen: list[int], now: float, usual: float) -> None:
    """A worker that is at it right now would have its failures forgotten or remembered by chance."""
    claims = {claim.info.key: claim for claim in snapshot.open_claims() if claim.item in set(chosen)}
    for key, info in head_many(store, claims):
        lease = lease_of(info)
        left = lease.renewed + (lease.lease_seconds or usual) - now
        if left >= 0 and not lease.released:
            owner = (info.metadata or {}).get("owner", "a worker")
            raise RecipeError(
                f"item {snapshot.stage}/{claims[key].item} is being worked on by {owner}; its lease runs for another {left:.0f} s",
                where=f"{store.url}/{key}",
                mend="Nothing was revived. Wait for that attempt to end, or stop the worker.",
            )


def _revive(store: Store, snapshot: StageSnapshot, item: int, by: str) -> Revived:
    seen = snapshot.seen(item)
    record = RevivedRecord(stage=snapshot.stage, item=item, epoch=seen.newest, nonce=secrets.token_hex(8), by=by)
    with contextlib.suppress(AlreadyExists):  # somebody else has revived it up to the same epoch
        store.create(keys.entry(snapshot.stage, "revived", item, seen.newest), encode(record))
    return Revived(snapshot.stage, item, seen.newest, seen.counted_failures)
