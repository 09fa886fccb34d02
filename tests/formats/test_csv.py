"""CSV: quoting, ragged rows, types, positions, and round trips."""

from __future__ import annotations

import csv as python_csv
import gzip
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import InputError, RecipeError, RowError, SchemaError
from cloudshard.formats.registry import get_format
from tests.formats.helpers import block_of, read, rows_of, stored, table_block, write

SIMPLE = b'id,name,score\n1,"a, b",0.5\n2,"line\nbreak",\n3,"say ""hi""",2\n'
ROWS = [
    {"id": 1, "name": "a, b", "score": 0.5},
    {"id": 2, "name": "line\nbreak", "score": None},
    {"id": 3, "name": 'say "hi"', "score": 2.0},
]


def csv(body: bytes, key: str = "a.csv", **options: Any) -> Any:
    lenient = options.pop("lenient", False)
    schema = options.pop("schema", None)
    return read("csv", body, key, options=options, lenient=lenient, schema=schema)


def test_rows_types_and_byte_positions() -> None:
    found = csv(SIMPLE)
    assert found.rows == ROWS
    assert found.positions == [SIMPLE.index(b"1,"), SIMPLE.index(b"2,"), SIMPLE.index(b'3,"say')]


@pytest.mark.parametrize("body", [SIMPLE.replace(b"\n", b"\r\n").replace(b"line\r\n", b"line\n"), b"\xef\xbb\xbf" + SIMPLE, SIMPLE[:-1]])
def test_crlf_bom_and_no_last_newline(body: bytes) -> None:
    assert csv(body).rows == ROWS


def test_compressed_and_tabs() -> None:
    assert csv(gzip.compress(SIMPLE), "a.csv.gz").rows == ROWS
    assert csv(b"a\tb\n1\tx,y\n", "a.tsv").rows == [{"a": 1, "b": "x,y"}]
    assert csv(b"a;b\n1;'x;y'\n", delimiter=";", quote="'").rows == [{"a": 1, "b": "x;y"}]


RAGGED = b"a,b\n1,2\n3\n4,5,6\n7,8\n"


def test_ragged_rows_are_refused_with_their_offset() -> None:
    with pytest.raises(RowError, match=r"the record has 1 values, the file has 2 columns .*a\.csv, byte 8"):
        csv(RAGGED)
    found = csv(RAGGED, lenient=True)
    assert found.rows == [{"a": 1, "b": 2}, {"a": 7, "b": 8}]
    assert [(bad.error.position, bad.row) for bad in found.bad] == [(8, b"3\n"), (10, b"4,5,6\n")]


def test_a_value_of_another_type_costs_its_row() -> None:
    body = b"n,s\n" + b"".join(b"%d,x\n" % number for number in range(3000)) + b"many,y\n7,z\n"
    with pytest.raises(RowError, match=r"column 'n': 'many' \(str\) is no int64"):
        csv(body)
    found = csv(body, lenient=True)
    assert len(found.rows) == 3001
    assert found.rows[-1] == {"n": 7, "s": "z"}
    assert found.bad[0].row == b"many,y\n"
    assert found.bad[0].error.position == body.index(b"many")


def test_invalid_utf8_costs_its_row() -> None:
    found = csv(b"a,b\nx,1\ncaf\xe9,2\ny,3\n", lenient=True)
    assert [row["a"] for row in found.rows] == ["x", "y"]
    assert "invalid UTF-8 (0xe9) at byte 3" in found.bad[0].error.reason
    assert csv(b"a,b\ncaf\xe9,2\n", encoding="latin-1").rows == [{"a": "café", "b": 2}]


def test_an_open_quote_is_refused_and_keeps_what_was_before() -> None:
    found = csv(b'a,b\n1,x\n2,"open\n3,y\n', lenient=True)
    assert found.rows == [{"a": 1, "b": "x"}]
    assert "a quote is never closed" in found.bad[0].error.reason
    assert found.bad[0].error.position == 8


