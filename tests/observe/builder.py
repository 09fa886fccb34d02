"""A run built by hand, record by record, on stores in memory with a clock that tests move."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cloudshard.ledger import keys
from cloudshard.ledger.claims import HELD, lease_metadata
from cloudshard.ledger.items import encode_items
from cloudshard.ledger.ledger import run_tag
from cloudshard.ledger.records import (
    ClaimRecord,
    CommitRecord,
    DeadRecord,
    FailureRecord,
    InputRange,
    PartRecord,
    RevivedRecord,
    RowCounts,
    RunRecord,
    RunSettings,
    SealRecord,
    ShardStats,
    StageRecord,
    StepCounts,
    WorkerRecord,
    WorkItem,
    encode,
)
from cloudshard.ledger.seal import Manifest, ManifestPart, manifest_key
from cloudshard.plan.values import Plan, SinkSpec, SourceSpec, StageSpec, StepSpec
from cloudshard.store.memory import MemoryStore
from cloudshard.store.registry import open_store

SETTINGS = RunSettings(lease_seconds=60.0, max_retries=1)


def parquet(rows: int) -> bytes:
    """A Parquet file of one column."""
    out = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(rows))}), out)
    return out.getvalue()


def arrow_stream(rows: int) -> bytes:
    """An Arrow IPC stream of one column, as between stages."""
    out = io.BytesIO()
    table = pa.table({"n": list(range(rows))})
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def checksum(body: bytes) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(body)}"


@dataclass
class Clock:
    """A store's clock that stands still until it is moved."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class BuiltRun:
    """``items`` per stage; stage i hands everything to stage i + 1 (checkpoint). Rows out = rows in − 2 filtered."""

    items: tuple[int, ...] = (4,)
    settings: RunSettings = SETTINGS
    name: str = "built"
    nonce: str = "abcdef0123456789"
    clock: Clock = field(default_factory=Clock)
    folder: str | None = None  # a URL: real stores below it, with their own clock
    store: Any = field(init=False)
    output: Any = field(init=False)

    def __post_init__(self) -> None:
        if self.folder is None:
            self.store = MemoryStore(f"{self.name}-run", clock=self.clock)
            self.output = MemoryStore(f"{self.name}-out", clock=self.clock)
        else:
            self.store, self.output = open_store(f"{self.folder}/run"), open_store(f"{self.folder}/out")
        stages = tuple(
            StageSpec(
                index=at,
                source=SourceSpec(format="jsonl" if at == 0 else "runs"),
                steps=(StepSpec(kind="filter", name=f"{at:02d}-filter"),),
                sink=SinkSpec(format="parquet", url=self.output.url) if at == len(self.items) - 1 else SinkSpec(format="arrow"),
                boundary=None if at == len(self.items) - 1 else "checkpoint",
            )
            for at in range(len(self.items))
        )
        plan = Plan(name=self.name, stages=stages, parameters={"lang": "en"})
        items, suffix = encode_items([self.work_item(index) for index in range(self.items[0])])
        self.store.put(f"plan/items-x{suffix}", items)
        self.run = RunRecord(
            run_id=f"{self.name}-{self.nonce[:8]}",
            pipeline=self.name,
            nonce=self.nonce,
            fingerprint="f" * 64,
            fingerprint_fields={"inputs": {"objects": self.items[0], "bytes": 100 * self.items[0]}},
            plan=msgspec.Raw(msgspec.json.encode(plan)),
            settings=self.settings,
            items_key=f"plan/items-x{suffix}",
            item_count=self.items[0],
            created_by="w1",
            packages={"cloudshard": "0.1.0"},
        )
        self.store.create(keys.RUN, encode(self.run))
        self.store.create(keys.stage_record(0), encode(StageRecord(stage=0, item_count=self.items[0], items_key=self.run.items_key)))
        self.commits: dict[tuple[int, int], CommitRecord] = {}

    @property
    def tag(self) -> str:
        return run_tag(self.run)

    def work_item(self, index: int, rows: int | None = None) -> WorkItem:
        if rows is not None:
            return WorkItem(index, "shard", (InputRange("run", 100, "e", 0, rows, "rows"),), weight=100)
        return WorkItem(index, "shard", (InputRange(f"file:///in/{index}.jsonl", 100, "e", 0, 100),), weight=100 * (index + 1))

    def open_output(self, _sink: SinkSpec) -> Any:
        return self.output

    def open_store(self, url: str) -> Any:
        return {self.store.url: self.store, self.output.url: self.output}[url]

    # ------------------------------------------------------------ records

    def begin_stage(self, stage: int) -> None:
        """stage.json of a later stage, with the rows of the stage before spread over its items."""
        rows = sum(record.counts.rows_out for (number, _), record in self.commits.items() if number == stage - 1)
        count = self.items[stage]
        items = tuple(self.work_item(index, rows // count + (index < rows % count)) for index in range(count))
        record = StageRecord(stage=stage, item_count=count, rows_in=rows, items=items)
        self.store.create(keys.stage_record(stage), encode(record))

    def claim(
        self, item: int, *, stage: int = 0, epoch: int = 1, worker: str = "w1", state: str = HELD, lease: float = 60.0
    ) -> ClaimRecord:
        nonce = f"n{stage}x{item}x{epoch}"
        record = ClaimRecord(stage=stage, item=item, epoch=epoch, worker=worker, nonce=nonce, host="host-a", pid=7, started=self.clock.now)
        self.store.create(keys.entry(stage, "claims", item, epoch), encode(record), metadata=lease_metadata(record, lease, state))
        return record

    def commit(self, item: int, *, stage: int = 0, epoch: int = 1, rows_in: int = 10, quarantined: int = 0, **changes: Any) -> CommitRecord:
        """Claim, write the part, commit."""
        if epoch not in self._epochs(stage, item):
            self.claim(item, stage=stage, epoch=epoch)
        nonce = f"n{stage}x{item}x{epoch}"
        rows_out = rows_in - 2 - quarantined
        last = stage == len(self.items) - 1
        body = parquet(rows_out) if last else arrow_stream(rows_out)
        name = keys.part_name(item, 0, self.tag, ".parquet") if last else keys.run_data(stage, item, nonce, 0, ".arrow")
        (self.output if last else self.store).put(name, body)
        part = PartRecord(key=name, rows=rows_out, bytes=len(body), checksum=checksum(body), base="output" if last else "run")
        quarantine_key = None
        if quarantined:
            quarantine_key = keys.quarantine(stage, item, nonce)
            self.store.put(quarantine_key, parquet(quarantined))
        counts = {"rows_in": rows_in, "rows_out": rows_out, "filtered": 2, "quarantined": quarantined}
        values: dict[str, Any] = {
            "stage": stage,
            "item": item,
            "epoch": epoch,
            "nonce": nonce,
            "worker": "w1",
            "host": "host-a",
            "started": self.clock.now,
            "finished": self.clock.now + 5,
            "parts": (part,),
            "counts": RowCounts(**counts),
            "steps": (StepCounts(step=f"{stage:02d}-filter", **counts),),
            "quarantine_key": quarantine_key,
            "stats": ShardStats(cpu_seconds=1.5, bytes_read=100),
        }
        record = CommitRecord(**{**values, **changes})
        self.store.create(keys.commit(stage, item), encode(record))
        self.commits[stage, item] = record
        return record

    def _epochs(self, stage: int, item: int) -> set[int | None]:
        prefix = keys.item_prefix(stage, "claims", item)
        return {keys.parse_entry(info.key).epoch for page in self.store.list(prefix) for info in page.objects}

    def fail(self, item: int, *, stage: int = 0, epoch: int = 1, message: str = "bad value 17", worker: str = "w1") -> None:
        """Claim and fail."""
        if epoch not in self._epochs(stage, item):
            self.claim(item, stage=stage, epoch=epoch, worker=worker)
        record = FailureRecord(
            stage=stage,
            item=item,
            epoch=epoch,
            nonce=f"f{item}x{epoch}",
            worker=worker,
            host="host-a",
            started=self.clock.now,
            finished=self.clock.now + 1,
            kind="error",
            error_type="ValueError",
            message=message,
            where=f"file:///in/{item}.jsonl, byte 17",
            step="00-filter",
        )
        self.store.create(keys.entry(stage, "failures", item, epoch), encode(record))

    def die(self, item: int, *, stage: int = 0, epochs: int = 2) -> None:
        """Fail ``epochs`` times; the last is the death."""
        for epoch in range(1, epochs + 1):
            self.fail(item, stage=stage, epoch=epoch)
        record = DeadRecord(stage=stage, item=item, epoch=epochs, nonce="d", failures=epochs, message="bad value 17")
        self.store.create(keys.entry(stage, "dead", item, epochs), encode(record))

    def revive(self, item: int, *, stage: int = 0, epoch: int = 2) -> None:
        record = RevivedRecord(stage=stage, item=item, epoch=epoch, nonce="r", by="me")
        self.store.create(keys.entry(stage, "revived", item, epoch), encode(record))

    def worker(self, name: str = "w1", **changes: Any) -> None:
        values: dict[str, Any] = {
            "worker": name,
            "host": "host-a",
            "pid": 7,
            "processes": 2,
            "started": self.clock.now,
            "seen": self.clock.now,
            "requests": {"create": 8, "list": 2},
            "items_committed": 3,
        }
        self.store.put(keys.worker(name), encode(WorkerRecord(**{**values, **changes})))

    def summarise(self, block: int = 0, *, stage: int = 0) -> None:
        """The block's commit records in one object."""
        records = [record for (number, item), record in sorted(self.commits.items()) if number == stage and keys.block_of(item) == block]
        self.store.create(keys.block_summary(stage, block), b"\n".join(encode(record) for record in records) + b"\n")

    def seal(self, stage: int = 0, **changes: Any) -> None:
        """The stage's seal; the last stage's comes with the manifest of the output."""
        records = [record for (number, _), record in sorted(self.commits.items()) if number == stage]
        parts = [part for record in records for part in record.parts]
        final = stage == len(self.items) - 1
        if final:
            named = tuple(ManifestPart(part.key, part.rows, part.bytes, part.checksum) for part in parts)
            manifest = Manifest(run_id=self.run.run_id, run_tag=self.tag, parts=named)
            self.output.create(manifest_key(self.tag), encode(manifest))
        names = ("rows_in", "rows_out", "added", "filtered", "dropped", "quarantined", "nulled")
        counts = RowCounts(**{name: sum(getattr(record.counts, name) for record in records) for name in names})
        values: dict[str, Any] = {
            "stage": stage,
            "nonce": "s",
            "worker": "w1",
            "item_count": len(records),
            "counts": counts,
            "steps": (),
            "parts": len(parts),
            "bytes": sum(part.bytes for part in parts),
            "final": final,
        }
        self.store.create(keys.sealed(stage), encode(SealRecord(**{**values, **changes})))

    def complete(self) -> BuiltRun:
        """Everything committed and sealed."""
        for stage, count in enumerate(self.items):
            if stage:
                self.begin_stage(stage)
            given = self._given(stage, count)
            for item in range(count):
                self.commit(item, stage=stage, rows_in=given[item])
            self.seal(stage)
        self.worker()
        return self

    def _given(self, stage: int, count: int) -> list[int]:
        if stage == 0:
            return [10] * count
        rows = sum(record.counts.rows_out for (number, _), record in self.commits.items() if number == stage - 1)
        return [rows // count + (item < rows % count) for item in range(count)]
