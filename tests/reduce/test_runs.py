"""Runs: order, index, spilling, coalesced reads, and that no damage passes unseen."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloudshard.errors import DiskFull, IntegrityError, SchemaError
from cloudshard.ledger.records import decode, encode
from cloudshard.reduce import pieces
from cloudshard.reduce.ordering import SortKey, decode_form, normalised
from cloudshard.reduce.partition import HashPartitioner
from cloudshard.reduce.read import Wanted, coalesce, read_slices
from cloudshard.reduce.runs import MAX_SAMPLES, RunIndex, RunWriter, Slice, SortedRunWriter
from cloudshard.store.memory import MemoryStore
from tests.reduce.harness import Sink

TABLE = pa.table(
    {"k": list(range(3000)), "s": [f"value {n}" for n in range(3000)], "d": pa.array(["x", None, "y"] * 1000).dictionary_encode()}
)
BUCKETS = HashPartitioner(("k",), 16)


def written(tmp_path: Path, table: pa.Table = TABLE, *, memory: int = 1 << 20, **options: Any) -> tuple[bytes, RunIndex, int]:
    sink = Sink()
    with RunWriter(sink, table.schema, BUCKETS, memory_bytes=memory, spill_dir=tmp_path, **options) as writer:
        for begin in range(0, table.num_rows, 100):
            writer.write(table.slice(begin, 100))
        index = writer.finish()
        return sink.body, index, writer.spilled_bytes


def store_of(body: bytes) -> tuple[MemoryStore, Any]:
    store = MemoryStore("b")
    store.put("run", body)
    return store, lambda url: (store, "run")


def wanted(index: RunIndex) -> list[Wanted]:
    return [Wanted("memory://b/run", "", one) for one in index.slices]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@pytest.mark.parametrize("memory", [1 << 30, 40 << 10])
def test_slices_lie_in_bucket_order_without_gaps_and_hold_their_rows(tmp_path: Path, compression: Any, memory: int) -> None:
    body, index, spilled = written(tmp_path, memory=memory, compression=compression)
    assert (spilled > 0) == (memory < 1 << 30)
    assert [one.bucket for one in index.slices] == sorted({one.bucket for one in index.slices})
    assert [one.start for one in index.slices] == [0, *[one.end for one in index.slices][:-1]]
    assert (index.size, index.rows) == (len(body), 3000)
    _, opened = store_of(body)
    for one in index.slices:
        rows = pa.concat_tables(read_slices(opened, [Wanted("u", "", one)]), promote_options="permissive")
        assert rows.num_rows == one.rows
        assert set(BUCKETS.assign(rows).tolist()) == {one.bucket}
        assert rows.column("k").to_pylist() == sorted(rows.column("k").to_pylist())  # input order within a bucket
        assert rows.column("d").to_pylist() == [["x", None, "y"][k % 3] for k in rows.column("k").to_pylist()]
    assert decode(RunIndex, encode(index), where="test") == index
    assert not list(tmp_path.iterdir())


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    assert written(tmp_path)[:2] == written(tmp_path)[:2]


def test_an_empty_run_has_no_bytes_and_no_slices(tmp_path: Path) -> None:
    body, index, _ = written(tmp_path, TABLE.slice(0, 0))
    assert (body, index.slices, index.rows, index.size) == (b"", (), 0, 0)


def test_every_flipped_or_missing_byte_is_noticed_with_its_place(tmp_path: Path) -> None:
    body, index, _ = written(tmp_path)
    rng = np.random.default_rng(1)
    for at in rng.integers(0, len(body), 40).tolist():
        damaged = bytearray(body)
        damaged[at] ^= 1 << int(rng.integers(8))
        _, opened = store_of(bytes(damaged))
        hit = next(one for one in index.slices if one.start <= at < one.end)
        with pytest.raises(IntegrityError, match=rf"memory://b/run, bytes {hit.start}-{hit.end}"):
            list(read_slices(opened, wanted(index)))
    _, opened = store_of(body[:-1])
    with pytest.raises(IntegrityError, match="ends early"):
        list(read_slices(opened, wanted(index)))


def test_a_wrong_row_count_or_a_missing_run_is_an_integrity_error(tmp_path: Path) -> None:
    body, index, _ = written(tmp_path)
    store, opened = store_of(body)
    first = index.slices[0]
    lied = Slice(first.bucket, first.start, first.end, first.rows + 1, first.nbytes, first.checksum)
    with pytest.raises(IntegrityError, match=f"{first.rows} rows, its commit record says {first.rows + 1}"):
        list(read_slices(opened, [Wanted("u", "", lied)]))
    with pytest.raises(IntegrityError, match="cannot be read"):
        list(read_slices(opened, [Wanted("u", "other", first)]))
    store.delete(["run"])
    with pytest.raises(IntegrityError, match="cannot be read"):
        list(read_slices(opened, wanted(index)))


def test_neighbours_share_a_request_and_gaps_and_sizes_are_bounded() -> None:
    slices = [Slice(n, n * 100, n * 100 + 100, 1, 1, "") for n in range(10)]
    near = [Wanted("u", "", one) for one in slices]
    assert [(one.start, one.end) for one in coalesce(near)] == [(0, 1000)]
    assert [(one.start, one.end) for one in coalesce([near[0], near[3]], gap_bytes=200)] == [(0, 400)]
    assert len(coalesce([near[0], near[3]], gap_bytes=199)) == 2
    assert len(coalesce(near, request_bytes=300)) == 4
    assert len(coalesce([near[1], near[0]])) == 2
    assert len(coalesce([near[0], near[1]._replace(url="v")])) == 2


def test_no_more_is_fetched_ahead_than_the_budget(tmp_path: Path) -> None:
    body, index, _ = written(tmp_path)
    lock = threading.Lock()
    asked = 0

    class Watching(MemoryStore):
        def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
            nonlocal asked
            with lock:
                asked += (end or 0) - start
            return super().get(key, start=start, end=end, if_etag=if_etag)

    store = Watching("b")
    store.put("run", body)
    largest = max(one.end - one.start for one in index.slices)
    budget = 2 * largest
    handed = 0
    last = -1
    for _ in (rows := read_slices(lambda url: (store, "run"), wanted(index), prefetch_bytes=budget, request_bytes=1)):
        last += 1
        assert asked <= handed + budget + largest
        handed += index.slices[last].end - index.slices[last].start
    rows.close()
    assert handed == len(body)


def test_a_reader_that_is_left_early_stops_its_threads(tmp_path: Path) -> None:
    body, index, _ = written(tmp_path)
    _, opened = store_of(body)
    rows = read_slices(opened, wanted(index), request_bytes=1)
    next(rows)
    rows.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("slices")]


def test_rows_of_another_schema_are_refused(tmp_path: Path) -> None:
    writer = RunWriter(Sink(), TABLE.schema, BUCKETS, memory_bytes=1 << 20, spill_dir=tmp_path)
    with writer, pytest.raises(SchemaError, match="k int64, s string"):
        writer.write(TABLE.select(["k", "s"]))
    with pytest.raises(SchemaError, match="'nope'"):
        RunWriter(Sink(), TABLE.schema, HashPartitioner(("nope",), 4), memory_bytes=1 << 20, spill_dir=tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_scratch_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(*args: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pieces.tempfile, "TemporaryFile", full)
    with pytest.raises(DiskFull, match=f"no room left for spilling.*{tmp_path}"):
        written(tmp_path, memory=40 << 10)


def test_a_really_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces.tempfile, "TemporaryFile", lambda **options: open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
    with pytest.raises(DiskFull):
        written(tmp_path, memory=40 << 10)


@pytest.mark.parametrize("rows", [0, 1, 255, 5000])
@pytest.mark.parametrize("memory", [1 << 30, 64 << 10])
def test_a_run_by_key_has_sorted_slices_with_true_bounds_and_few_samples(tmp_path: Path, rows: int, memory: int) -> None:
    rng = np.random.default_rng(rows)
    keys = [SortKey("k", descending=True)]
    table = pa.table({"k": ["long common beginning " * 4 + str(n) for n in rng.integers(0, 1000, rows).tolist()], "row": list(range(rows))})
    table = table.cast(pa.schema([("k", pa.string()), ("row", pa.int64())]))
    sink = Sink()
    with SortedRunWriter(sink, table.schema, keys, memory_bytes=memory, spill_dir=tmp_path, slice_bytes=4 << 10) as writer:
        for begin in range(0, rows, 64):
            writer.write(table.slice(begin, 64))
        index = writer.finish()
    _, opened = store_of(sink.body)
    assert [decode_form(one.low) for one in index.slices] == sorted(decode_form(one.low) for one in index.slices)
    seen = []
    for one in index.slices:
        some = pa.concat_tables(read_slices(opened, [Wanted("u", "", one)]))
        forms = normalised(some, keys, range(some.num_rows))
        assert forms == sorted(forms)
        assert decode_form(one.low) <= forms[0] <= forms[-1] <= decode_form(one.high)
        assert max(len(decode_form(one.low)), len(decode_form(one.high))) <= 64
        seen += some.column("row").to_pylist()
    assert sorted(seen) == list(range(rows))
    assert len(index.samples) <= MAX_SAMPLES
    assert len(index.samples) >= min(rows, MAX_SAMPLES // 4)
