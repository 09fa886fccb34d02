"""The lattice: laws by property, rows of the table by example."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.formats.widen import Incompatible, widen

SCALARS = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(20, 0), pa.decimal128(30, 10), pa.decimal256(40, 2),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(4),
    pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string()), pa.dictionary(pa.int8(), pa.int64()),
    pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Shanghai"),
    pa.timestamp("s", "Europe/Berlin"), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    pa.duration("s"), pa.duration("ns"),
]  # fmt: skip

TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.builds(pa.list_, inner)
        | st.builds(pa.large_list, inner)
        | st.builds(lambda kind: pa.list_(kind, 2), inner)
        | st.builds(lambda kind: pa.map_(pa.string(), kind), inner)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda fields: pa.struct(list(fields.items())))
    ),
    max_leaves=5,
)


def normal(kind: pa.DataType) -> str:
    """The type with the fields of structs in alphabetical order: their order is that of first appearance and no part of the law."""
    if pa.types.is_struct(kind):
        return "{" + ",".join(sorted(f"{field.name}:{normal(field.type)}:{field.nullable}" for field in kind)) + "}"
    if pa.types.is_map(kind):
        return f"map({normal(kind.key_type)},{normal(kind.item_type)})"
    if pa.types.is_fixed_size_list(kind):
        return f"fixed{kind.list_size}({normal(kind.value_type)})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{'large' if pa.types.is_large_list(kind) else ''}list({normal(kind.value_type)})"
    return str(kind)


def join(left: pa.DataType | None, right: pa.DataType | None) -> pa.DataType | None:
    if left is None or right is None:
        return None
    try:
        return widen(left, right)
    except Incompatible:
        return None


@given(TYPES)
@settings(max_examples=50, deadline=None)
def test_idempotent(kind: pa.DataType) -> None:
    assert widen(kind, kind).equals(kind)


@given(TYPES, TYPES)
@settings(max_examples=200, deadline=None)
def test_commutative_and_an_upper_bound(left: pa.DataType, right: pa.DataType) -> None:
    there, back = join(left, right), join(right, left)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert normal(there) == normal(back)
        assert normal(widen(there, left)) == normal(there), "what was widened holds the first"
        assert normal(widen(there, right)) == normal(there), "and the second"


@given(TYPES, TYPES, TYPES)
@settings(max_examples=250, deadline=None)
def test_associative(one: pa.DataType, two: pa.DataType, three: pa.DataType) -> None:
    left, right = join(join(one, two), three), join(one, join(two, three))
    assert (left is None) == (right is None)
    if left is not None and right is not None:
        assert normal(left) == normal(right)


def test_all_triples_of_scalars_are_associative() -> None:
    for one in SCALARS:
        for two in SCALARS:
            pair = join(one, two)
            for three in SCALARS:
                assert join(pair, three) == join(one, join(two, three)), (one, two, three)


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        (pa.null(), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.int32(), pa.uint32(), pa.int64()),
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int64(), pa.uint64(), pa.decimal128(20, 0)),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.int64(), pa.decimal128(21, 2)),
        (pa.string(), pa.string_view(), pa.large_string()),
        (pa.date32(), pa.timestamp("ms"), pa.timestamp("ms")),
        (pa.timestamp("s", "Asia/Shanghai"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.time32("s"), pa.time64("ns"), pa.time64("ns")),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int64()), pa.list_(pa.int64())),
    ],
)
def test_rows_of_the_table(left: pa.DataType, right: pa.DataType, both: pa.DataType) -> None:
    assert widen(left, right) == both


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        (pa.int64(), pa.string(), ""),
        (pa.bool_(), pa.int64(), ""),
        (pa.struct([]), pa.string(), ""),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "one has a time zone"),
        (pa.date32(), pa.timestamp("us", "UTC"), "a date has no time zone"),
        (pa.decimal256(76, 0), pa.decimal256(76, 10), "more than 76 digits"),
    ],
)
def test_what_cannot_be_widened(left: pa.DataType, right: pa.DataType, why: str) -> None:
    with pytest.raises(Incompatible) as caught:
        widen(left, right)
    assert why in caught.value.why


def test_the_place_inside_a_column_is_named() -> None:
    left = pa.struct([("m", pa.list_(pa.struct([("q", pa.int64())])))])
    right = pa.struct([("m", pa.list_(pa.struct([("q", pa.string())])))])
    with pytest.raises(Incompatible) as caught:
        widen(left, right)
    assert caught.value.path == "m[].q"
