"""The schema of rows of Python values, column by column.

Integers become int64 (uint64 when they need it), text large_string, bytes large_binary, dicts structs, sequences lists, datetimes
timestamps in microseconds (with a zone when they have one), Decimals decimals; None alone is null. Values of one column are widened by
the lattice.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from cloudshard.errors import SchemaError
from cloudshard.formats.widen import Incompatible, widen

#: Field metadata: values that are not text are kept as JSON text (``widen_to_string``).
AS_JSON_TEXT = {b"cloudshard:as": b"json-text"}

_MAX_INT64 = 2**63 - 1
_SIMPLE: dict[type, pa.DataType] = {
    str: pa.large_string(),
    float: pa.float64(),
    bool: pa.bool_(),
    type(None): pa.null(),
    bytes: pa.large_binary(),
    bytearray: pa.large_binary(),
    memoryview: pa.large_binary(),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
    uuid.UUID: pa.large_string(),
}


def infer_fields(rows: Sequence[Mapping[str, Any]], *, widen_to_string: bool = False, path: str = "") -> list[pa.Field]:
    """Fields of all keys, in the order of first appearance. Raises SchemaError naming the column and the two types."""
    names: dict[str, None] = {}
    for row in rows:
        if not names.keys() >= row.keys():
            names.update(dict.fromkeys(row))
    fields = []
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"a column name must be text, not {name!r}", where=f"column {path}" if path else "")
        inner = f"{path}.{name}" if path else name
        values = [row[name] for row in rows if name in row]
        try:
            fields.append(pa.field(name, infer_type(values, path=inner, widen_to_string=widen_to_string)))
        except Incompatible as error:
            if not widen_to_string:
                where = f"{inner}{error.path}"
                raise SchemaError(
                    f"column {where!r} holds both {error.left} and {error.right}{f' ({error.why})' if error.why else ''}",
                    mend="Declare its type, make it one type in a step, or set widen_to_string to keep both as text.",
                ) from error
            fields.append(pa.field(name, pa.large_string(), metadata=AS_JSON_TEXT))
    return fields


def infer_type(values: Iterable[Any], *, path: str = "", widen_to_string: bool = False) -> pa.DataType:
    """The type that holds all ``values``. Raises Incompatible."""
    groups: dict[type, list[Any]] = {}
    for value in values:
        groups.setdefault(type(value), []).append(value)
    made = pa.null()
    objects: list[Mapping[str, Any]] = []
    arrays: list[Sequence[Any]] = []
    for kind, members in groups.items():
        if issubclass(kind, Mapping):
            objects.extend(members)
        elif issubclass(kind, (list, tuple, set, frozenset)):
            arrays.extend(members)
        else:
            made = widen(made, _scalar_type(kind, members))
    if arrays:
        item = infer_type(chain.from_iterable(arrays), path=f"{path}[]", widen_to_string=widen_to_string)
        made = widen(made, pa.list_(item))
    if objects:
        made = widen(made, pa.struct(infer_fields(objects, widen_to_string=widen_to_string, path=path)))
    return made


def _scalar_type(kind: type, members: Sequence[Any]) -> pa.DataType:
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if kind is int:
        return _integer_type(members)
    if issubclass(kind, dt.datetime):
        return _stamp_type(members)
    if issubclass(kind, Decimal):
        return _decimal_type(members)
    if issubclass(kind, np.generic):
        return pa.from_numpy_dtype(kind)
    if issubclass(kind, np.ndarray):
        made = pa.null()
        for member in members:
            made = widen(made, pa.list_(pa.array(member.ravel()).type))
        return made
    for parent in (bool, int, float, str, bytes, dt.date):
        if issubclass(kind, parent):
            return _integer_type(members) if parent is int else _SIMPLE[parent]
    raise SchemaError(
        f"a value of type {kind.__module__}.{kind.__qualname__} has no column type",
        mend="Return dicts of numbers, text, bytes, times, lists and dicts.",
    )


def _integer_type(members: Sequence[int]) -> pa.DataType:
    low, high = min(members), max(members)
    if low >= -(2**63) and high <= _MAX_INT64:
        return pa.int64()
    if low >= 0 and high < 2**64:
        return pa.uint64()
    digits = len(str(max(abs(low), abs(high))))
    if digits > 76:
        raise SchemaError(f"an integer of {digits} digits has no column type", mend="Keep it as text.")
    return pa.decimal128(max(20, digits), 0) if digits <= 38 else pa.decimal256(digits, 0)


def _stamp_type(members: Sequence[dt.datetime]) -> pa.DataType:
    made = pa.null()
    for zone in {member.tzinfo for member in members}:
        made = widen(made, pa.timestamp("us", None if zone is None else _zone_name(zone)))
    return made


def _zone_name(zone: dt.tzinfo) -> str:
    """A name that Arrow knows; fixed offsets are kept as UTC instants."""
    key = getattr(zone, "key", None)
    return key if isinstance(key, str) else "UTC"


def _decimal_type(members: Sequence[Decimal]) -> pa.DataType:
    whole = scale = 0
    for member in members:
        _, digits, exponent = member.as_tuple()
        if not isinstance(exponent, int):
            raise SchemaError(f"the Decimal {member} has no column type", mend="Use None, or floats.")
        scale = max(scale, -exponent)
        whole = max(whole, len(digits) + exponent, 1)
    precision = whole + scale
    if precision > 76:
        raise SchemaError(f"Decimals that need {precision} digits have no column type", mend="Round them, or keep them as text.")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
