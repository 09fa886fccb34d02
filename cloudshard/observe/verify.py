"""Does the bucket hold exactly what the ledger says? Every commit record, every row count, every byte of every part.

Checks, in order: ``commits`` (one record per item, in its place, with a claim behind it, as in the block summaries), ``rows``
(conserved in every item and step, across boundaries, equal to the seals), ``parts`` (there, of the committed size and checksum),
``row counts`` (what Parquet footers, Arrow files and JSON lines say), ``quarantine`` (its files hold the rows that were counted),
``foreign`` (nothing else under the output), ``manifest`` (agrees with the commit records). ``fast`` reads no data: it trusts
sizes from one LIST, and block summaries where there are any.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from cloudshard.ledger import keys
from cloudshard.ledger.records import ClaimRecord, CommitRecord, PartRecord, SealRecord, decode
from cloudshard.ledger.seal import Totals
from cloudshard.observe.collected import spills_collected
from cloudshard.observe.fetch import get_many, list_objects
from cloudshard.observe.findings import Check, VerifyReport
from cloudshard.observe.load import OpenOutput, OpenRun, commit_lines, decode_many, open_run, read_commits, read_seal, read_stage
from cloudshard.observe.snapshot import StageSnapshot, snapshot_stage
from cloudshard.observe.verify_output import ObjectChecks, PartRead
from cloudshard.store.port import Store

CHECKS = ("commits", "rows", "parts", "row counts", "quarantine", "foreign", "manifest")


def verify_run(store: Store, open_output: OpenOutput, *, fast: bool = False, progress: PartRead | None = None) -> VerifyReport:
    """Check the run at ``store`` against its output. Raises RecipeError when there is no run."""
    return _Verifier(open_run(store), open_output, fast=fast, progress=progress).verify()


@dataclass
class _Stage:
    snapshot: StageSnapshot
    item_count: int
    records: list[CommitRecord] = field(default_factory=list)
    seal: SealRecord | None = None

    @property
    def parts(self) -> list[PartRecord]:
        found = [part for record in self.records for part in record.parts]
        if self.seal is not None and self.seal.empty_part is not None:
            found.append(self.seal.empty_part)
        return found


class _Verifier:
    def __init__(self, run: OpenRun, open_output: OpenOutput, *, fast: bool, progress: PartRead | None) -> None:
        self._run = run
        self._store = run.store
        self._open_output = open_output
        self._fast = fast
        self._checks = {name: Check(name) for name in CHECKS}
        self._objects = ObjectChecks(run, self._checks, fast=fast, progress=progress)

    def verify(self) -> VerifyReport:
        specs = self._run.plan.stages
        stages = [stage for spec in specs if (stage := self._read_stage(spec.index)) is not None]
        complete = len(stages) == len(specs) and all(stage.seal is not None for stage in stages)
        for stage in stages:
            self._check_rows(stage)
            self._objects.check_quarantine(stage.records)
        self._check_boundaries(stages)
        self._check_spills(stages)
        final = stages[-1] if stages and len(stages) == len(specs) else None
        outputs = [part for part in final.parts if part.base == "output"] if final else []
        if specs[-1].sink.url:
            self._objects.check_output(self._open_output(specs[-1].sink), outputs, complete=complete)
        return VerifyReport(
            url=self._run.url,
            run_id=self._run.record.run_id,
            complete=complete,
            fast=self._fast,
            items=sum(stage.item_count for stage in stages),
            committed=sum(len(stage.records) for stage in stages),
            parts=len(outputs),
            rows=sum(part.rows for part in outputs),
            bytes=sum(part.bytes for part in outputs),
            bytes_read=self._objects.bytes_read,
            checks=list(self._checks.values()),
        )

    def _where(self, key: str) -> str:
        return f"{self._store.url}/{key}"

    # ------------------------------------------------------------ commits

    def _read_stage(self, number: int) -> _Stage | None:
        """The stage's records, checked against each other; None when it has not begun."""
        record = read_stage(self._store, number)
        snapshot = snapshot_stage(self._store, number)
        if record is None:
            if snapshot.touched:
                self._checks["commits"].add("the stage has records but no list of work items", self._where(keys.stage_record(number)))
            if number:
                return None
        stage = _Stage(snapshot, record.item_count if record else self._run.record.item_count, seal=read_seal(self._store, number))
        stage.records = self._commits(snapshot)
        self._check_commits(stage)
        return stage

    def _commits(self, snapshot: StageSnapshot) -> list[CommitRecord]:
        """The records; ``fast`` takes block summaries for them, otherwise both are read and must agree."""
        if self._fast:
            return list(read_commits(self._store, snapshot))
        check = self._checks["commits"]
        found: dict[int, CommitRecord] = {}
        for key, body in get_many(self._store, (snapshot.commits[item].key for item in sorted(snapshot.commits))):
            with check.collecting():
                found[keys.parse_entry(key).item] = decode(CommitRecord, body, where=self._where(key))
        for key, body in get_many(self._store, snapshot.blocks.values()):
            with check.collecting():
                for record in commit_lines(self._store, key, body):
                    if record != found.get(record.item):
                        check.add(f"the block summary and the commit record of item {record.item} differ", self._where(key))
        for item, record in found.items():
            if (record.stage, record.item) != (snapshot.stage, item):
                what = f"the record of stage {record.stage}, item {record.item} stands in this item's place"
                check.add(what, self._where(snapshot.commits[item].key))
        return list(found.values())

    def _check_commits(self, stage: _Stage) -> None:
        check, number = self._checks["commits"], stage.snapshot.stage
        nonces = None if self._fast else self._claim_nonces(stage)
        for record in stage.records:
            check.examined += 1
            where = self._where(keys.commit(number, record.item))
            if not 0 <= record.item < stage.item_count:
                check.add(f"item {record.item} is not one of the stage's {stage.item_count} work items", where)
            elif record.epoch not in stage.snapshot.claims.get(record.item, {}):
                check.add(f"there is no claim of epoch {record.epoch} behind this record", where)
            elif nonces is not None and nonces.get((record.item, record.epoch)) != record.nonce:
                check.add(f"the claim of epoch {record.epoch} has another nonce than this record", where)
        missing = sorted(set(range(stage.item_count)) - {record.item for record in stage.records})
        if stage.seal is not None and missing:
            named = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
            check.add(f"the stage is sealed but {len(missing)} items have no commit record: {named}", self._where(keys.sealed(number)))

    def _claim_nonces(self, stage: _Stage) -> dict[tuple[int, int], str]:
        """Nonces of the claims behind the commit records."""
        claims = stage.snapshot.claims
        wanted = [claims[record.item][record.epoch].key for record in stage.records if record.epoch in claims.get(record.item, {})]
        return {(claim.item, claim.epoch): claim.nonce for _, claim in decode_many(self._store, ClaimRecord, wanted)}

    # ------------------------------------------------------------ rows

    def _check_rows(self, stage: _Stage) -> None:
        check, number = self._checks["rows"], stage.snapshot.stage
        totals = Totals()
        for record in stage.records:
            check.examined += 1
            with check.collecting():
                totals.add(record, self._where(keys.commit(number, record.item)))
        seal, size = stage.seal, sum(part.bytes for part in totals.parts)
        if seal is None or not check.ok:
            return
        if seal.counts != totals.counts:
            told, found = seal.counts, totals.counts
            what = f"the seal tells {told.rows_out} rows of {told.rows_in}, the commit records {found.rows_out} of {found.rows_in}"
            check.add(what, self._where(keys.sealed(number)))
        if (seal.item_count, seal.parts, seal.bytes) != (totals.items, len(totals.parts), size):
            told_parts = f"the seal tells {seal.parts} parts of {seal.bytes} bytes from {seal.item_count} items"
            found_parts = f"the commit records {len(totals.parts)} of {size} from {totals.items}"
            check.add(f"{told_parts}, {found_parts}", self._where(keys.sealed(number)))

    def _check_boundaries(self, stages: list[_Stage]) -> None:
        check = self._checks["rows"]
        for before, after in itertools.pairwise(stages):
            number = after.snapshot.stage
            record = read_stage(self._store, number)
            if record is None or record.rows_in is None:
                continue
            where = self._where(keys.stage_record(number))
            spec = self._run.plan.stages[before.snapshot.stage]
            written = sum(commit.counts.rows_out for commit in before.records)
            due = min(written, int(spec.boundary_params["rows"])) if spec.boundary == "limit" else written
            if record.rows_in != due:
                check.add(f"stage {number - 1} wrote {written} rows, stage {number} was given {record.rows_in} of {due}", where)
            read = sum(commit.counts.rows_in for commit in after.records)
            if after.seal is not None and read != record.rows_in:
                check.add(f"stage {number} read {read} of the {record.rows_in} rows that it was given", where)

    def _check_spills(self, stages: list[_Stage]) -> None:
        """Data between the stages; it may be gone once the run is complete and ``gc`` has been there."""
        spills = [part for stage in stages for part in stage.parts if part.base == "run"]
        if not spills or spills_collected(self._store):
            return
        present = {info.key: info for stage in stages for info in list_objects(self._store, f"{keys.stage(stage.snapshot.stage)}runs/")}
        self._objects.check_parts(self._store, spills, present, complete=True)