def test_blank_lines() -> None:
    found = csv(b"a\n1\n\n2\n\r\n")
    assert found.rows == [{"a": 1}, {"a": 2}]
    assert found.counts["blank_lines"] == 2
    with pytest.raises(RowError, match="a blank line"):
        csv(b"a\n1\n\n2\n", blank_lines="error")


def test_null_and_empty_text() -> None:
    assert csv(b'a,b\n,1\n"",2\nNA,3\n').rows == [{"a": None, "b": 1}, {"a": "", "b": 2}, {"a": "NA", "b": 3}]
    assert csv(b"a,b\nNA,1\n,2\n", null_values=["NA"]).rows == [{"a": None, "b": 1}, {"a": "", "b": 2}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["1e3"], pa.float64()),
        (["007", "12"], pa.large_string()),
        (["0", "0.5"], pa.float64()),
        (["true", "False"], pa.bool_()),
        (["2024-01-02"], pa.date32()),
        (["2024-01-02T03:04:05"], pa.timestamp("us")),
        (["2024-01-02T03:04:05Z"], pa.timestamp("us", "UTC")),
        (["1", "x"], pa.large_string()),
        (["99999999999999999999"], pa.float64()),
        (["", ""], pa.null()),
    ],
)
def test_inferred_types(values: list[str], kind: pa.DataType) -> None:
    body = "v,w\n" + "".join(f"{value},x\n" for value in values)
    assert csv(body.encode()).blocks[0].table.schema.field("v").type == kind


def test_declared_types() -> None:
    body = b"zip,n\n01234,5\n"
    assert csv(body, types={"n": "float64"}).rows == [{"zip": "01234", "n": 5.0}]
    schema = pa.schema([("zip", pa.large_string()), ("n", pa.decimal128(5, 2))])
    assert csv(body, schema=schema).blocks[0].table.schema.equals(schema)
    with pytest.raises(RecipeError, match="unknown type 'number' of column 'n'"):
        csv(body, types={"n": "number"})


def test_headers() -> None:
    assert csv(b"1,x\n2,y\n", header=False).rows == [{"f0": 1, "f1": "x"}, {"f0": 2, "f1": "y"}]
    assert csv(b"1,x\n", header=False, column_names=["n", "s"]).rows == [{"n": 1, "s": "x"}]
    assert csv(b"old,names\n1,x\n", column_names=["n", "s"]).rows == [{"n": 1, "s": "x"}]
    assert csv(SIMPLE, columns=["score", "id"]).rows[0] == {"score": 0.5, "id": 1}
    with pytest.raises(InputError, match="two columns have the name 'a'"):
        csv(b"a,a\n1,2\n")
    with pytest.raises(InputError, match=r"no column 'z'.*id, name, score"):
        csv(SIMPLE, columns=["z"])
    with pytest.raises(InputError, match="column_names has 1 names, the file has 2"):
        csv(b"1,2\n", header=False, column_names=["n"])


@pytest.mark.parametrize("body", [b"", b"\n\n", b"a,b\n"])
def test_nothing_to_read(body: bytes) -> None:
    assert csv(body).rows == []


def test_sample_of_a_header_alone_gives_columns() -> None:
    store, info, url = stored(b"a,b\n", "a.csv")
    (block,) = get_format("csv").sample(store, info, url, {"types": {"b": "int64"}}, rows=5)
    assert block.table.schema.field("b").type == pa.int64()
    assert block.table.schema.names == ["a", "b"]


def test_sample() -> None:
    store, info, url = stored(SIMPLE, "a.csv")
    assert rows_of(get_format("csv").sample(store, info, url, {}, rows=2)) == ROWS[:2]


