"""Values of every kind to every type: exactly, or refused with the reason; never converted in silence."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.engine.block import Row
from cloudshard.errors import SchemaError
from cloudshard.formats.infer import infer_type
from cloudshard.formats.schema import Conformer, infer
from tests.formats.helpers import block_of, table_block

UTC = dt.UTC


def one(value: Any, kind: pa.DataType, *, nullable: bool = True) -> tuple[list[Any], list[str]]:
    """([the value as it comes out], [reason])."""
    reasons: list[str] = []
    schema = pa.schema([pa.field("v", kind, nullable)])
    table = Conformer(schema).conform(block_of([{"v": value}]), lambda index, column, reason: reasons.append(f"{column}: {reason}")).table
    assert table.schema.equals(schema)
    table.validate(full=True)
    return table.column("v").to_pylist(), reasons


@pytest.mark.parametrize(
    ("value", "kind", "held"),
    [
        (5, pa.int64(), 5),
        (5.0, pa.int64(), 5),
        (np.int16(5), pa.int32(), 5),
        (np.float64(5.0), pa.int8(), 5),
        (5, pa.float64(), 5.0),
        (np.float32(0.5), pa.float64(), 0.5),
        (Decimal("0.5"), pa.float64(), 0.5),
        (np.bool_(True), pa.bool_(), True),
        ("x", pa.string_view(), "x"),
        (uuid.UUID(int=1), pa.large_string(), str(uuid.UUID(int=1))),
        (bytearray(b"x"), pa.large_binary(), b"x"),
        (memoryview(b"x"), pa.binary(), b"x"),
        ("2024-01-02T03:04:05Z", pa.timestamp("us", "UTC"), dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-01-02", pa.timestamp("us"), dt.datetime(2024, 1, 2)),
        (dt.date(2024, 1, 2), pa.timestamp("s"), dt.datetime(2024, 1, 2)),
        (np.datetime64("2024-01-02T03"), pa.timestamp("us"), dt.datetime(2024, 1, 2, 3)),
        ("2024-01-02", pa.date32(), dt.date(2024, 1, 2)),
        ("03:04:05", pa.time64("us"), dt.time(3, 4, 5)),
        ("1.25", pa.decimal128(10, 2), Decimal("1.25")),
        (0.1, pa.decimal128(10, 2), Decimal("0.10")),
        (3, pa.decimal128(20, 0), Decimal(3)),
        ((1, 2), pa.list_(pa.int64()), [1, 2]),
        (np.array([1.5, 2.5]), pa.list_(pa.float64(), 2), [1.5, 2.5]),
        ([[1], None, []], pa.large_list(pa.list_(pa.int64())), [[1], None, []]),
        ({"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ([("a", 1)], pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ({}, pa.struct([]), {}),
        ("x", pa.dictionary(pa.int32(), pa.string()), "x"),
        (None, pa.list_(pa.int8(), 3), None),
        (None, pa.map_(pa.string(), pa.int64()), None),
        (None, pa.struct([("a", pa.int64())]), None),
    ],
)
def test_held_exactly(value: Any, kind: pa.DataType, held: Any) -> None:
    assert one(value, kind) == ([held], [])
    assert one(None, kind) == ([None], [])


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (2.5, pa.int64(), "2.5 (float) is no integer"),
        (True, pa.int64(), "True (bool) is no integer"),
        (True, pa.float64(), "is no number"),
        (1, pa.bool_(), "is no boolean"),
        (300, pa.int8(), "cannot be held exactly by int8"),
        (2**63, pa.int64(), "cannot be held exactly by int64"),
        (-1, pa.uint64(), "cannot be held exactly by uint64"),
        (1, pa.string(), "1 (int) is no text"),
        (b"x", pa.string(), "is no text"),
        ("\ud800", pa.large_string(), r"lone surrogate (\ud800)"),
        ("x", pa.binary(), "is no bytes"),
        (5, pa.timestamp("us"), "is no time stamp"),
        ("yesterday", pa.timestamp("us"), "Invalid isoformat string"),
        (dt.datetime(2024, 1, 2, 3), pa.date32(), "a time of day would be lost"),
        ("nan", pa.decimal128(5, 2), "does not fit decimal128"),
        ("much", pa.decimal128(5, 2), "is no decimal"),
        (Decimal("1.234"), pa.decimal128(5, 2), "does not fit decimal128"),
        ("abc", pa.list_(pa.string()), "'abc' (str) is no list"),
        ([1, 2.5], pa.list_(pa.int64()), "v[]: 2.5 (float) is no integer"),
        ([1, 2, 3], pa.list_(pa.int64(), 2), "a list of 3 items; the column holds lists of exactly 2"),
        ([1], pa.struct([("a", pa.int64())]), "is no object"),
        ({"a": "x"}, pa.map_(pa.string(), pa.int64()), "v{value}: 'x' (str) is no integer"),
        ("x", pa.map_(pa.string(), pa.int64()), "is no object"),
        ({"a": {"b": [{"c": "x"}]}}, pa.struct([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.int8())])))]))]), "v.a.b[].c: 'x'"),
    ],
)
def test_refused_with_the_reason(value: Any, kind: pa.DataType, reason: str) -> None:
    held, reasons = one(value, kind)
    assert held == []
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_never_null_columns() -> None:
    assert one(None, pa.int64(), nullable=False)[1] == ["v: null or absent, but the column is declared as never null"]
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    assert one(None, inner) == ([None], []), "a missing object excuses its fields"
    assert one({"a": None}, inner)[1] == ["v.a: null or absent, but the column is declared as never null"]
    with pytest.raises(SchemaError, match="missing and is declared as never null"):
        Conformer(pa.schema([pa.field("v", pa.int64(), nullable=False)])).conform(table_block(pa.table({"w": [1]})), lambda *what: None)


def test_reports_each_row_once_and_keeps_the_others() -> None:
    rows: list[Row] = [{"a": "x", "b": "y"}, {"a": 1, "b": 2}, {"a": 1, "b": "z"}]
    found: list[tuple[int, str]] = []
    block = Conformer(pa.schema([("a", pa.int64()), ("b", pa.int64())])).conform(
        block_of(rows), lambda at, column, why: found.append((at, column))
    )
    assert block.table.to_pylist() == [{"a": 1, "b": 2}]
    assert found == [(0, "a"), (2, "b")]


def test_all_rows_may_be_bad() -> None:
    schema = pa.schema([("a", pa.int64())])
    block = Conformer(schema).conform(block_of([{"a": "x"}, {"a": "y"}]), lambda *what: None)
    assert len(block) == 0
    assert block.table.schema.equals(schema)


VALUE = st.recursive(
    st.none() | st.integers(-5, 5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def padded(value: Any, kind: pa.DataType) -> Any:
    """What Arrow gives back: every field of a struct is there, integers of a float column are floats."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: padded(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [padded(item, kind.value_type) for item in value]
    return float(value) if pa.types.is_floating(kind) else value


