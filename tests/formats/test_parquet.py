"""Parquet: row groups by midpoint, push-down, exact positions, damaged files, and what the writer promises."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import InputChanged, InputError, RecipeError, RowError
from cloudshard.formats.parquet_write import leaf_traits
from cloudshard.formats.registry import get_format
from cloudshard.ledger.records import InputRange
from cloudshard.store.registry import open_object
from tests.formats.helpers import RemoteStore, block_of, context_for, read, rows_of, stored, table_block, write

TABLE = pa.table(
    {
        "id": pa.array(range(1000)),
        "text": pa.array([f"text number {number} " * 5 for number in range(1000)], pa.large_string()),
        "lang": pa.array([("en", "de", None)[number % 3] for number in range(1000)]),
        "meta": pa.array([{"ts": number * 10, "tags": [f"t{number % 3}"]} for number in range(1000)]),
    }
)


def packed(table: pa.Table = TABLE, row_group_size: int = 100, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, **options)
    return sink.getvalue()


BODY = packed()


def test_reads_everything_with_row_positions() -> None:
    found = read("parquet", BODY, "a.parquet")
    assert found.rows == TABLE.to_pylist()
    assert found.positions == list(range(1000))


@given(st.lists(st.integers(1, len(BODY) - 1), max_size=8), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_every_row_group_belongs_to_exactly_one_range(cuts: list[int], block_rows: int) -> None:
    found = read("parquet", BODY, "a.parquet", cuts=sorted(set(cuts)), block_rows=block_rows)
    assert found.positions == list(range(1000))
    assert max(map(len, found.blocks)) <= block_rows


def test_split_by_size_and_by_row_groups() -> None:
    store, info, url = stored(BODY, "a.parquet")
    pieces = get_format("parquet").split(store, info, url, len(BODY) // 4, {})
    assert len(pieces) == 5
    assert pieces[0].start == 0
    assert pieces[-1].end == len(BODY)
    assert all(one.end == two.start for one, two in pairwise(pieces))
    groups = InputRange(url, info.size, info.etag, 2, 4, "row_groups")
    blocks = list(get_format("parquet").read(groups, context_for(store, "a.parquet", url)))
    assert [at for block in blocks for at in block.positions] == list(range(200, 400))


def test_blocks_are_bounded_in_bytes() -> None:
    table = pa.table({"t": ["x" * 10] * 1000 + ["y" * 100_000] * 50})
    found = read("parquet", packed(table, 2000), "a.parquet", block_bytes=1 << 20)
    assert found.rows == table.to_pylist()
    assert max(block.nbytes for block in found.blocks) <= 2 << 20


def test_columns_and_order() -> None:
    found = read("parquet", BODY, "a.parquet", options={"columns": ["meta.ts", "id"]})
    assert found.blocks[0].table.schema.names == ["meta", "id"]
    assert found.rows[7] == {"meta": {"ts": 70}, "id": 7}


def test_an_unknown_column_names_the_file_and_what_it_has() -> None:
    with pytest.raises(InputError, match=r"no column 'nope'.*a.parquet.*id, text, lang, meta"):
        read("parquet", BODY, "a.parquet", options={"columns": ["nope"]})
    with pytest.raises(InputError, match="the filter names column 'nope'"):
        read("parquet", BODY, "a.parquet", options={"filter": [["nope", "=", 1]]})


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        ([["id", ">=", 990]], lambda row: row["id"] >= 990),
        ([["id", "<", 5], ["lang", "=", "en"]], lambda row: row["id"] < 5 and row["lang"] == "en"),
        ([[["id", "==", 3]], [["id", ">", 997]]], lambda row: row["id"] == 3 or row["id"] > 997),
        ([["lang", "!=", "en"]], lambda row: row["lang"] == "de"),
        ([["lang", "in", ["de", "fr"]], ["id", "<=", 100]], lambda row: row["lang"] == "de" and row["id"] <= 100),
        ([["lang", "not in", ["de"]]], lambda row: row["lang"] == "en"),
        ([["id", "in", [5, 555]]], lambda row: row["id"] in (5, 555)),
        ([["id", "<", 0]], lambda row: False),
    ],
)
def test_filter_is_exact_and_prunes(where: Any, keep: Any) -> None:
    found = read("parquet", BODY, "a.parquet", options={"filter": where, "columns": ["id"]})
    expected = [row["id"] for row in TABLE.to_pylist() if keep(row)]
    assert [row["id"] for row in found.rows] == expected
    assert found.positions == expected
    assert found.counts["rows_pruned"] == 1000 - len(expected)
    assert all(set(row) == {"id"} for row in found.rows)


def test_pruned_row_groups_are_not_read() -> None:
    found = read("parquet", BODY, "a.parquet", options={"filter": [["id", ">=", 950]]})
    assert found.counts["row_groups_skipped"] == 9
    assert len(found.rows) == 50


@pytest.mark.parametrize(
    ("term", "skipped"),
    [
        (["id", "<", 100], 9),
        (["id", "<=", 99], 9), (["id", "<=", 100], 8), (["id", ">", 899], 9),
        (["id", ">=", 900], 9), (["id", ">=", 899], 8),
        (["id", "=", 100], 9), (["id", "=", 199], 9), (["id", "=", 5000], 10),
        (["id", "in", [99, 100]], 8), (["id", "not in", [5]], 0), (["id", "!=", 5], 0),
    ],
)  # fmt: skip
def test_pruning_at_the_edges_of_row_groups(term: list[Any], skipped: int) -> None:
    found = read("parquet", BODY, "a.parquet", options={"filter": [term]})
    assert found.counts.get("row_groups_skipped", 0) == skipped
    expected = pq.read_table(io.BytesIO(BODY), filters=[tuple(term)]).column("id").to_pylist()
    assert [row["id"] for row in found.rows] == expected


def test_a_cut_exactly_at_a_midpoint_gives_the_row_group_to_one_range_only() -> None:
    metadata = pq.read_metadata(io.BytesIO(BODY))
    middles = []
    for at in range(metadata.num_row_groups):
        columns = [metadata.row_group(at).column(index) for index in range(metadata.num_columns)]
        low = min(min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset) for column in columns)
        high = max(
            min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
            for column in columns
        )
        middles.append((low + high) // 2)
    assert read("parquet", BODY, "a.parquet", cuts=middles).positions == list(range(1000))


@pytest.mark.parametrize("where", ["id > 5", [], [["id", "~", 5]], [["id", "in", 5]], [["id", 5]], {"id": 5}])
def test_malformed_filters(where: Any) -> None:
    with pytest.raises(RecipeError, match=r"filter|term|needs a list"):
        read("parquet", BODY, "a.parquet", options={"filter": where})


def test_a_filter_of_the_wrong_type_says_so() -> None:
    with pytest.raises(RecipeError, match="column of type int64 cannot be compared with 'five'"):
        read("parquet", BODY, "a.parquet", options={"filter": [["id", "<", "five"]]})


@pytest.mark.parametrize("body", [b"", b"PAR1", b"not a parquet file at all", BODY[:-1], BODY[: len(BODY) // 2], BODY[:-200] + b"x" * 200])
def test_damaged_files_name_the_object(body: bytes) -> None:
    store, info, url = stored(body, "a.parquet")
    piece = InputRange(url, info.size, info.etag, 0, max(1, info.size))
    with pytest.raises(InputError, match=r"not a readable Parquet file.*memory://t/a\.parquet"):
        list(get_format("parquet").read(piece, context_for(store, "a.parquet", url)))


def test_a_damaged_page_names_the_object() -> None:
    body = bytearray(packed(compression="zstd"))
    body[4:400] = b"\xff" * 396
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read("parquet", bytes(body), "a.parquet")


def test_another_version_is_input_changed(tmp_path: Path) -> None:
    for remote in (True, False):
        path = tmp_path / "a.parquet"
        path.write_bytes(BODY)
        store, key = (RemoteStore(), "a.parquet") if remote else open_object(str(path))
        if remote:
            store.put(key, BODY)
        info = store.head(key)
        store.put(key, packed(TABLE.slice(0, 500)))
        with pytest.raises(InputChanged):
            list(get_format("parquet").read(InputRange("u", info.size, info.etag, 0, info.size), context_for(store, key, "u")))


def test_remote_requests_are_coalesced() -> None:
    store = RemoteStore()
    found = read("parquet", packed(row_group_size=500), "a.parquet", store=store)
    assert found.rows == TABLE.to_pylist()
    assert len(store.gets) <= 6, "footer, and one request per row group of four columns"
    assert found.counts["bytes_read"] > 0


def test_local_files(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(BODY)
    store, key = open_object(str(tmp_path / "a.parquet"))
    info = store.head(key)
    blocks = list(get_format("parquet").read(InputRange("u", info.size, info.etag, 0, info.size), context_for(store, key, "u")))
    assert rows_of(blocks) == TABLE.to_pylist()


def test_declared_schema_types_and_missing_columns() -> None:
    schema = pa.schema([("later", pa.string()), ("id", pa.float64()), ("text", pa.large_string())])
    found = read("parquet", BODY, "a.parquet", schema=schema)
    assert found.blocks[0].table.schema.names == ["later", "id", "text", "lang", "meta"]
    assert found.rows[3]["id"] == 3.0
    assert found.rows[3]["later"] is None
    assert read("parquet", BODY, "a.parquet", schema=schema, options={"columns": ["id", "later"]}).rows[1] == {"id": 1.0, "later": None}


def test_a_value_that_does_not_fit_costs_its_row() -> None:
    body = packed(pa.table({"n": [1, 300, 2]}))
    schema = pa.schema([("n", pa.int8())])
    with pytest.raises(RowError, match=r"column 'n': 300.*a\.parquet, row 1"):
        read("parquet", body, "a.parquet", schema=schema)
    found = read("parquet", body, "a.parquet", schema=schema, lenient=True)
    assert found.rows == [{"n": 1}, {"n": 2}]
    assert found.positions == [0, 2]
    assert found.bad[0].row == {"n": 300}


def test_text_that_is_not_utf8_costs_its_row() -> None:
    raw = pa.array([b"ok", b"caf\xe9", b"fine"])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    nested = pa.StructArray.from_arrays([text], names=["t"])
    body = packed(pa.table({"n": [1, 2, 3], "t": text, "m": nested}))
    with pytest.raises(RowError, match=r"column 't': Invalid UTF8 sequence.*a\.parquet, row 1"):
        read("parquet", body, "a.parquet")
    found = read("parquet", body, "a.parquet", lenient=True)
    assert [row["t"] for row in found.rows] == ["ok", "fine"]
    assert found.positions == [0, 2]
    assert found.bad[0].row == {"n": 2, "t": b"caf\xe9", "m": None}


def test_types_that_do_not_go_together_name_the_file() -> None:
    with pytest.raises(InputError, match=r"column 'lang' is string, the schema says int64.*a.parquet"):
        read("parquet", BODY, "a.parquet", schema=pa.schema([("lang", pa.int64())]))


def test_sample_is_typed_and_reads_little() -> None:
    store, info, url = stored(packed(pa.table({"id": range(200_000), "t": ["x" * 100] * 200_000}), 50_000), "a.parquet", RemoteStore())
    assert isinstance(store, RemoteStore)
    blocks = list(get_format("parquet").sample(store, info, url, {}, rows=10))
    assert [at for block in blocks for at in block.positions] == [*range(5), *range(150_000, 150_005)]
    assert rows_of(blocks)[0]["id"] == 0


def test_sample_of_a_file_without_rows_still_gives_types() -> None:
    store, info, url = stored(packed(TABLE.slice(0, 0)), "a.parquet")
    (block,) = get_format("parquet").sample(store, info, url, {}, rows=10)
    assert block.table.schema.equals(TABLE.schema)
    assert len(block) == 0


# ---------------------------------------------------------------- writing


def test_round_trip_keeps_types() -> None:
    body, rows = write("parquet", [table_block(TABLE.slice(0, 300)), table_block(TABLE.slice(300))], TABLE.schema)
    assert rows == 1000
    assert pq.read_schema(io.BytesIO(body)).equals(TABLE.schema)
    assert read("parquet", body, "a.parquet").rows == TABLE.to_pylist()


def test_no_rows_is_typed_and_legal() -> None:
    body, rows = write("parquet", [], TABLE.schema)
    assert rows == 0
    table = pq.read_table(io.BytesIO(body))
    assert table.num_rows == 0
    assert table.schema.equals(TABLE.schema)


def test_row_groups_by_bytes() -> None:
    big = pa.table({"t": ["x" * 1000] * 3000})
    body, _ = write("parquet", [table_block(big)] * 2, big.schema, {"row_group_bytes": 1_000_000})
    metadata = pq.read_metadata(io.BytesIO(body))
    sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
    assert sum(sizes) == 6000
    assert max(sizes) <= 1500
    assert min(sizes[:-1]) >= 500


def test_default_encoding() -> None:
    body, _ = write("parquet", [table_block(TABLE)], TABLE.schema)
    group = pq.read_metadata(io.BytesIO(body)).row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    with_dictionary = {name for name, column in columns.items() if "RLE_DICTIONARY" in column.encodings}
    assert with_dictionary == {"lang", "meta.tags.list.element"}


def test_long_text_has_neither_dictionary_nor_statistics() -> None:
    table = pa.table({"id": range(500), "text": ["same long text " * 50] * 500, "m": [{"lang": "en"}] * 500})
    for options, expected in (
        ({}, {"id", "m.lang"}),
        ({"write_statistics": True}, {"id", "m.lang", "text"}),
        ({"write_statistics": False}, set()),
    ):
        body, _ = write("parquet", [table_block(table)], table.schema, options)
        group = pq.read_metadata(io.BytesIO(body)).row_group(0)
        columns = [group.column(at) for at in range(group.num_columns)]
        assert {column.path_in_schema for column in columns if column.is_stats_set} == expected
        assert [column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings] == ["m.lang"]


@pytest.mark.parametrize(
    ("options", "dictionaries"),
    [({"use_dictionary": True}, 5), ({"use_dictionary": False}, 0), ({"use_dictionary": ["text"]}, 1), ({"use_dictionary": []}, 0)],
)
def test_dictionary_options(options: dict[str, Any], dictionaries: int) -> None:
    body, _ = write("parquet", [table_block(TABLE)], TABLE.schema, {**options, "compression": "snappy"})
    group = pq.read_metadata(io.BytesIO(body)).row_group(0)
    assert sum("RLE_DICTIONARY" in group.column(at).encodings for at in range(group.num_columns)) == dictionaries
    assert group.column(0).compression == "SNAPPY"


def test_repeating_columns_of_odd_types() -> None:
    table = pa.table(
        {
            "null": pa.nulls(100),
            "flag": [True] * 100,
            "map": pa.array([[("k", "v")]] * 100, pa.map_(pa.string(), pa.string())),
            "vectors": pa.array([[1.0, 2.0]] * 100, pa.list_(pa.float64(), 2)),
            "unique": range(100),
        }
    )
    assert [leaf.path for leaf in leaf_traits(table) if leaf.repeats] == [
        "map.key_value.key",
        "map.key_value.value",
        "vectors.list.element",
    ]
    body, _ = write("parquet", [table_block(table)], table.schema)
    assert read("parquet", body, "a.parquet").rows == table.to_pylist()


def test_another_schema_is_refused() -> None:
    with pytest.raises(InputError, match="other types or in another order"):
        write("parquet", [table_block(TABLE), table_block(TABLE.select(["text", "id"]))])


def test_rows_without_a_schema() -> None:
    body, _ = write("parquet", [block_of([{"a": 1, "b": "x"}, {"a": 2}])])
    assert read("parquet", body, "a.parquet").rows == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zip"},
        {"compression_level": "high"},
        {"row_group_bytes": 0},
        {"use_dictionary": "yes"},
        {"write_statistics": "some"},
        {"compression": "snappy", "compression_level": 1},
        {"row_group_size": 5},
    ],
)
def test_wrong_writer_options(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        write("parquet", [], TABLE.schema, options)


def test_the_writer_fits_an_upload_stream() -> None:
    from cloudshard.store.memory import MemoryStore
    from cloudshard.store.upload import UploadStream

    store = MemoryStore("u")
    stream = UploadStream(store, "out.parquet", 4096)
    writer = get_format("parquet").open_writer(stream, TABLE.schema, {})
    writer.write(table_block(TABLE))
    writer.finish()
    pending = stream.finish_parts()
    store.finish_upload(pending.upload, pending.parts)
    assert read("parquet", store.get("out.parquet"), "b.parquet").rows == TABLE.to_pylist()
