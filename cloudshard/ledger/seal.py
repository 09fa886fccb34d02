"""Sealing a stage: prove that nothing is missing, finish what is left over, say so once.

Any worker that knows all items to be committed may do it, and several at once may: each step is idempotent.

1. Read all commit records; check that each item has exactly its own, that every step and every item conserve rows, and that
   the stage read as many rows as the stage before wrote.
2. Publish parts whose winner died between commit and publication (with mode "overwrite": all parts, only now).
3. Last stage: write the output's manifest ``_cloudshard/<run tag>.json`` create-only — the one switch from old data to new —
   and then delete what the plan said will be replaced. That list was fixed when the run was planned, so that a sealer who
   froze here and wakes up years later cannot delete a newer run's files.
4. Create ``sealed.json``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cloudshard.errors import AlreadyExists, IntegrityError
from cloudshard.ledger import keys
from cloudshard.ledger.publish import publish
from cloudshard.ledger.records import CommitRecord, PartRecord, RowCounts, SealRecord, StepCounts, decode, encode
from cloudshard.ledger.stage import StageLedger
from cloudshard.store.port import Store

#: Folder of the manifests of an output; hidden from readers that follow the underscore convention.
MANIFESTS = "_cloudshard/"


class ManifestPart(msgspec.Struct, frozen=True):
    """One part of a finished output."""

    key: str
    rows: int
    bytes: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``<output>/_cloudshard/<run tag>.json``: the parts of one run, and the objects that it replaced (earlier manifests too).

    Of several manifests in one folder, one that another's ``replaces`` names no longer counts.
    """

    version: int = 1
    run_id: str
    run_tag: str
    parts: tuple[ManifestPart, ...]
    replaces: tuple[str, ...] = ()


def manifest_key(run_tag: str) -> str:
    """Key of a run's manifest under its output."""
    return f"{MANIFESTS}{run_tag}.json"


@dataclass
class Totals:
    """Sums over the commit records of a stage."""

    counts: RowCounts = field(default_factory=RowCounts)
    steps: dict[str, StepCounts] = field(default_factory=dict)
    parts: list[PartRecord] = field(default_factory=list)
    items: int = 0

    def add(self, record: CommitRecord, where: str) -> None:
        """Take in one record after checking that it conserves rows."""
        check_conserved(record, where)
        self.counts = add_counts(self.counts, record.counts)
        for step in record.steps:
            known = self.steps.get(step.step)
            self.steps[step.step] = step if known is None else add_counts(known, step)
        self.parts += record.parts
        self.items += 1


def add_counts(a: Any, b: Any) -> Any:
    """Field-wise sum of two RowCounts or StepCounts."""
    values = msgspec.structs.asdict(a)
    for name, value in msgspec.structs.asdict(b).items():
        if not isinstance(value, str):
            values[name] += value
    return type(a)(**values)


def balance(counts: RowCounts | StepCounts) -> int:
    """Rows that went in but did not come out anywhere: 0 when rows are conserved."""
    return counts.rows_in + counts.added - counts.rows_out - counts.filtered - counts.dropped - counts.quarantined


def check_conserved(record: CommitRecord, where: str) -> None:
    """Rows in = out + filtered + dropped + quarantined, for the attempt, for each step, from step to step, and for the parts."""
    problems = []
    if balance(record.counts):
        problems.append(f"{record.counts.rows_in} rows in, {balance(record.counts)} unaccounted for")
    problems += [f"step {step.step}: {balance(step)} rows unaccounted for" for step in record.steps if balance(step)]
    problems += [
        f"step {before.step} handed on {before.rows_out} rows, step {after.step} got {after.rows_in}"
        for before, after in zip(record.steps, record.steps[1:], strict=False)
        if before.rows_out != after.rows_in
    ]
    written = sum(part.rows for part in record.parts)
    if written != record.counts.rows_out:
        problems.append(f"{record.counts.rows_out} rows out, the parts hold {written}")
    if problems:
        raise IntegrityError(f"rows are not conserved in item {record.item}: {'; '.join(problems)}", where=where)


def seal_stage(
    ledger: StageLedger,
    *,
    run_id: str,
    run_tag: str,
    rows_in: int | None,
    final: bool,
    output: Store | None,
    replaces: Sequence[str],
    empty_part: Callable[[], tuple[str, bytes, str] | None],
    nonce: str,
    worker: str,
    now: float,
    parallel_map: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]],
) -> SealRecord:
    """Do what this module's docstring says; returns the seal in force (ours or another worker's).

    ``rows_in``: rows that the stage before wrote (None: first stage). ``empty_part``: (file name, bytes, checksum) of a typed
    part without rows, written when the whole run has none, so that readers find the schema.
    """
    store, stage = ledger.store, ledger.number
    totals = Totals()
    for record in ledger.records():
        totals.add(record, f"{store.url}/{keys.commit(stage, record.item)}")
    if totals.items != len(ledger.items):
        raise IntegrityError(f"{totals.items} commit records for {len(ledger.items)} items", where=f"{store.url}, stage {stage}")
    if rows_in is not None and totals.counts.rows_in != rows_in:
        what = f"stage {stage} read {totals.counts.rows_in} rows, the stage before wrote {rows_in}"
        raise IntegrityError(what, where=store.url)
    empty: PartRecord | None = None
    if final and output is not None:
        if not totals.parts:
            empty = _write_empty_part(output, empty_part())
        _publish_left_over(output, totals.parts, run_tag, parallel_map)
        _switch(output, run_id, run_tag, [*totals.parts, *([empty] if empty else [])], replaces)
    seal = SealRecord(
        stage=stage,
        nonce=nonce,
        worker=worker,
        item_count=len(ledger.items),
        counts=totals.counts,
        steps=tuple(totals.steps.values()),
        parts=len(totals.parts),
        bytes=sum(part.bytes for part in totals.parts),
        empty_part=empty,
        finished=now,
        final=final,
    )
    try:
        store.create(keys.sealed(stage), encode(seal))
    except AlreadyExists:
        return decode(SealRecord, store.get(keys.sealed(stage)), where=f"{store.url}/{keys.sealed(stage)}")
    return seal


def _publish_left_over(output: Store, parts: Sequence[PartRecord], run_tag: str, parallel_map: Callable[..., Iterable[Any]]) -> None:
    """Finish the uploads of committed parts that are not there yet, by one LIST of the output."""
    if not parts:
        return
    present = {info.key: info.size for page in output.list("part-") for info in page.objects if run_tag in info.key}
    missing = [part for part in parts if part.upload is not None and present.get(part.key) != part.bytes]
    list(parallel_map(lambda part: publish(output, part), missing))


def _write_empty_part(output: Store, made: tuple[str, bytes, str] | None) -> PartRecord | None:
    if made is None:
        return None
    name, body, checksum = made
    try:
        output.create(name, body)
    except AlreadyExists:
        body = output.get(name)
    return PartRecord(key=name, rows=0, bytes=len(body), checksum=checksum)


def _switch(output: Store, run_id: str, run_tag: str, parts: Sequence[PartRecord], replaces: Sequence[str]) -> None:
    named = tuple(ManifestPart(part.key, part.rows, part.bytes, part.checksum) for part in parts)
    manifest = Manifest(run_id=run_id, run_tag=run_tag, parts=named, replaces=tuple(replaces))
    with contextlib.suppress(AlreadyExists):  # another sealer of this run has switched: the manifest follows from the commits
        output.create(manifest_key(run_tag), encode(manifest))
    for start in range(0, len(replaces), 1000):
        output.delete(replaces[start : start + 1000])
