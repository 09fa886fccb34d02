"""From lists of Python values to Arrow arrays of a given type, without Arrow's silent conversions.

``pa.array`` cuts 2.5 to 2 for an integer column, splits text into letters for a list column, forgets time zones, and ignores keys that a
struct does not know. So the Python types of each list are looked at first (25 ns per value); only exactly fitting ones go straight to
Arrow, the others are converted one by one where nothing is lost, or reported.
"""

from __future__ import annotations

import datetime as dt
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.types as pt

from cloudshard.formats.findings import Findings, find_failing
from cloudshard.formats.infer import AS_JSON_TEXT
from cloudshard.formats.widen import is_bytes, is_text

_NONE = type(None)
ARROW_ERRORS = (pa.ArrowException, UnicodeError, OverflowError, TypeError, ValueError)


class TooLarge(Exception):
    """A nested 32-bit string or list column would exceed 2 GiB: build it from fewer rows."""


class Column(Protocol):
    """Builds arrays of one type."""

    def build(self, values: list[Any], findings: Findings) -> pa.Array | pa.ChunkedArray | None:
        """The array, or None when a value did not fit (then it is in ``findings``)."""
        ...


def column_for(field: pa.Field, path: str) -> Column:
    """The builder for a field; ``path`` is its name in reports (``meta.stats.q``, ``tags[]``)."""
    kind = field.type
    if pt.is_struct(kind):
        return StructColumn(kind, path)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return ListColumn(kind, path)
    if pt.is_map(kind):
        return MapColumn(kind, path)
    if (field.metadata or {}).get(b"cloudshard:as") == AS_JSON_TEXT[b"cloudshard:as"]:
        return ScalarColumn(kind, path, frozenset({str, _NONE}), _to_json_text)
    allowed, adapt = _scalar_rules(kind)
    return ScalarColumn(kind, path, allowed, adapt)


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """``pa.array``; a ChunkedArray when 32-bit offsets do not reach."""
    return pa.array(values, type=kind)


class ScalarColumn:
    """Numbers, text, bytes, times. ``allowed``: Python types that Arrow takes as they are; ``adapt`` converts or refuses others."""

    def __init__(self, kind: pa.DataType, path: str, allowed: frozenset[type] | None, adapt: Callable[[Any], Any]) -> None:
        self._kind = kind
        self._path = path
        self._allowed = allowed
        self._adapt = adapt
        self._stamps = pt.is_timestamp(kind)

    @property
    def plain(self) -> frozenset[type] | None:
        """Python types that need no look at the values, or None."""
        return None if self._stamps else self._allowed

    def build(self, values: list[Any], findings: Findings) -> pa.Array | pa.ChunkedArray | None:
        """See :class:`Column`."""
        if self._allowed is not None and not self._allowed.issuperset(map(type, values)):
            adapted = self._adapted(values, findings)
            if adapted is None:
                return None
            values = adapted
        if self._stamps and not self._zones_fit(values, findings):
            return None
        try:
            return to_arrow(values, self._kind)
        except ARROW_ERRORS:
            for index, reason in find_failing(len(values), lambda some: self._attempt(values, some)):
                findings.misfit(index, self._path, reason)
            return None

    def _adapted(self, values: list[Any], findings: Findings) -> list[Any] | None:
        adapted = []
        fits = True
        for index, value in enumerate(values):
            if value is None or (self._allowed is not None and type(value) in self._allowed):
                adapted.append(value)
                continue
            try:
                adapted.append(self._adapt(value))
            except (TypeError, ValueError, ArithmeticError) as error:
                fits = False
                findings.misfit(index, self._path, str(error) or f"{shown(value)} does not fit {self._kind}")
        return adapted if fits else None

    def _zones_fit(self, values: Sequence[Any], findings: Findings) -> bool:
        naive = self._kind.tz is None
        wrong = [i for i, value in enumerate(values) if isinstance(value, dt.datetime) and (value.tzinfo is None) != naive]
        for index in wrong:
            has, column = ("no time zone", "one") if not naive else ("a time zone", "none")
            findings.misfit(index, self._path, f"{values[index].isoformat()} has {has}, the column {self._kind} has {column}")
        return not wrong

    def _attempt(self, values: Sequence[Any], some: Sequence[int]) -> str | None:
        try:
            to_arrow([values[index] for index in some], self._kind)
        except ARROW_ERRORS as error:
            return _reason(values[some[0]], self._kind, error) if len(some) == 1 else "some"
        return None


