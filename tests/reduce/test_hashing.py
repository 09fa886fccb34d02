"""The pinned hash: published vectors, and what must be equal or different for every type that a key can have."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import SchemaError
from cloudshard.reduce.hashing import _TAGS, hash_column, hash_rows, mix_one

_M = (1 << 64) - 1

#: Never change these: runs of workers of different versions must agree.
VECTORS: list[tuple[pa.DataType, Any, int]] = [
    (pa.int64(), None, 0xE9E0033E3BADAF36),
    (pa.int64(), 0, 0x8AAD5D95D1C4AC92),
    (pa.int8(), -1, 0x592463EA599E46EE),
    (pa.int64(), 9223372036854775807, 0xFDD6A179E792480B),
    (pa.uint64(), 18446744073709551615, 0x48706BCBB0148071),
    (pa.bool_(), True, 0x4796C1E9F15F55FD),
    (pa.bool_(), False, 0xDFC7A99951F24649),
    (pa.float64(), -0.0, 0x78B6AD1DB62B3816),
    (pa.float32(), 1.5, 0xB9671AB8A05944CE),
    (pa.float64(), float("nan"), 0x5F00A1D37EAE4D3A),
    (pa.float64(), float("inf"), 0xBD81BFEF302B53DC),
    (pa.decimal128(10, 2), Decimal("1.50"), 0xDCC8225948FF9DF5),
    (pa.decimal128(38, 0), Decimal("-12345678901234567890123456789012345678"), 0x67870A0FD19A5C79),
    (pa.date32(), dt.date(2024, 2, 29), 0x8518696B73073CA4),
    (pa.time64("us"), dt.time(23, 59, 59, 999999), 0x461AEB93069AA4CE),
    (pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59, 1), 0x7623707D114FDDB7),
    (pa.timestamp("us", "Asia/Tokyo"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC), 0xB118F7591A789BE5),
    (pa.duration("ms"), dt.timedelta(days=-1), 0x49097DC73E6C8919),
    (pa.string(), "", 0xC8A3DE71D129AFB8),
    (pa.string(), "a", 0x6D4948FC85B8831C),
    (pa.string(), "cloudshard", 0x842AEF2334F48E6A),
    (pa.string(), "\u00e9", 0x318D23DE95B5822B),
    (pa.string(), "e\u0301", 0xE838C57E008F8974),
    (pa.string(), "x" * 32, 0x53D038B5CA725A7A),
    (pa.string(), "x" * 33, 0x65BE5B0125D7CA30),
    (pa.binary(), b"\0\xff", 0x73442FD945FDE1C2),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}, 0x27CFF3C704989F5B),
    (pa.list_(pa.int64()), [], 0x9A97C6E996ACE688),
    (pa.list_(pa.int64()), [1, None, 3], 0xE9392DB0A351BB65),
]


def one(value: Any, kind: pa.DataType) -> int:
    return int(hash_column(pa.array([value], kind))[0])


@pytest.mark.parametrize(("kind", "value", "expected"), VECTORS, ids=[f"{kind}:{str(value)[:20]}" for kind, value, _ in VECTORS])
def test_published_vectors(kind: pa.DataType, value: Any, expected: int) -> None:
    assert one(value, kind) == expected


def test_row_vector() -> None:
    table = pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", ""], "c": [1.5, None]})
    assert hash_rows(table, ["a", "b", "c"]).tolist() == [0xE84A0011D471FC74, 0xEA30D1505170B2DC]
    assert hash_rows(table, ["a"], seed=7).tolist() == [0x789761B5759D699D, 0x6399A5AC7A0B5FA1]


def reference_bytes(value: bytes, tag: int, seed: int = 0) -> int:
    """The definition, one value at a time."""
    tag ^= mix_one(seed)
    if len(value) > 32:
        return mix_one(xxhash.xxh3_64_intdigest(value, seed) ^ tag)
    h = tag ^ len(value)
    for at in range(0, len(value), 8):
        h = (h ^ int.from_bytes(value[at : at + 8], "little")) * 0x9FB21C651E98DF25 & _M
        h ^= h >> 29
    return mix_one(h)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.none() | st.binary(max_size=70), max_size=12), cut=st.integers(0, 3), seed=st.sampled_from([0, 1, 2**64 - 1]))
def test_strings_of_all_lengths_follow_the_definition_wherever_they_lie(values: list[bytes | None], cut: int, seed: int) -> None:
    null = mix_one(_TAGS["null"] ^ mix_one(seed))
    expected = [null if value is None else reference_bytes(value, _TAGS["binary"], seed) for value in values][cut:]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert hash_column(pa.array(values, kind).slice(cut), seed=seed).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_follow_the_definition_and_do_not_depend_on_their_width(value: int) -> None:
    expected = mix_one((value & _M) ^ _TAGS["int"])
    for bits in (8, 16, 32, 64):
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            assert one(value, pa.type_for_alias(f"int{bits}")) == expected
        if 0 <= value < 1 << bits:
            assert one(value, pa.type_for_alias(f"uint{bits}")) == expected


def test_large_unsigned_integers_are_not_the_negative_ones() -> None:
    assert one(2**64 - 1, pa.uint64()) != one(-1, pa.int64())


@settings(max_examples=100, deadline=None)
@given(st.floats(width=32))
def test_floats_do_not_depend_on_their_width(value: float) -> None:
    bits = 0x7FF8000000000000 if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]
    assert one(value, pa.float32()) == one(value, pa.float64()) == mix_one(bits ^ _TAGS["float"])


def test_zeros_are_equal_and_all_nans_are_equal() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    assert len(set(hash_column(pa.array(nans)).tolist())) == 1
    assert one(0.0, pa.float64()) == one(-0.0, pa.float64()) == one(-0.0, pa.float16())


@settings(max_examples=150, deadline=None)
@given(digits=st.integers(-(10**9) + 1, 10**9 - 1), scale=st.integers(0, 5))
def test_decimals_of_equal_value_are_equal_whatever_width_and_scale(digits: int, scale: int) -> None:
    value = Decimal(digits).scaleb(-scale)
    prime = (1 << 61) - 1
    expected = mix_one((digits * pow(10, -scale, prime) % prime) ^ _TAGS["decimal"])
    for kind in (pa.decimal128(20, scale), pa.decimal128(38, 7), pa.decimal256(60, 20), pa.decimal64(18, scale)):
        assert one(value, kind) == expected


def test_kinds_are_told_apart() -> None:
    values = [
        one(1, pa.int64()),
        one(1.0, pa.float64()),
        one(Decimal(1), pa.decimal128(5, 0)),
        one(True, pa.bool_()),
        one("1", pa.string()),
        one(b"1", pa.binary()),
        one(None, pa.int64()),
        one([1], pa.list_(pa.int64())),
        one([1, 1], pa.list_(pa.int64())),
        one([[1], []], pa.list_(pa.list_(pa.int64()))),
        one([[], [1]], pa.list_(pa.list_(pa.int64()))),
        one({"a": 1}, pa.struct([("a", pa.int64())])),
        one({"a": None}, pa.struct([("a", pa.int64())])),
        one(dt.date(1970, 1, 2), pa.date32()),
        one(dt.datetime(1970, 1, 2), pa.timestamp("s")),
        one(dt.datetime(1970, 1, 2), pa.timestamp("s", "UTC")),
        one(dt.time(0, 0, 1), pa.time32("s")),
        one(dt.timedelta(seconds=1), pa.duration("s")),
        one("\u00e9", pa.string()),
        one("e\u0301", pa.string()),
        one("", pa.string()),
        one("\0", pa.string()),
        one("\0\0", pa.string()),
    ]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("s")), pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("ns"))),
        (pa.array([0, -1], pa.timestamp("ms", "UTC")), pa.array([0, -1_000_000], pa.timestamp("ns", "Asia/Tokyo"))),
        (pa.array([dt.time(1, 2, 3)], pa.time32("s")), pa.array([dt.time(1, 2, 3)], pa.time64("ns"))),
        (pa.array([dt.date(1960, 1, 1)], pa.date32()), pa.array([dt.date(1960, 1, 1)], pa.date64())),
        (pa.array(["a", None, "x" * 99]), pa.array(["a", None, "x" * 99], pa.large_string())),
        (pa.array(["a", None, "x" * 99]), pa.array(["a", None, "x" * 99], pa.string_view())),
        (pa.array(["a", None, "a"]), pa.array(["a", None, "a"]).dictionary_encode()),
        (pa.array([b"abc", None], pa.binary(3)), pa.array([b"abc", None], pa.binary())),
        (pa.array([[1, 2], None, []], pa.list_(pa.int64())), pa.array([[1, 2], None, []], pa.large_list(pa.int8()))),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.array([[1, 2], None], pa.list_(pa.int64()))),
        (pa.array([[1, 2], None], pa.list_view(pa.int64())), pa.array([[1, 2], None], pa.list_(pa.int64()))),
        (pa.array([1, 1, None]), pa.RunEndEncodedArray.from_arrays(pa.array([2, 3]), pa.array([1, None]))),
        (pa.nulls(2), pa.array([None, None], pa.string())),
    ],
    ids=lambda array: str(array.type),
)
def test_one_value_in_several_types(first: pa.Array, second: pa.Array) -> None:
    assert hash_column(first).tolist() == hash_column(second).tolist()


NESTED = [{"a": [1, None], "b": "x"}, None, {"a": None, "b": None}, {"a": [], "b": "y" * 40}, {"a": [7, 8, 9], "b": ""}]


@pytest.mark.parametrize("begin", range(4))
def test_a_slice_has_the_hashes_of_its_rows(begin: int) -> None:
    arrays = [
        pa.array(NESTED, pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])),
        pa.array([[row] for row in NESTED]),
        pa.array([True, None, False, True, True]),
        pa.array([Decimal(1), None, Decimal(3), Decimal(-4), None], pa.decimal128(20, 0)),
        pa.array(["a", "b", None, "a", "c"]).dictionary_encode(),
        pa.array([[1, 2], None, [3, 4], [None, 5], [6, 7]], pa.list_(pa.int32(), 2)),
    ]
    for array in arrays:
        whole = hash_column(array).tolist()
        assert hash_column(array.slice(begin, 2)).tolist() == whole[begin : begin + 2]
        assert hash_column(pa.chunked_array([array.slice(0, begin), array.slice(begin)])).tolist() == whole


def test_hashes_spread_and_do_not_collide() -> None:
    numbers = hash_column(pa.array(range(200_000)))
    names = hash_column(pa.array([f"cust-{n:07x}-{n % 9973:04d}" for n in range(200_000)]))
    for hashes in (numbers, names):
        assert len(np.unique(hashes)) == 200_000
        counts = np.bincount((hashes >> np.uint64(32)) * np.uint64(64) >> np.uint64(32), minlength=64)
        assert 2900 < counts.min() <= counts.max() < 3350  # 3125 expected, standard deviation 55


def test_unfit_keys_are_refused_by_name() -> None:
    table = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "x": [1]})
    with pytest.raises(SchemaError, match="'m' of type map"):
        hash_rows(table, ["m"])
    with pytest.raises(SchemaError, match="'y' is not in the table"):
        hash_rows(table, ["y"])
    with pytest.raises(SchemaError, match="no key"):
        hash_rows(table, [])