@given(st.lists(st.integers(1, 3000), max_size=6))
@settings(max_examples=40, deadline=None)
def test_splittable_ranges_cover_every_row_once(cuts: list[int]) -> None:
    body = b"id,text\n" + b"".join(b"%d,t%d\n" % (number, number) for number in range(300))
    found = read("csv", body, "a.csv", options={"splittable": True}, cuts=[at for at in cuts if at < len(body)])
    assert [row["id"] for row in found.rows] == list(range(300))
    assert found.positions == sorted(set(found.positions))


def test_only_the_promise_makes_ranges() -> None:
    body = b"id\n" + b"1\n" * 1000
    store, info, url = stored(body, "a.csv")
    assert len(get_format("csv").split(store, info, url, 100, {})) == 1
    assert len(get_format("csv").split(store, info, url, 100, {"splittable": True})) > 10
    assert len(read("csv", body, "a.csv", options={"splittable": True}, target_bytes=100).rows) == 1000


CELL = st.text(alphabet=st.sampled_from(list('ab,";\n\r \té中')), max_size=6)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_reads_what_pythons_own_writer_writes(cells: list[tuple[str, str]], block_rows: int) -> None:
    sink = io.StringIO(newline="")
    writer = python_csv.writer(sink, quoting=python_csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["p", "q"])
    writer.writerows(cells)
    schema = pa.schema([("p", pa.large_string()), ("q", pa.large_string())])
    found = read("csv", sink.getvalue().encode(), "a.csv", schema=schema, block_rows=block_rows)
    assert [(row["p"], row["q"]) for row in found.rows] == cells


@given(st.lists(st.tuples(CELL | st.none(), st.integers(-(2**63), 2**63 - 1) | st.none()), max_size=12), st.sampled_from(["needed", "all"]))
@settings(max_examples=50, deadline=None)
def test_round_trip(cells: list[tuple[Any, Any]], quoting: str) -> None:
    schema = pa.schema([("p", pa.large_string()), ("q", pa.int64())])
    table = pa.Table.from_pylist([{"p": p, "q": q} for p, q in cells], schema=schema)
    body, rows = write("csv", [table_block(table)], schema, {"quoting": quoting})
    assert rows == len(cells)
    assert read("csv", body, "a.csv", schema=schema).rows == table.to_pylist()


def test_what_csv_lacks() -> None:
    table = pa.table({"l": [[1, 2], None], "m": [{"a": "x"}, None], "b": [b"\x00", None], "d": pa.array(["u", "u"]).dictionary_encode()})
    body, _ = write("csv", [table_block(table)])
    assert [list(row.values()) for row in read("csv", body, "a.csv", options={"types": {"b": "string"}}).rows] == [
        ["[1,2]", '{"a":"x"}', "AA==", "u"],
        [None, None, None, "u"],
    ]


@pytest.mark.parametrize(("options", "suffix"), [({}, ".csv"), ({"compression": "gzip"}, ".csv.gz"), ({"delimiter": "\t"}, ".tsv")])
def test_suffixes_and_compression(options: dict[str, Any], suffix: str) -> None:
    table = pa.table({"a": [1, 2]})
    assert get_format("csv").suffix_for(options) == suffix
    assert read("csv", write("csv", [table_block(table)], None, options)[0], "x" + suffix).rows == [{"a": 1}, {"a": 2}]


def test_writing_rows_and_nothing() -> None:
    assert read("csv", write("csv", [block_of([{"a": 1}, {"a": None}])])[0], "x.csv").rows == [{"a": 1}]  # a blank line is no row
    assert write("csv", [], pa.schema([("a", pa.int64())]))[0] == b'"a"\n'
    with pytest.raises(SchemaError, match="unknown column 'b'"):
        write("csv", [block_of([{"a": 1}]), block_of([{"b": 1}])])


@pytest.mark.parametrize(
    "options", [{"delimiter": ""}, {"delimiter": "ab"}, {"encoding": "utf-16"}, {"encoding": "klingon"}, {"header": "no"}, {"types": 5}]
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        csv(SIMPLE, **options)