class StructColumn:
    """Dicts with known keys; unknown ones are strangers."""

    def __init__(self, kind: pa.StructType, path: str) -> None:
        self._kind = kind
        self._path = path
        self._fields = list(kind)
        self._gather = Gatherer(self._fields, path)

    def build(self, values: list[Any], findings: Findings) -> pa.Array | None:
        """See :class:`Column`."""
        mask = None
        kinds = set(map(type, values))
        if kinds != {dict}:
            fits = True
            for index, value in enumerate(values):
                if value is not None and not isinstance(value, Mapping):
                    findings.misfit(index, self._path, f"{shown(value)} is no object; the column is {_short(self._kind)}")
                    fits = False
            if not fits:
                return None
            if _NONE in kinds:
                mask = pa.array([value is None for value in values], pa.bool_())
                values = [{} if value is None else value for value in values]
        children = self._gather.build(values, findings, nulls=mask)
        if children is None:
            return None
        if not children:
            return pa.array([None if mask is not None and mask[i].as_py() else {} for i in range(len(values))], self._kind)
        if any(isinstance(child, pa.ChunkedArray) for child in children):
            raise TooLarge
        return pa.StructArray.from_arrays(children, fields=self._fields, mask=mask)


class Gatherer:
    """Takes the values of some fields out of many dicts, builds their arrays, and notices keys that are none of them."""

    def __init__(self, fields: Sequence[pa.Field], path: str) -> None:
        self._prefix = f"{path}." if path else ""
        self._names = frozenset(field.name for field in fields)
        self._plan = [
            (field.name, itemgetter(field.name), column_for(field, self._prefix + field.name), field.nullable) for field in fields
        ]

    def build(
        self, rows: Sequence[Mapping[str, Any]], findings: Findings, nulls: pa.Array | None = None
    ) -> list[pa.Array | pa.ChunkedArray] | None:
        """One array per field, or None when a value did not fit. ``nulls``: which rows stand for a missing object."""
        complete = True
        fits = True
        made: list[pa.Array | pa.ChunkedArray] = []
        for name, take, column, nullable in self._plan:
            try:
                values = list(map(take, rows))
            except KeyError:
                complete = False
                values = [row.get(name) for row in rows]
            array = column.build(values, findings)
            if array is None:
                fits = False
                continue
            made.append(array)
            if not nullable and array.null_count:
                fits = self._refuse_nulls(name, values, nulls, findings) and fits
        # every row has every field: then a row has more keys than fields exactly when the sum says so
        if not complete or sum(map(len, rows)) != len(self._plan) * len(rows):
            self._look_for_strangers(rows, findings)
        return made if fits else None

    def _refuse_nulls(self, name: str, values: Sequence[Any], nulls: pa.Array | None, findings: Findings) -> bool:
        bad = [index for index, value in enumerate(values) if value is None and not (nulls is not None and nulls[index].as_py())]
        for index in bad:
            findings.misfit(index, self._prefix + name, "null or absent, but the column is declared as never null")
        return not bad

    def _look_for_strangers(self, rows: Sequence[Mapping[str, Any]], findings: Findings) -> None:
        for index, row in enumerate(rows):
            if not row.keys() <= self._names:
                for name in row:
                    if name not in self._names:
                        findings.stranger(index, f"{self._prefix}{name}", row[name])


