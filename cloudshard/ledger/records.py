"""The records that the ledger keeps in the bucket, as frozen values with a schema version.

Every record is one JSON object. A field that a later version adds is ignored by an earlier one and survives: records
are never rewritten, and compaction copies them as raw JSON. ``version`` moves only when the meaning of a field changes.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from cloudshard.errors import IntegrityError
from cloudshard.store.port import Upload, UploadPart

SCHEMA_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all records."""

    version: int = SCHEMA_VERSION


R = TypeVar("R", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """The record's JSON bytes; deterministic for equal records."""
    return msgspec.json.encode(record)


def decode(kind: type[R], body: bytes, *, where: str) -> R:
    """Parse and validate ``body``; a clear IntegrityError naming ``where`` (URL of the object) if it is no such record."""
    try:
        record = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise IntegrityError(
            f"not a valid {kind.__name__}: {error}", where=where, mend="Was the prefix written by something else?"
        ) from error
    version = getattr(record, "version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        what = f"a record of schema version {version}, this cloudshard knows {SCHEMA_VERSION}"
        raise IntegrityError(what, where=where, mend="Upgrade cloudshard on this machine.")
    return record


# ---------------------------------------------------------------- work items


class InputRange(msgspec.Struct, frozen=True):
    """A contiguous piece of one input object, pinned by ETag and size.

    ``unit`` "bytes": rows that *start* in bytes [start, end); "row_groups": row groups (Parquet) or record batches
    (Arrow) [start, end); "object": the whole object (start 0, end = size); "rows": rows [start, end) of a materialised
    run (an Arrow IPC stream). ``checksum``: of the whole object, where its writer has recorded one (runs).
    """

    url: str
    size: int
    etag: str
    start: int
    end: int
    unit: Literal["bytes", "row_groups", "object", "rows"] = "bytes"
    checksum: str = ""


class WorkItem(msgspec.Struct, frozen=True):
    """The unit of claim and retry. ``index`` is its number in its stage, ``weight`` its estimated bytes."""

    index: int
    kind: Literal["shard", "partition", "merge"]
    inputs: tuple[InputRange, ...]
    weight: int = 0


# ---------------------------------------------------------------- run and stages


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of a run must agree on."""

    lease_seconds: float = 60.0
    lease_margin_seconds: float = 5.0
    max_retries: int = 3
    max_takeovers: int = 5
    error_budget_rows: int | None = None
    error_budget_fraction: float | None = None


class RunRecord(Record, frozen=True, kw_only=True):
    """run.json — who creates it has planned the run. ``plan`` is :class:`cloudshard.plan.values.Plan` as JSON.

    ``items_key``: the first stage's work items. ``replaces_key``: a JSON list of output keys to delete once the run is complete.
    """

    run_id: str
    pipeline: str
    nonce: str
    fingerprint: str
    fingerprint_fields: dict[str, Any]
    plan: msgspec.Raw
    settings: RunSettings
    items_key: str
    item_count: int
    replaces_key: str | None = None
    created_by: str
    packages: dict[str, str] = {}


class StageRecord(Record, frozen=True, kw_only=True):
    """stages/<nn>/stage.json — the stage's work items: inline, or in the Parquet object ``items_key`` when many."""

    stage: int
    item_count: int
    rows_in: int | None = None
    items: tuple[WorkItem, ...] | None = None
    items_key: str | None = None


# ---------------------------------------------------------------- claims, commits, failures


class ClaimRecord(Record, frozen=True, kw_only=True):
    """The body of a claim object. The lease itself (owner, nonce, lease-seconds, state) is in the object's metadata."""

    stage: int
    item: int
    epoch: int
    worker: str
    nonce: str
    host: str
    pid: int
    started: float


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object of an attempt's output.

    ``key`` is relative to ``base`` ("output": the sink's URL, "run": the run's prefix). ``upload``/``upload_parts``: the
    pending multipart upload that makes it appear (None: it is there already). ``checksum``: ``xxh3_128:<hex>`` of its bytes.
    """

    key: str
    rows: int
    bytes: int
    checksum: str
    base: Literal["output", "run"] = "output"
    upload: Upload | None = None
    upload_parts: tuple[UploadPart, ...] = ()


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows through one step. Always: rows_in + added == rows_out + filtered + dropped + quarantined.

    ``added``: rows that a flat_map or batch step made beyond its input; ``filtered``: rows that the step's own logic
    removed; ``dropped``/``quarantined``: removed by the error policy; ``nulled``: kept, with null for the failed result.
    """

    step: str
    rows_in: int = 0
    rows_out: int = 0
    added: int = 0
    filtered: int = 0
    dropped: int = 0
    quarantined: int = 0
    nulled: int = 0
    seconds: float = 0.0


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over a whole attempt, the reader included. rows_in + added == rows_out + filtered + dropped + quarantined."""

    rows_in: int = 0
    rows_out: int = 0
    added: int = 0
    filtered: int = 0
    dropped: int = 0
    quarantined: int = 0
    nulled: int = 0


class ShardStats(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one attempt; None where not measured."""

    runtime_seconds: float | None = None
    rows_processed: int | None = None
    throughput_rows_per_sec: float | None = None
    cpu_seconds: float | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    peak_memory_bytes: int | None = None
    gpu_util_mean: float | None = None
    gpu_util_min: float | None = None
    gpu_util_max: float | None = None
    gpu_util_samples: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    num_gpus: int | None = None
    model_load_seconds: float | None = None


class CommitRecord(Record, frozen=True, kw_only=True):
    """The single create-only object that makes an attempt's output *the* output."""

    stage: int
    item: int
    epoch: int
    nonce: str
    worker: str
    host: str
    started: float
    finished: float
    parts: tuple[PartRecord, ...]
    counts: RowCounts
    steps: tuple[StepCounts, ...] = ()
    quarantine_key: str | None = None
    schema: str | None = None
    stats: ShardStats = ShardStats()


class PoisonRow(msgspec.Struct, frozen=True):
    """A row that kills or hangs the process that touches it; successors skip and quarantine it."""

    object: str
    position: int
    reason: str
    step: str = ""


class FailureRecord(Record, frozen=True, kw_only=True):
    """A failed attempt that is the *task's* fault. ``kind``: error | crash | oom | hang | takeovers."""

    stage: int
    item: int
    epoch: int
    nonce: str
    worker: str
    host: str
    started: float
    finished: float
    kind: Literal["error", "crash", "oom", "hang", "takeovers"]
    error_type: str
    message: str
    where: str = ""
    step: str = ""
    traceback: str = ""
    poison: tuple[PoisonRow, ...] = ()


class DeadRecord(Record, frozen=True, kw_only=True):
    """The retry budget is spent: the item counts as terminally failed unless revived or committed."""

    stage: int
    item: int
    epoch: int
    nonce: str
    failures: int
    message: str


class RevivedRecord(Record, frozen=True, kw_only=True):
    """``retry``: failures and deaths up to ``epoch`` no longer count."""

    stage: int
    item: int
    epoch: int
    nonce: str
    by: str


class SealRecord(Record, frozen=True, kw_only=True):
    """stages/<nn>/sealed.json — totals of the stage; the next stage may start (or the run is complete)."""

    stage: int
    nonce: str
    worker: str
    item_count: int
    counts: RowCounts
    steps: tuple[StepCounts, ...]
    parts: int
    bytes: int
    empty_part: PartRecord | None = None
    finished: float = 0.0
    final: bool = False


class WorkerRecord(Record, frozen=True, kw_only=True):
    """workers/<id>.json — who took part. Rewritten by its owner alone: at start, now and then, and at the end."""

    worker: str
    host: str
    pid: int
    processes: int
    started: float
    seen: float
    state: Literal["running", "draining", "ended"] = "running"
    exit_code: int | None = None
    items_committed: int = 0
    items_failed: int = 0
    lost_races: int = 0
    requests: dict[str, int] = {}
    packages: dict[str, str] = {}