@given(st.lists(st.dictionaries(st.sampled_from("xyz"), VALUE, max_size=3), max_size=8))
@settings(max_examples=80, deadline=None)
def test_what_is_inferred_holds_every_row(rows: list[Row]) -> None:
    try:
        schema = infer(rows)
    except SchemaError:
        return
    if not schema.names and rows:
        with pytest.raises(SchemaError, match="no columns"):
            Conformer(schema).conform(block_of(rows), lambda *what: None)
        return
    table = Conformer(schema).conform(block_of(rows), lambda *what: pytest.fail(str(what))).table
    table.validate(full=True)
    assert table.schema.equals(schema)
    assert table.to_pylist() == [{field.name: padded(row.get(field.name), field.type) for field in schema} for row in rows]
    again = Conformer(schema).conform(table_block(table), lambda *what: pytest.fail(str(what)))
    assert again.table.equals(table)


# ---------------------------------------------------------------- tables


def cast(values: pa.Array, kind: pa.DataType) -> tuple[list[Any], list[str]]:
    reasons: list[str] = []
    table = pa.table({"v": values})
    made = Conformer(pa.schema([("v", kind)])).conform(table_block(table), lambda at, column, why: reasons.append(f"{at} {column}: {why}"))
    assert made.table.schema.field("v").type.equals(kind)
    return made.table.column("v").to_pylist(), reasons


def test_tables_are_widened_and_narrowed_exactly() -> None:
    assert cast(pa.array([1, None], pa.int32()), pa.int64()) == ([1, None], [])
    assert cast(pa.array(["a"], pa.string()), pa.large_string()) == (["a"], [])
    assert cast(pa.array([1, 300, 2]), pa.int8())[0] == [1, 2]
    assert cast(pa.array([1, 300, 2]), pa.int8())[1][0].startswith("1 v: 300 (int) cannot be held exactly by int8")
    assert cast(pa.array([1.0, 2.5]), pa.int64())[0] == [1]
    assert cast(pa.array(["a", "b"]).dictionary_encode(), pa.large_string()) == (["a", "b"], [])
    assert cast(pa.array([dt.date(2024, 1, 2)]), pa.timestamp("us")) == ([dt.datetime(2024, 1, 2)], [])


def test_text_is_never_parsed_as_numbers() -> None:
    with pytest.raises(SchemaError, match="column 'v' is string, the schema says int64"):
        cast(pa.array(["12"]), pa.int64())