class ListColumn:
    """Lists of any kind, flattened so that their items are checked like a column."""

    def __init__(self, kind: pa.DataType, path: str) -> None:
        self._kind = kind
        self._path = path
        self._item = column_for(kind.value_field, f"{path}[]")
        self._size = kind.list_size if pt.is_fixed_size_list(kind) else None
        #: Python types of items with which whole lists may go to Arrow as they are (a third faster than flattening).
        self._plain_items = self._item.plain if isinstance(self._item, ScalarColumn) else None

    def build(self, values: list[Any], findings: Findings) -> pa.Array | pa.ChunkedArray | None:
        """See :class:`Column`."""
        kinds = set(map(type, values))
        if not kinds <= {list, _NONE}:
            adapted = self._adapted(values, findings)
            if adapted is None:
                return None
            values = adapted
        if self._plain_items is not None and kinds == {list} and self._plain_items.issuperset(map(type, chain.from_iterable(values))):
            try:
                return to_arrow(values, self._kind)
            except ARROW_ERRORS:
                pass  # below, item by item, it is found out which
        mask = pa.array([value is None for value in values], pa.bool_()) if _NONE in kinds else None
        if self._size is not None:
            return self._build_fixed(values, mask, findings)
        if mask is not None:
            values = [() if value is None else value for value in values]
        offsets = list(accumulate(map(len, values), initial=0))
        items = self._items(values, offsets, findings)
        if items is None:
            return None
        if pt.is_large_list(self._kind):
            return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, type=self._kind, mask=mask)
        if offsets[-1] >= 2**31:
            raise TooLarge
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=self._kind, mask=mask)

    def _items(self, values: Sequence[Any], offsets: Sequence[int], findings: Findings) -> pa.Array | None:
        items = self._item.build(list(chain.from_iterable(values)), findings.within(lambda index: bisect_right(offsets, index) - 1))
        if isinstance(items, pa.ChunkedArray):
            raise TooLarge
        return items

    def _build_fixed(self, values: list[Any], mask: pa.Array | None, findings: Findings) -> pa.Array | None:
        size = self._size or 0
        wrong = [index for index, value in enumerate(values) if value is not None and len(value) != size]
        for index in wrong:
            findings.misfit(index, self._path, f"a list of {len(values[index])} items; the column holds lists of exactly {size}")
        if wrong:
            return None
        padded = [(None,) * size if value is None else value for value in values]
        items = self._items(padded, range(0, size * len(padded) + 1, max(1, size)), findings)
        return None if items is None else pa.FixedSizeListArray.from_arrays(items, type=self._kind, mask=mask)

    def _adapted(self, values: list[Any], findings: Findings) -> list[Any] | None:
        adapted: list[Any] = []
        fits = True
        for index, value in enumerate(values):
            if value is None or isinstance(value, list):
                adapted.append(value)
            elif isinstance(value, np.ndarray):
                adapted.append(value.tolist())
            elif isinstance(value, (tuple, set, frozenset, range)):
                adapted.append(list(value))
            else:
                fits = False
                findings.misfit(index, self._path, f"{shown(value)} is no list; the column is {_short(self._kind)}")
        return adapted if fits else None


class MapColumn:
    """Dicts (or lists of pairs) with free keys."""

    def __init__(self, kind: pa.MapType, path: str) -> None:
        self._kind = kind
        self._path = path
        self._keys = column_for(kind.key_field, f"{path}{{key}}")
        self._items = column_for(kind.item_field, f"{path}{{value}}")

    def build(self, values: list[Any], findings: Findings) -> pa.Array | None:
        """See :class:`Column`."""
        pairs: list[list[tuple[Any, Any]]] = []
        fits = True
        for index, value in enumerate(values):
            if value is None:
                pairs.append([])
            elif isinstance(value, Mapping):
                pairs.append(list(value.items()))
            elif isinstance(value, (list, tuple)) and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in value):
                pairs.append([(one[0], one[1]) for one in value])
            else:
                fits = False
                findings.misfit(index, self._path, f"{shown(value)} is no object; the column is {_short(self._kind)}")
        if not fits:
            return None
        offsets = list(accumulate(map(len, pairs), initial=0))
        inner = findings.within(lambda index: bisect_right(offsets, index) - 1)
        keys = self._keys.build([pair[0] for pair in chain.from_iterable(pairs)], inner)
        items = self._items.build([pair[1] for pair in chain.from_iterable(pairs)], inner)
        if keys is None or items is None:
            return None
        if isinstance(keys, pa.ChunkedArray) or isinstance(items, pa.ChunkedArray):
            raise TooLarge
        mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=self._kind, mask=mask)


