"""The lattice by which two column types become one that holds the values of both. Fixed: the order of files never matters.

=============================  =====================================================================================
types                          become
=============================  =====================================================================================
null, x                        x
integers                       the narrowest integer that holds both; uint64 with a signed one: decimal128(20, 0)
float, float                   the wider
integer, float                 float64 (an integer beyond 2**53 is then refused row by row, never rounded)
decimal, decimal or integer    decimal with digits for both (at most 76)
decimal, float                 float64
string, large_string, view     large_string; likewise binary: large_binary
dictionary(x), y               x and y
date32, date64                 date64
date, timestamp without zone   that timestamp
timestamp, timestamp           the finer unit; zones that differ: UTC
time, time; durations          the finer unit
struct, struct                 fields of both, field by field; a field that one lacks is nullable
list(x), list(y)               list(x and y), large_list when one is
map, map                       key by key type, value by value type
=============================  =====================================================================================

Everything else cannot be widened: numbers with text, booleans with numbers, timestamps with and without zone, objects with scalars.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_UNITS = ("s", "ms", "us", "ns")


class Incompatible(Exception):
    """Two types have no common one. ``path``: field inside the column (``""`` for the column itself)."""

    def __init__(self, path: str, left: pa.DataType, right: pa.DataType, why: str = "") -> None:
        super().__init__(f"{left} and {right}")
        self.path = path
        self.left = left
        self.right = right
        self.why = why


def widen(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The least type that holds the values of both. Commutative, associative and idempotent. Raises Incompatible."""
    return _widen(left, right, "")


def _widen(left: pa.DataType, right: pa.DataType, path: str) -> pa.DataType:
    if left.equals(right):
        return left
    if pt.is_null(left):
        return right
    if pt.is_null(right):
        return left
    if pt.is_dictionary(left) or pt.is_dictionary(right):
        return _widen(_plain(left), _plain(right), path)
    for rule in (_numbers, _texts, _times, _nested):
        made = rule(left, right, path)
        if made is not None:
            return made
    raise Incompatible(path, left, right)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


# ---------------------------------------------------------------- numbers


def _numbers(left: pa.DataType, right: pa.DataType, path: str) -> pa.DataType | None:
    if not (_is_number(left) and _is_number(right)):
        return None
    if pt.is_floating(left) and pt.is_floating(right):
        return left if left.bit_width > right.bit_width else right
    if pt.is_floating(left) or pt.is_floating(right):
        return pa.float64()
    if pt.is_integer(left) and pt.is_integer(right):
        return _integers(left, right)
    whole = max(_whole_digits(left), _whole_digits(right))
    scale = max(_scale(left), _scale(right))
    digits = whole + scale
    if digits > 76:
        raise Incompatible(path, left, right, "together they need more than 76 digits")
    wide = digits > 38 or pt.is_decimal256(left) or pt.is_decimal256(right)
    return pa.decimal256(digits, scale) if wide else pa.decimal128(digits, scale)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _integers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return left if left.bit_width > right.bit_width else right
    signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
    width = max(signed.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(width, pa.decimal128(20, 0))


def _whole_digits(kind: pa.DataType) -> int:
    if pt.is_integer(kind):
        # the same for all widths: else the order in which integers and decimals meet would change the digits
        return 20 if pt.is_unsigned_integer(kind) and kind.bit_width == 64 else 19
    return int(kind.precision - kind.scale)


def _scale(kind: pa.DataType) -> int:
    return 0 if pt.is_integer(kind) else int(kind.scale)


# ---------------------------------------------------------------- text and bytes


def is_text(kind: pa.DataType) -> bool:
    """string, large_string or string_view."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """binary, large_binary, binary_view or of fixed size."""
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind))


def _texts(left: pa.DataType, right: pa.DataType, path: str) -> pa.DataType | None:
    if is_text(left) and is_text(right):
        return pa.large_string()
    if is_bytes(left) and is_bytes(right):
        return pa.large_binary()
    return None


# ---------------------------------------------------------------- times


def _times(left: pa.DataType, right: pa.DataType, path: str) -> pa.DataType | None:
    if pt.is_date(left) and pt.is_date(right):
        return pa.date64()
    if pt.is_timestamp(left) and pt.is_timestamp(right):
        if (left.tz is None) != (right.tz is None):
            raise Incompatible(path, left, right, "one has a time zone and the other has none")
        return pa.timestamp(_finer(left, right), left.tz if left.tz == right.tz else "UTC")
    for day, stamp in ((left, right), (right, left)):
        if pt.is_date(day) and pt.is_timestamp(stamp):
            if stamp.tz is not None:
                raise Incompatible(path, left, right, "a date has no time zone")
            return stamp
    if pt.is_time(left) and pt.is_time(right):
        unit = _finer(left, right)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if pt.is_duration(left) and pt.is_duration(right):
        return pa.duration(_finer(left, right))
    return None


def _finer(left: pa.DataType, right: pa.DataType) -> str:
    return max(left.unit, right.unit, key=_UNITS.index)


# ---------------------------------------------------------------- nested types


def is_list(kind: pa.DataType) -> bool:
    """list, large_list or of fixed size."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _nested(left: pa.DataType, right: pa.DataType, path: str) -> pa.DataType | None:
    if pt.is_struct(left) and pt.is_struct(right):
        return pa.struct(merge_fields(list(left), list(right), path, _widen))
    if is_list(left) and is_list(right):
        item = pa.field("item", _widen(left.value_type, right.value_type, f"{path}[]"))
        if pt.is_fixed_size_list(left) and pt.is_fixed_size_list(right) and left.list_size == right.list_size:
            return pa.list_(item, left.list_size)
        return pa.large_list(item) if pt.is_large_list(left) or pt.is_large_list(right) else pa.list_(item)
    if pt.is_map(left) and pt.is_map(right):
        key = _widen(left.key_type, right.key_type, f"{path}{{key}}")
        return pa.map_(key, _widen(left.item_type, right.item_type, f"{path}{{value}}"))
    return None


def merge_fields(
    left: list[pa.Field], right: list[pa.Field], path: str, widen_types: Callable[[pa.DataType, pa.DataType, str], pa.DataType]
) -> list[pa.Field]:
    """Fields of both, in the order of first appearance; one that is missing on a side is nullable."""
    others = {field.name: field for field in right}
    merged = []
    for field in left:
        other = others.pop(field.name, None)
        if other is None:
            merged.append(field.with_nullable(True))
            continue
        inner = f"{path}.{field.name}" if path else field.name
        kind = widen_types(field.type, other.type, inner)
        merged.append(pa.field(field.name, kind, field.nullable or other.nullable, field.metadata or other.metadata))
    merged.extend(field.with_nullable(True) for field in right if field.name in others)
    return merged