def test_nested_tables() -> None:
    have = pa.array([{"a": 1, "l": [{"b": 1}]}, None, {"a": 300, "l": None}])
    want = pa.struct([("a", pa.int8()), ("l", pa.list_(pa.struct([("b", pa.float64()), ("c", pa.string())]))), ("z", pa.bool_())])
    held, reasons = cast(have, want)
    assert held == [{"a": 1, "l": [{"b": 1.0, "c": None}], "z": None}, None]
    assert [reason.partition(":")[0] for reason in reasons] == ["2 v.a"]


def test_slices_and_chunks_keep_their_rows() -> None:
    column = pa.chunked_array([pa.array([9, 1, 300], pa.int64()).slice(1), pa.array([{"x": 1}]).field(0), pa.array([400], pa.int64())])
    reasons: list[int] = []
    made = Conformer(pa.schema([("v", pa.int8())])).conform(
        table_block(pa.table({"v": column})), lambda at, column, why: reasons.append(at)
    )
    assert made.table.column("v").to_pylist() == [1, 1]
    assert reasons == [1, 3]
    assert made.positions == [0, 2]


@pytest.mark.parametrize("policy", ["error", "quarantine", "drop", "collect"])
def test_new_columns_of_tables(policy: Any) -> None:
    table = pa.table({"new": ["x", None], "a": [1, 2]})
    conformer = Conformer(pa.schema([("a", pa.int64())]), policy)
    if policy == "error":
        with pytest.raises(SchemaError, match="unknown column 'new'"):
            conformer.conform(table_block(table), lambda *what: None)
        return
    found: list[int] = []
    made = conformer.conform(table_block(table), lambda at, column, why: found.append(at)).table
    assert made.column("a").to_pylist() == ([2] if policy == "quarantine" else [1, 2])
    assert found == ([0] if policy == "quarantine" else [])
    assert conformer.dropped == ({"new": 1} if policy == "drop" else {})
    if policy == "collect":
        assert made.column("_extra").to_pylist() == ['{"new":"x"}', None]
        again = conformer.conform(table_block(made), lambda *what: None).table
        assert again.equals(made), "a second stage keeps what the first collected"


@pytest.mark.parametrize("as_table", [True, False])
def test_dropped_values_of_rows_that_are_refused_are_not_counted_twice(as_table: bool) -> None:
    rows: list[Row] = [
        {"a": 1, "new": 1, "m": {"k": 1, "z": 1}},
        {"a": 300, "new": 1, "m": {"k": 1, "z": 1}},
        {"a": 2, "new": None, "m": None},
    ]
    conformer = Conformer(pa.schema([("a", pa.int8()), ("m", pa.struct([("k", pa.int8())]))]), "drop")
    found: list[int] = []
    block = table_block(pa.Table.from_pylist(rows)) if as_table else block_of(rows)
    made = conformer.conform(block, lambda at, column, why: found.append(at))
    assert found == [1]
    assert made.table.to_pylist() == [{"a": 1, "m": {"k": 1}}, {"a": 2, "m": None}]
    assert conformer.dropped == ({"new": 1, "m.z": 1} if as_table else {"new": 2, "m.z": 1}), "a dict's null is a key that is there"


def test_a_table_that_does_not_fit_names_its_object() -> None:
    with pytest.raises(SchemaError, match=r"column 'v' is string, the schema says int64 .*memory://t/x"):
        Conformer(pa.schema([("v", pa.int64())])).conform(table_block(pa.table({"v": ["12"]})), lambda *what: None)


# ---------------------------------------------------------------- inference


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], pa.int64()),
        ([2**63], pa.uint64()),
        ([2**63, -1], pa.decimal128(20, 0)),
        ([2**64], pa.decimal128(20, 0)),
        ([1, 1.5], pa.float64()),
        ([b"x", bytearray(b"y")], pa.large_binary()),
        ([dt.datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)], pa.timestamp("us")),
        ([dt.time(1)], pa.time64("us")),
        ([dt.timedelta(1)], pa.duration("us")),
        ([Decimal("1.25"), Decimal("100")], pa.decimal128(5, 2)),
        ([Decimal("1E+3")], pa.decimal128(4, 0)),
        ([Decimal("0.001")], pa.decimal128(4, 3)),
        ([(1,), [None]], pa.list_(pa.int64())),
        ([np.int16(1)], pa.int16()),
        ([np.array([1.5])], pa.list_(pa.float64())),
        ([{}], pa.struct([])),
        ([], pa.null()),
    ],
)
def test_inferred_types(values: list[Any], kind: pa.DataType) -> None:
    assert infer_type(values) == kind
    table = Conformer(pa.schema([("v", kind)])).conform(block_of([{"v": value} for value in values]), lambda *what: pytest.fail(str(what)))
    assert len(table) == len(values)


def test_a_value_without_a_type_says_so() -> None:
    with pytest.raises(SchemaError, match=r"builtins\.object has no column type"):
        infer([{"a": object()}])
    with pytest.raises(SchemaError, match="column name must be text"):
        infer([{1: 2}])
