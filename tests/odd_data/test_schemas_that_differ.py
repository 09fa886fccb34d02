"""FIELD.md, "Schemas that differ": each line, from files through the decision to the parts of the output."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from cloudshard.engine.block import Row
from cloudshard.errors import SchemaError
from cloudshard.formats import columns
from cloudshard.formats.schema import Conformer, decode_schema, encode_schema, infer, unify
from tests.formats.helpers import block_of, read, rows_of, table_block, write


def decide(*files: list[Row], **options: Any) -> pa.Schema:
    """The schema of the whole input, each file seen on its own, as planning does."""
    return unify([(f"memory://t/{number}.jsonl", infer(rows, **options)) for number, rows in enumerate(files)], **options)


def parts(schema: pa.Schema, *files: list[Row], new_columns: Any = "error") -> list[pa.Table]:
    """Each file written by its own worker with the decided schema, and read again."""
    made = []
    for rows in files:
        block = Conformer(schema, new_columns).conform(block_of(rows), _refuse)
        body, _ = write("parquet", [block], block.table.schema)
        made.append(pa.concat_tables([found.table for found in read("parquet", body, "p.parquet").blocks] or [schema.empty_table()]))
    return made


def _refuse(index: int, column: str, reason: str) -> None:
    raise AssertionError((index, column, reason))


def test_null_only_column_in_some_files() -> None:
    files = [{"a": None, "b": 1}], [{"a": "x", "b": 2}], [{"b": 3}]
    schema = decide(*files)
    assert schema.field("a").type == pa.large_string()
    tables = parts(schema, *files)
    assert {table.schema for table in tables} == {schema} or all(table.schema.equals(schema) for table in tables)
    assert [table.column("a").to_pylist() for table in tables] == [[None], ["x"], [None]]


def test_null_only_column_in_all_files_says_to_declare_when_a_value_comes() -> None:
    schema = decide([{"a": None}], [{"a": None}])
    assert schema.field("a").type == pa.null()
    found: list[tuple[int, str, str]] = []
    block = Conformer(schema).conform(block_of([{"a": None}, {"a": 5}]), lambda *what: found.append(what))
    assert block.positions == [0]
    assert found[0][:2] == (1, "a")
    assert "nothing but null in the samples; declare its type" in found[0][2]


def test_int_in_one_file_float_in_another() -> None:
    files = [{"x": 1}, {"x": 2**53}], [{"x": 1.5}]
    schema = decide(*files)
    assert schema.field("x").type == pa.float64()
    assert [table.column("x").to_pylist() for table in parts(schema, *files)] == [[1.0, float(2**53)], [1.5]]


def test_an_int_that_float_would_round_is_refused_not_rounded() -> None:
    found: list[tuple[int, str, str]] = []
    block = Conformer(pa.schema([("x", pa.float64())])).conform(block_of([{"x": 1}, {"x": 2**53 + 1}]), lambda *what: found.append(what))
    assert block.table.to_pylist() == [{"x": 1.0}]
    assert found == [(1, "x", "9007199254740993 (int) cannot be held exactly by double")]


def test_int_in_one_file_text_in_another_names_both() -> None:
    message = r"column 'x' is int64 in memory://t/0\.jsonl and large_string in memory://t/2\.jsonl.*widen_to_string"
    with pytest.raises(SchemaError, match=message):
        decide([{"x": 1}], [{"x": None}], [{"x": "one"}])


def test_int_and_text_in_one_file_names_both_types() -> None:
    with pytest.raises(SchemaError, match=r"column 'm\.x' holds both int64 and large_string"):
        infer([{"m": {"x": 1}}, {"m": {"x": "one"}}])


def test_widen_to_string_keeps_both() -> None:
    files = [{"x": 1}, {"x": {"a": [True]}}], [{"x": "one"}, {"x": None}, {"x": 2.5}]
    schema = decide(*files, widen_to_string=True)
    assert schema.field("x").type == pa.large_string()
    schema = decode_schema(encode_schema(schema))
    tables = [Conformer(schema).conform(block_of(rows), _refuse).table for rows in files]
    assert [table.column("x").to_pylist() for table in tables] == [["1", '{"a":[true]}'], ["one", None, "2.5"]]


def test_keys_that_appear_late_between_files() -> None:
    files = [{"a": 1}], [{"a": 1, "late": "x"}]
    schema = decide(*files)
    assert schema.names == ["a", "late"]
    assert [table.to_pylist() for table in parts(schema, *files)] == [[{"a": 1, "late": None}], [{"a": 1, "late": "x"}]]


LATE = [{"a": 1}, {"a": 2, "new": "n", "m": {"k": [1]}}, {"a": 3}]
SCHEMA = pa.schema([("a", pa.int64())])


class TestLateUnknownKeys:
    """A key that no sample had never vanishes in silence."""

    def test_error_names_column_and_row(self) -> None:
        with pytest.raises(SchemaError, match=r"unknown column 'new', 'm'.*memory://t/x, row 1.*new_columns"):
            Conformer(SCHEMA).conform(block_of(LATE), _refuse)

    def test_quarantine_loses_only_that_row(self) -> None:
        found: list[tuple[int, str, str]] = []
        block = Conformer(SCHEMA, "quarantine").conform(block_of(LATE), lambda *what: found.append(what))
        assert block.table.column("a").to_pylist() == [1, 3]
        assert block.positions == [0, 2]
        assert found == [(1, "new", "unknown column 'new', 'm': the schema does not have it")]

    def test_drop_counts(self) -> None:
        conformer = Conformer(SCHEMA, "drop")
        for _ in range(2):
            assert conformer.conform(block_of(LATE), _refuse).table.column("a").to_pylist() == [1, 2, 3]
        assert conformer.dropped == {"new": 2, "m": 2}

    def test_collect_keeps_them_as_json(self) -> None:
        conformer = Conformer(SCHEMA, "collect")
        table = conformer.conform(block_of(LATE), _refuse).table
        assert table.schema.names == ["a", "_extra"]
        assert table.column("_extra").to_pylist() == [None, '{"new":"n","m":{"k":[1]}}', None]

    def test_one_lost_key_and_one_new_key_do_not_cancel_out(self) -> None:
        with pytest.raises(SchemaError, match="unknown column 'b'"):
            Conformer(SCHEMA).conform(block_of([{"a": 1}, {"b": 2}]), _refuse)


def test_nested_structs_that_gain_fields() -> None:
    files = [{"m": {"a": 1}}], [{"m": {"a": 2, "b": {"c": "x"}}}], [{"m": {"b": {"c": None, "d": 1.5}}}], [{"m": None}]
    schema = decide(*files)
    tables = parts(schema, *files)
    assert all(table.schema.equals(schema) for table in tables)
    assert [table.column("m").to_pylist()[0] for table in tables] == [
        {"a": 1, "b": None},
        {"a": 2, "b": {"c": "x", "d": None}},
        {"a": None, "b": {"c": None, "d": 1.5}},
        None,
    ]


@pytest.mark.parametrize("row", [{"m": {"a": 1, "z": 9}}, {"m": {"a": 1, "l": [{"b": 1}, {"b": 2, "z": 9}]}}])
def test_unknown_nested_keys_do_not_vanish(row: Row) -> None:
    schema = pa.schema([("m", pa.struct([("a", pa.int64()), ("l", pa.list_(pa.struct([("b", pa.int64())])))]))])
    place = "m.z" if "z" in row["m"] else "m.l[].z"
    with pytest.raises(SchemaError, match=f"unknown column '{place}'".replace("[", r"\[").replace("]", r"\]")):
        Conformer(schema).conform(block_of([{"m": {"a": 0}}, row]), _refuse)
    table = Conformer(schema, "collect").conform(block_of([{"m": {"a": 0}}, row]), _refuse).table
    assert table.column("_extra").to_pylist() == [None, f'{{"{place}":9}}']
    from_table = Conformer(schema, "collect").conform(table_block(pa.Table.from_pylist([{"m": {"a": 0}}, row])), _refuse).table
    assert from_table.column("_extra").to_pylist() == [None, f'{{"{place}":9}}']


def test_empty_partitions_are_typed() -> None:
    schema = decide([{"a": 1, "m": {"t": ["x"]}}], [])
    (empty,) = parts(schema, [])
    assert empty.schema.equals(schema)
    untyped = table_block(pa.table({"a": pa.nulls(0), "m": pa.nulls(0)}))
    assert Conformer(schema).conform(untyped, _refuse).table.schema.equals(schema)


def test_a_table_of_nulls_takes_the_types_of_the_others() -> None:
    schema = decide([{"a": 1, "m": {"t": ["x"]}, "l": [1.5]}])
    nulls = table_block(pa.table({"a": pa.nulls(2), "l": pa.nulls(2)}))
    assert Conformer(schema).conform(nulls, _refuse).table.to_pylist() == [{"a": None, "m": None, "l": None}] * 2


def test_list_of_null() -> None:
    files = [{"l": [None, None]}, {"l": []}], [{"l": [1]}], [{"l": [2.5, None]}]
    schema = decide(*files)
    assert schema.field("l").type == pa.list_(pa.float64())
    assert [table.column("l").to_pylist() for table in parts(schema, *files)] == [[[None, None], []], [[1.0]], [[2.5, None]]]
    nulls = pa.table({"l": pa.array([[None], None, []], pa.list_(pa.null()))})
    assert Conformer(schema).conform(table_block(nulls), _refuse).table.column("l").to_pylist() == [[None], None, []]


NAIVE, AWARE = dt.datetime(2024, 1, 2, 3), dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=8)))


def test_timestamps_with_and_without_zone() -> None:
    with pytest.raises(
        SchemaError, match=r"column 't' is timestamp\[us\] in .*0\.jsonl and timestamp\[us, tz=UTC\] in .*1\.jsonl .*time zone"
    ):
        decide([{"t": NAIVE}], [{"t": AWARE}])
    with pytest.raises(SchemaError, match="column 't' holds both"):
        infer([{"t": NAIVE}, {"t": AWARE}])


@pytest.mark.parametrize(("kind", "value", "reason"), [("naive", AWARE, "has a time zone"), ("aware", NAIVE, "has no time zone")])
def test_a_late_timestamp_of_the_other_kind_is_refused_not_shifted(kind: str, value: dt.datetime, reason: str) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC" if kind == "aware" else None))])
    good = AWARE if kind == "aware" else NAIVE
    found: list[tuple[int, str, str]] = []
    block = Conformer(schema).conform(block_of([{"t": good}, {"t": value}, {"t": None}]), lambda *what: found.append(what))
    assert block.positions == [0, 2]
    assert reason in found[0][2]
    with pytest.raises(SchemaError, match="time zone"):
        Conformer(schema).conform(table_block(pa.table({"t": [value]})), _refuse)


def test_zones_that_differ_keep_their_instants() -> None:
    berlin = pa.table({"t": pa.array([0], pa.timestamp("s", "Europe/Berlin"))})
    utc = pa.table({"t": pa.array([1], pa.timestamp("us", "UTC"))})
    schema = unify([("a", berlin.schema), ("b", utc.schema)])
    assert schema.field("t").type == pa.timestamp("us", "UTC")
    both = [Conformer(schema).conform(table_block(table), _refuse).table for table in (berlin, utc)]
    assert [table.column("t").cast(pa.int64()).to_pylist() for table in both] == [[0], [1]]


class TestStringColumnsBeyond2GiB:
    """The logic with a smaller limit: Arrow answers with several chunks where 32-bit offsets do not reach."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = pa.array

        def to_arrow(values: Any, kind: pa.DataType) -> Any:
            limit = 100
            if kind == pa.string() and sum(len(value or "") for value in values) > limit:
                half = len(values) // 2
                return pa.chunked_array([whole(values[:half], kind), whole(values[half:], kind)])
            return whole(values, kind)

        monkeypatch.setattr(columns, "to_arrow", to_arrow)

    ROWS = [{"s": "x" * 30, "m": {"s": "y" * 30}, "l": ["z" * 30]} for _ in range(9)]

    def test_large_types_need_no_split(self) -> None:
        schema = infer(self.ROWS)
        table = Conformer(schema).conform(block_of(self.ROWS), _refuse).table
        assert table.column("m").num_chunks == 1
        assert table.to_pylist() == self.ROWS

    def test_declared_small_types_are_split_by_rows(self) -> None:
        schema = pa.schema([("s", pa.string()), ("m", pa.struct([("s", pa.string())])), ("l", pa.list_(pa.string()))])
        block = Conformer(schema).conform(block_of(self.ROWS), _refuse)
        assert block.table.column("m").num_chunks > 1
        assert block.table.to_pylist() == self.ROWS
        assert rows_of([block]) == self.ROWS
        assert Conformer(schema).table(self.ROWS, _refuse).to_pylist() == self.ROWS

    def test_bad_rows_keep_their_index_over_the_split(self) -> None:
        schema = pa.schema([("m", pa.struct([("s", pa.string())]))])
        rows: list[Row] = [{"m": {"s": "y" * 30}} for _ in range(9)]
        rows[7] = {"m": {"s": 5}}
        found: list[tuple[int, str, str]] = []
        block = Conformer(schema).conform(block_of(rows), lambda *what: found.append(what))
        assert list(block.positions) == [0, 1, 2, 3, 4, 5, 6, 8]
        assert [what[:2] for what in found] == [(7, "m.s")]

    def test_one_row_that_is_too_large_says_what_to_declare(self) -> None:
        with pytest.raises(SchemaError, match=r"more than 2 GiB.*memory://t/x, row 0.*large_string"):
            Conformer(pa.schema([("m", pa.struct([("s", pa.string())]))])).conform(block_of([{"m": {"s": "y" * 101}}]), _refuse)


def test_one_value_of_the_wrong_type_costs_only_its_row() -> None:
    rows: list[Row] = [{"n": number, "m": {"l": [number]}} for number in range(1000)]
    rows[300] = {"n": "three hundred", "m": {"l": [1]}}
    rows[700] = {"n": 1, "m": {"l": [1, "x"]}}
    found: list[tuple[int, str, str]] = []
    block = Conformer(pa.schema([("n", pa.int64()), ("m", pa.struct([("l", pa.list_(pa.int64()))]))])).conform(
        block_of(rows), lambda *what: found.append(what)
    )
    assert block.table.num_rows == 998
    assert list(block.positions) == [at for at in range(1000) if at not in (300, 700)]
    assert found == [(300, "n", "'three hundred' (str) is no integer"), (700, "m.l[]", "'x' (str) is no integer")]
