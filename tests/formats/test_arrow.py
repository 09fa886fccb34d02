"""Arrow IPC files and streams, and runs."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import InputError, IntegrityError, RecipeError, RowError
from cloudshard.formats.registry import get_format
from cloudshard.ledger.records import InputRange
from tests.formats.helpers import RemoteStore, block_of, context_for, read, rows_of, stored, table_block, write

TABLE = pa.table(
    {
        "id": range(1000),
        "t": pa.array([f"text {at}" for at in range(1000)], pa.large_string()),
        "m": pa.array([{"k": [at]} for at in range(1000)]),
    }
)


def packed(table: pa.Table = TABLE, *, stream: bool = False, rows: int = 100, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


BODY = packed()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_files(compression: str | None) -> None:
    found = read("arrow", packed(compression=compression), "a.arrow")
    assert found.rows == TABLE.to_pylist()
    assert found.positions == list(range(1000))


@given(st.lists(st.integers(1, len(BODY) - 1), max_size=6), st.integers(1, 250))
@settings(max_examples=50, deadline=None)
def test_every_batch_belongs_to_exactly_one_range(cuts: list[int], block_rows: int) -> None:
    found = read("arrow", BODY, "a.arrow", cuts=sorted(set(cuts)), block_rows=block_rows)
    assert found.positions == list(range(1000))
    assert [row["id"] for row in found.rows] == list(range(1000))
    assert max(map(len, found.blocks)) <= block_rows


def test_a_range_reads_only_its_batches() -> None:
    big = pa.table({"t": ["x" * 1000] * 2000})
    body = packed(big, rows=100)
    store, info, url = stored(body, "a.arrow", RemoteStore())
    assert isinstance(store, RemoteStore)
    piece = get_format("arrow").split(store, info, url, info.size // 10, {})[-1]
    context = context_for(store, "a.arrow", url)
    found = [at for block in get_format("arrow").read(piece, context) for at in block.positions]
    assert found[-1] == 1999
    assert context.counts["bytes_read"] < info.size // 4


def test_dictionaries() -> None:
    table = pa.table({"d": pa.array(["a", "b", "a", None] * 50).dictionary_encode()})
    for cuts in ([], [900, 1500]):
        found = read("arrow", packed(table, rows=50), "a.arrow", cuts=cuts)
        assert found.rows == table.to_pylist()


def test_streams_are_one_shard() -> None:
    body = packed(stream=True)
    store, info, url = stored(body, "a.arrows")
    assert len(get_format("arrow").split(store, info, url, 100, {})) == 1
    assert read("arrow", body, "a.arrows").rows == TABLE.to_pylist()
    found = read("arrow", body, "misnamed.arrow", target_bytes=5000)
    assert found.positions == list(range(1000)), "a stream under a file's name is read once"


def test_columns() -> None:
    assert read("arrow", BODY, "a.arrow", options={"columns": ["m", "id"]}).rows[1] == {"m": {"k": [1]}, "id": 1}
    with pytest.raises(InputError, match="no column 'z'"):
        read("arrow", BODY, "a.arrow", options={"columns": ["z"]})


@pytest.mark.parametrize(
    "body", [b"ARROW1\0\0", BODY[:-1], BODY[:500], BODY[:-6] + b"ARROW2", b"junk junk junk junk", packed(stream=True)[:2000]]
)
def test_damaged(body: bytes) -> None:
    with pytest.raises(InputError, match=r"memory://t/a\.arrow"):
        read("arrow", body, "a.arrow")


@given(st.integers(0, len(BODY) - 1), st.integers(0, 255))
@settings(max_examples=80, deadline=None)
def test_a_damaged_byte_is_an_error_or_a_value_but_never_a_crash(at: int, value: int) -> None:
    body = bytearray(BODY)
    body[at] = value
    with contextlib.suppress(InputError):  # a value that is damaged but valid is no error: the format has no checksums
        read("arrow", bytes(body), "a.arrow")


def test_declared_schema() -> None:
    schema = pa.schema([("id", pa.int8())])
    with pytest.raises(RowError, match=r"column 'id': 128 .*row 128"):
        read("arrow", BODY, "a.arrow", schema=schema)
    found = read("arrow", BODY, "a.arrow", schema=schema, lenient=True)
    assert found.positions == list(range(128))
    assert len(found.bad) == 872


def test_sample_and_no_rows() -> None:
    store, info, url = stored(BODY, "a.arrow")
    assert [row["id"] for row in rows_of(get_format("arrow").sample(store, info, url, {}, rows=3))] == [0, 1, 2]
    for stream in (False, True):
        body, _ = (packed(TABLE.slice(0, 0), stream=stream), 0)
        store, info, url = stored(body, "a.arrow")
        (block,) = get_format("arrow").sample(store, info, url, {}, rows=3)
        assert block.table.schema.equals(TABLE.schema)
        assert read("arrow", body, "a.arrow").rows == []


@pytest.mark.parametrize("options", [{}, {"compression": "none"}, {"compression": "lz4", "batch_bytes": 5000}])
def test_round_trip(options: dict[str, Any]) -> None:
    body, rows = write("arrow", [table_block(TABLE.slice(0, 300)), table_block(TABLE.slice(300))], TABLE.schema, options)
    assert rows == 1000
    found = read("arrow", body, "a.arrow")
    assert found.rows == TABLE.to_pylist()
    assert found.blocks[0].table.schema.equals(TABLE.schema)
    assert pa.ipc.open_file(pa.BufferReader(write("arrow", [], TABLE.schema)[0])).read_all().schema.equals(TABLE.schema)
    assert read("arrow", write("arrow", [block_of([{"a": 1}])])[0], "a.arrow").rows == [{"a": 1}]


def test_batches_are_bounded() -> None:
    body, _ = write("arrow", [table_block(pa.table({"t": ["x" * 1000] * 5000}))], None, {"batch_bytes": 500_000})
    reader = pa.ipc.open_file(pa.BufferReader(body))
    assert reader.num_record_batches >= 8


def test_refusals() -> None:
    with pytest.raises(InputError, match="other types or in another order"):
        write("arrow", [table_block(TABLE), table_block(TABLE.select(["t"]))])
    with pytest.raises(RecipeError):
        write("arrow", [], TABLE.schema, {"compression": "gzip"})


# ---------------------------------------------------------------- runs

RUN = write("runs", [table_block(TABLE.slice(at, 100)) for at in range(0, 1000, 100)], TABLE.schema, {"batch_bytes": 2000})[0]


def run_rows(body: bytes, start: int, end: int, **bounds: Any) -> list[int]:
    store, info, url = stored(body, "a.run")
    piece = InputRange(url, info.size, info.etag, start, end, "rows")
    blocks = list(get_format("runs").read(piece, context_for(store, "a.run", url, **bounds)))
    assert [row["id"] for row in rows_of(blocks)] == [at for block in blocks for at in block.positions]
    return [at for block in blocks for at in block.positions]


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_ranges_of_rows(start: int, end: int, block_rows: int) -> None:
    start, end = min(start, end), max(start, end)
    assert run_rows(RUN, start, end, block_rows=block_rows) == list(range(start, end))


def test_a_run_is_an_lz4_stream_with_its_types() -> None:
    assert read("runs", RUN, "a.run").rows == TABLE.to_pylist()
    assert pa.ipc.open_stream(pa.BufferReader(RUN)).schema.equals(TABLE.schema)
    assert len(RUN) < TABLE.nbytes
    assert get_format("runs").suffix_for({}) == ".run"


def test_fewer_rows_than_committed_is_an_integrity_error() -> None:
    with pytest.raises(IntegrityError, match="the run has 1000 rows, its commit record says at least 1001"):
        run_rows(RUN, 0, 1001)


def test_a_truncated_run_is_noticed() -> None:
    for cut in (len(RUN) // 2, len(RUN) - 9, 100):
        with pytest.raises(IntegrityError):
            run_rows(RUN[:cut], 0, 1000)