# ---------------------------------------------------------------- what fits which scalar type


def _scalar_rules(kind: pa.DataType) -> tuple[frozenset[type] | None, Callable[[Any], Any]]:
    if pt.is_integer(kind):
        return frozenset({int, _NONE}), _to_int
    if pt.is_floating(kind):
        return frozenset({float, int, _NONE}), _to_float
    if pt.is_boolean(kind):
        return frozenset({bool, _NONE}), _to_bool
    if is_text(kind):
        return frozenset({str, _NONE}), _to_text
    if is_bytes(kind):
        return frozenset({bytes, bytearray, _NONE}), _to_bytes
    if pt.is_timestamp(kind):
        return frozenset({dt.datetime, _NONE}), _to_stamp
    if pt.is_date(kind):
        return frozenset({dt.date, _NONE}), _to_date
    if pt.is_time(kind):
        return frozenset({dt.time, _NONE}), _to_time
    if pt.is_duration(kind):
        return frozenset({dt.timedelta, _NONE}), _refuse
    if pt.is_decimal(kind):
        return frozenset({Decimal, int, _NONE}), _to_decimal
    if pt.is_null(kind):
        return frozenset({_NONE}), _refuse_any
    return None, _refuse  # dictionaries, extension types…: Arrow's own rules


def shown(value: Any) -> str:
    """A short form of a value for messages."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"


def _short(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 80 else text[:77] + "…"


def _reason(value: Any, kind: pa.DataType, error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"the text holds a lone surrogate (\\u{ord(error.object[error.start]):04x}), which has no UTF-8 form"
    if isinstance(error, OverflowError) or any(
        words in str(error) for words in ("outside of the range", "out of bounds", "too large to fit")
    ):
        return f"{shown(value)} cannot be held exactly by {kind}"
    return f"{shown(value)} does not fit {kind}: {error}"


def _misfit(value: Any, wanted: str) -> TypeError:
    return TypeError(f"{shown(value)} is no {wanted}")


def _to_int(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise _misfit(value, "integer")
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    raise _misfit(value, "integer")


def _to_float(value: Any) -> float | int:
    if isinstance(value, (bool, np.bool_)):
        raise _misfit(value, "number")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Decimal):
        return float(value)
    raise _misfit(value, "number")


def _to_bool(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise _misfit(value, "boolean")


def _to_text(value: Any) -> str:
    if isinstance(value, (str, uuid.UUID)):
        return str(value)
    raise _misfit(value, "text")


def _to_json_text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return orjson.dumps(value, str, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode("utf-8")


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    raise _misfit(value, "bytes")


def _to_stamp(value: Any) -> dt.datetime:
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, dt.datetime):
        return value
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        return dt.datetime.fromisoformat(value)
    raise _misfit(value, "time stamp")


def _to_date(value: Any) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    raise _misfit(value, "date (a time of day would be lost)" if isinstance(value, dt.datetime) else "date")


def _to_time(value: Any) -> dt.time:
    if isinstance(value, str):
        return dt.time.fromisoformat(value)
    raise _misfit(value, "time of day")


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise _misfit(value, "decimal")
    if isinstance(value, np.integer):
        return Decimal(int(value))
    if isinstance(value, (str, float)):
        try:
            return Decimal(value if isinstance(value, str) else repr(value))
        except InvalidOperation:
            raise _misfit(value, "decimal") from None
    raise _misfit(value, "decimal")


def _refuse(value: Any) -> Any:
    raise _misfit(value, "value of this column's type")


def _refuse_any(value: Any) -> Any:
    raise TypeError(f"{shown(value)}: the column held nothing but null in the samples; declare its type in the schema")
