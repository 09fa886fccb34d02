"""The next stage's work items follow from the commit records alone, in whatever order these are read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import IntegrityError
from cloudshard.ledger.records import CommitRecord, PartRecord, RowCounts
from cloudshard.plan.boundary import next_items
from cloudshard.plan.values import SinkSpec, SourceSpec, StageSpec


def stage(boundary, **params):
    return StageSpec(
        index=0, source=SourceSpec(format="jsonl"), steps=(), sink=SinkSpec(format="runs"), boundary=boundary, boundary_params=params
    )


def commit(item, rows_of_parts, size=100):
    parts = tuple(
        PartRecord(key=f"stages/00/runs/{item}-{n}", rows=rows, bytes=size, checksum=f"c{item}{n}", base="run")
        for n, rows in enumerate(rows_of_parts)
    )
    return CommitRecord(
        stage=0,
        item=item,
        epoch=1,
        nonce="n",
        worker="w",
        host="h",
        started=0.0,
        finished=1.0,
        parts=parts,
        counts=RowCounts(rows_out=sum(rows_of_parts)),
    )


def rows_in(items):
    return [(piece.url.rpartition("/")[2], piece.start, piece.end) for item in items for piece in item.inputs]


def test_each_run_is_a_shard_and_small_neighbours_share_one():
    commits = [commit(0, [5]), commit(1, [7, 3]), commit(2, [1], size=1000)]
    assert [len(item.inputs) for item in next_items(stage("checkpoint", target_bytes=1), commits, "memory://r")] == [1, 1, 1, 1]
    items = next_items(stage("checkpoint", target_bytes=1 << 20), commits, "memory://r")
    assert rows_in(items) == [("0-0", 0, 5), ("1-0", 0, 7), ("1-1", 0, 3), ("2-0", 0, 1)]
    assert len(items) == 1
    assert items[0].weight == 1300
    assert items[0].inputs[0].url == "memory://r/stages/00/runs/0-0"
    assert items[0].inputs[0].unit == "rows"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=8), st.integers(0, 60), st.integers(0, 5))
def test_a_limit_takes_the_first_rows_in_item_order_and_no_more(parts, wanted, seed):
    commits = [commit(item, rows) for item, rows in enumerate(parts)]
    expected = [(f"{item}-{n}", row) for item, rows in enumerate(parts) for n, count in enumerate(rows) for row in range(count)][:wanted]
    shuffled = random.Random(seed).sample(commits, len(commits))
    items = next_items(stage("limit", rows=wanted, target_bytes=250), shuffled, "memory://r")
    assert [(name, row) for name, start, end in rows_in(items) for row in range(start, end)] == expected
    assert items == next_items(stage("limit", rows=wanted, target_bytes=250), iter(commits), "memory://r")  # invariant 8
    assert all(start < end for _, start, end in rows_in(items))


def test_no_rows_no_items():
    assert next_items(stage("checkpoint"), [commit(0, []), commit(1, [0])], "memory://r") == ()


def test_a_missing_or_doubled_commit_record_is_refused():
    with pytest.raises(IntegrityError, match="item 1 is missing"):
        next_items(stage("checkpoint"), [commit(0, [1]), commit(2, [1])], "memory://r")
    with pytest.raises(IntegrityError, match="item 1 stands there twice"):
        next_items(stage("checkpoint"), [commit(0, [1]), commit(1, [1]), commit(1, [1])], "memory://r")


def test_the_last_stage_has_no_next():
    with pytest.raises(IntegrityError, match="no next stage"):
        next_items(stage(None), [commit(0, [1])], "memory://r")
