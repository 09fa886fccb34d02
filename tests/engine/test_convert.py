"""Between rows and tables: types that grow with the rows, rows that fit nowhere, and what batch functions get and give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cloudshard.engine.block import Block, Origin
from cloudshard.engine.convert import RowTables, WrongBatch, given, size_of, table_of, taken
from tests.engine.harness import AttemptFailure, AttemptResult, Bench, step


def made(rows: list[dict[str, Any]], tables: RowTables | None = None) -> tuple[pa.Table, list[tuple[int, str, str]]]:
    reports: list[tuple[int, str, str]] = []
    kept, table = (tables or RowTables()).make(rows, lambda *report: reports.append(report))
    assert table.num_rows == (len(rows) if kept is None else len(kept))
    return table, reports


def test_a_column_keeps_its_type_when_a_later_batch_lacks_it() -> None:
    tables = RowTables()
    made([{"a": 1, "b": "x"}], tables)
    table, _ = made([{"a": 2}], tables)
    assert table.schema == pa.schema([("a", pa.int64()), ("b", pa.large_string())])
    assert table["b"].to_pylist() == [None]


def test_types_are_widened_as_rows_need_it() -> None:
    tables = RowTables(pa.schema([("a", pa.int64())]))
    table, reports = made([{"a": 1.5, "new": True}], tables)
    assert table.schema == pa.schema([("a", pa.float64()), ("new", pa.bool_())])
    assert not reports


def test_a_row_whose_values_go_together_with_nothing_is_reported_alone() -> None:
    table, reports = made([{"a": 1}, {"a": "text"}, {"a": 3}])
    assert table["a"].to_pylist() == [1, 3]
    assert [index for index, _, _ in reports] == [1]
    assert "'a'" in reports[0][2]


def test_such_a_row_follows_the_steps_policy() -> None:
    rows = [{"a": 1}, {"a": "text"}, {"a": 3}]
    strict = Bench([step("map_batches", lambda table: table, name="02-b")], [rows]).run()[0]
    assert isinstance(strict, AttemptFailure)
    assert "02-b" in str(strict.error)
    assert "byte 8" in str(strict.error)
    bench = Bench([step("map_batches", lambda table: table, on_error="quarantine")], [rows])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert bench.out.rows[0] == [{"a": 1}, {"a": 3}]
    assert bench.out.quarantine[0][0]["row"] == '{"a":"text"}'


def test_a_steps_types_do_not_depend_on_other_items() -> None:
    seen: list[pa.DataType] = []
    bench = Bench([step("map_batches", lambda table: seen.append(table.schema.field("a").type) or table)], [[{"a": 1.5}], [{"a": 1}]])
    bench.run()
    assert seen == [pa.float64(), pa.int64()]


def test_rows_are_never_a_table_when_the_function_wants_rows() -> None:
    rows = [{"a": 1}, {"b": {1, 2}.__class__.__name__}, {"a": "text", "c": None}]
    given_rows: list[Any] = []
    bench = Bench([step("map_batches", lambda batch: given_rows.extend(batch) or batch, **{"as": "rows"})], [rows])
    bench.run()
    assert given_rows == rows  # absent stays absent, types may differ
    assert bench.out.rows[0] == rows


def test_pandas_does_not_round_integers_beside_nulls() -> None:
    table = pa.table({"n": pa.array([2**60 + 1, None]), "f": pa.array([True, None]), "x": [1.5, 2.5]})
    frame = given(table, "pandas")
    assert int(frame["n"][0]) == 2**60 + 1
    assert frame["n"].dtype == "Int64"
    assert frame["f"].dtype == "boolean"
    assert taken(frame).schema.field("n").type == pa.int64()
    plain = given(pa.table({"n": [1, 2]}), "pandas")
    assert plain["n"].dtype == "int64"


@pytest.mark.parametrize(
    "result",
    [
        pa.table({"a": [1, 2]}),
        pa.record_batch({"a": [1, 2]}),
        pd.DataFrame({"a": [1, 2]}),
        pl.DataFrame({"a": [1, 2]}),
        [{"a": 1}, {"a": 2}],
        {"a": [1, 2]},
        {"a": np.array([1, 2])},
    ],
    ids=lambda value: type(value).__module__.partition(".")[0] + "-" + type(value).__name__,
)
def test_a_batch_may_come_back_in_any_form(result: Any) -> None:
    back = taken(result)
    rows = back if isinstance(back, list) else back.to_pylist()
    assert rows == [{"a": 1}, {"a": 2}]


def test_a_named_index_of_pandas_is_data_an_unnamed_one_is_not() -> None:
    frame = pd.DataFrame({"k": ["x", "y", "x"], "n": [1, 2, 3]})
    assert set(taken(frame.groupby("k").sum()).column_names) == {"k", "n"}
    assert taken(frame[frame.n > 1]).column_names == ["k", "n"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "NoneType"),
        (7, "int"),
        ("text", "str"),
        ([{"a": 1}, 3], "int in it"),
        ({"a": [1, 2], "b": [1]}, "different lengths: a 2, b 1"),
        ({"a": 1}, "different lengths"),
    ],
)
def test_what_is_no_batch_is_said_clearly(result: Any, said: str) -> None:
    with pytest.raises(WrongBatch, match=said):
        taken(result)


def test_a_wrong_result_is_asked_for_once() -> None:
    calls: list[int] = []
    bench = Bench([step("map_batches", lambda table: calls.append(1), on_error="drop", batch_rows=100)], [[{"n": n} for n in range(50)]])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert (len(calls), result.counts.dropped) == (1, 50)


def test_empty_rows_are_an_empty_table() -> None:
    assert table_of([]).num_rows == 0


def test_sizes_are_those_of_the_rows_not_of_what_was_read() -> None:
    small = Block(Origin(0, "x"), range(10), rows=[{"text": "x" * 1000, "parts": ["y" * 100] * 10}] * 10, nbytes=10)
    assert 15_000 < size_of(small) < 30_000
    assert size_of(Block(Origin(0, "x"), range(3), table=pa.table({"a": [1, 2, 3]}))) == 24


def test_a_function_that_changes_rows_and_fails_is_given_them_unchanged_again() -> None:
    def count(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            row["n"] += 1
        if len(rows) > 2:
            raise RuntimeError("too many")
        return rows

    bench = Bench([step("map_batches", count, **{"as": "rows"})], [[{"n": n} for n in range(9)]])
    bench.run()
    assert [row["n"] for row in bench.out.rows[0]] == list(range(1, 10))
