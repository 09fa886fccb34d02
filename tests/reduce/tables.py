"""Random tables for property tests: every type that a key can have, with nulls, NaN, duplicates, empty shards and a hot key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

NAN = float("nan")

#: Few distinct values each, so that keys repeat; the awkward ones are among them.
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 42]),
    "int8": (pa.int8(), [0, 1, -1, 127, -128]),
    "uint64": (pa.uint64(), [0, 1, 2**64 - 1, 2**63]),
    "float64": (pa.float64(), [0.0, -0.0, NAN, float("inf"), -float("inf"), 1.5, -1e300, 5e-324]),
    "float32": (pa.float32(), [0.0, -0.0, NAN, 1.5]),
    "bool": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(38, 10), [Decimal("1.5"), Decimal("-1.5"), Decimal(0), Decimal("1234567890123456789.0123456789")]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    "timestamp": (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 1), dt.datetime(2024, 1, 1)]),
    "instant": (pa.timestamp("us", "UTC"), [dt.datetime(1969, 7, 20, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    "string": (pa.string(), ["", "a", "ab", "a\0", "\u00e9", "e\u0301", "x" * 40, "x" * 32, "x" * 70 + "a", "x" * 70 + "b", "\U0001f600"]),
    "large_string": (pa.large_string(), ["", "b", "ba"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff", b"\xff\xff", b"a" * 33]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["p", "q", ""]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": None}]),
    "list": (pa.list_(pa.int64()), [[], [1], [1, 2], [None], [1, None]]),
}
SCALARS = [name for name in KEYS if name not in ("struct", "list")]


@st.composite
def shards(draw: st.DrawFn, kind: str, *, most: int = 40, two_keys: bool = False, among: Sequence[str] = tuple(KEYS)) -> list[pa.Table]:
    """One to four shards, some empty, of columns k (and k2), x (integer), f (float), row (unique). ``kind`` "any": one of ``among``."""
    if kind == "any":
        kind = draw(st.sampled_from(among))
    data_type, values = KEYS[kind]
    hot = draw(st.booleans())
    made = []
    number = 0
    for count in draw(st.lists(st.integers(0, most), min_size=1, max_size=4)):
        one = st.sampled_from([*values, None]) if not hot else st.sampled_from([values[0]] * 6 + [*values, None])
        columns: dict[str, pa.Array] = {"k": pa.array(draw(st.lists(one, min_size=count, max_size=count)), data_type)}
        if two_keys:
            columns["k2"] = pa.array(draw(st.lists(st.sampled_from(["a", "b", None]), min_size=count, max_size=count)), pa.string())
        columns["x"] = pa.array(draw(st.lists(st.integers(-9, 9) | st.none(), min_size=count, max_size=count)), pa.int64())
        columns["f"] = pa.array(draw(st.lists(st.sampled_from([0.5, -2.0, 3.25, NAN, None]), min_size=count, max_size=count)), pa.float64())
        columns["row"] = pa.array(range(number, number + count), pa.int64())
        number += count
        made.append(pa.table(columns))
    return made
