"""Records: golden files pin the version, unknown fields survive, nonsense gets one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudshard.errors import IntegrityError
from cloudshard.ledger.items import INLINE_ITEMS, decode_items, encode_items
from cloudshard.ledger.records import (
    ClaimRecord,
    CommitRecord,
    FailureRecord,
    InputRange,
    PartRecord,
    PoisonRow,
    Record,
    RowCounts,
    StepCounts,
    WorkItem,
    decode,
    encode,
)
from cloudshard.ledger.seal import Totals, balance
from cloudshard.store.port import Upload, UploadPart

GOLDEN = Path(__file__).parent / "golden"

EXAMPLES: dict[str, Record] = {
    "claim-v1": ClaimRecord(stage=0, item=3, epoch=2, worker="w1", nonce="aa", host="h", pid=9, started=1.5),
    "commit-v1": CommitRecord(
        stage=0,
        item=3,
        epoch=2,
        nonce="aa",
        worker="w1",
        host="h",
        started=1.5,
        finished=2.5,
        parts=(
            PartRecord(
                key="part-000003-000-aa.parquet",
                rows=2,
                bytes=10,
                checksum="xxh3_128:00",
                upload=Upload("part-000003-000-aa.parquet", "u1", 5),
                upload_parts=(UploadPart(1, "e", 10),),
            ),
        ),
        counts=RowCounts(rows_in=3, rows_out=2, filtered=1),
        steps=(StepCounts(step="01-map", rows_in=3, rows_out=2, filtered=1),),
    ),
    "failure-v1": FailureRecord(
        stage=0,
        item=3,
        epoch=1,
        nonce="bb",
        worker="w1",
        host="h",
        started=1.5,
        finished=2.5,
        kind="crash",
        error_type="ChildCrashed",
        message="signal 11",
        poison=(PoisonRow("s3://b/k", 42, "signal 11"),),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_records_are_still_read_and_written_the_same(name: str) -> None:
    body = (GOLDEN / f"{name}.json").read_bytes().strip()
    record = EXAMPLES[name]
    assert decode(type(record), body, where="golden") == record
    assert json.loads(encode(record)) == json.loads(body)


def test_a_field_of_a_later_version_does_no_harm() -> None:
    body = json.loads(encode(EXAMPLES["claim-v1"])) | {"colour": "blue"}
    assert decode(ClaimRecord, json.dumps(body).encode(), where="x") == EXAMPLES["claim-v1"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"stage": "no"}', b"\xff", b"[" * 100_000])
def test_nonsense_is_an_integrity_error_that_names_the_object(body: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"s3://bucket/key"):
        decode(ClaimRecord, body, where="s3://bucket/key")


def test_a_later_schema_version_asks_for_an_upgrade() -> None:
    body = json.loads(encode(EXAMPLES["claim-v1"])) | {"version": 99}
    with pytest.raises(IntegrityError, match="Upgrade"):
        decode(ClaimRecord, json.dumps(body).encode(), where="x")


def _items(count: int) -> list[WorkItem]:
    return [
        WorkItem(i, "shard", (InputRange("s3://b/é", 10, "e", i, i + 1), InputRange("s3://b/2", 1, "f", 0, 1, "rows")), i)
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, INLINE_ITEMS, INLINE_ITEMS + 1])
def test_lists_of_items_survive_both_encodings(count: int) -> None:
    items = _items(count)
    body, suffix = encode_items(items)
    assert suffix == (".json" if count <= INLINE_ITEMS else ".parquet")
    again = decode_items(body, f"items{suffix}")
    assert len(again) == count
    assert list(again) == items
    if count:
        assert again[-1] == items[-1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"counts": RowCounts(rows_in=4, rows_out=2, filtered=1)}, "1 unaccounted"),
        ({"counts": RowCounts(rows_in=4, rows_out=3, filtered=1)}, "the parts hold 2"),
        ({"steps": (StepCounts(step="a", rows_in=3, rows_out=2),)}, "step a: 1 rows"),
        ({"steps": (StepCounts(step="a", rows_in=3, rows_out=3), StepCounts(step="b", rows_in=2, rows_out=2))}, "step b got 2"),
    ],
)
def test_invariant_3_rows_that_do_not_add_up_are_named(change: dict[str, object], problem: str) -> None:
    import msgspec

    record = msgspec.structs.replace(EXAMPLES["commit-v1"], **change)
    assert isinstance(record, CommitRecord)
    with pytest.raises(IntegrityError, match=problem):
        Totals().add(record, "here")


def test_totals_add_up() -> None:
    totals = Totals()
    record = EXAMPLES["commit-v1"]
    assert isinstance(record, CommitRecord)
    totals.add(record, "a")
    totals.add(record, "b")
    assert totals.counts.rows_in == 6
    assert totals.steps["01-map"].filtered == 2
    assert balance(totals.counts) == 0
