"""The order of sort keys: one definition, as sort indices of a table and as byte strings that compare like the rows.

The order is DuckDB's: -0.0 equals 0.0, NaN is greater than every number, strings by their UTF-8 bytes (no collation), false before true;
nulls first or last as asked, whichever the direction. Sorting is stable, so equal keys stay in input order.

``normalised`` gives the *normal form* of a row's keys: bytes whose order (memcmp) is the order of the rows. Samples, slice borders and
partition bounds are such bytes, hence independent of types, directions and nulls. The form of one key: a byte 00 (null, first), 01 (value)
or 02 (null, last), then the value: integers big-endian with the sign flipped; floats as their bits, flipped to sort; decimals as 32-byte
integers; strings and binaries with 00 written as 00 FF and ended by 00 01; all bytes of the value inverted when descending. No form is the
beginning of another row's form, so ``form + b"\\0"`` lies directly after all rows with that form.

Measured, 1 million int64 keys: numpy's unstable argsort (vector instructions) 17 ms before ties are repaired, its stable one 96 ms.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cloudshard.errors import SchemaError
from cloudshard.reduce.hashing import U64, fixed, float_bits, is_bytes, is_text

Indices = npt.NDArray[np.int64]

_SIGN = 1 << 63
_FIRST, _VALUE, _LAST = b"\0", b"\1", b"\2"


class SortKey(msgspec.Struct, frozen=True):
    """One key of a sort: the column, its direction, and where its nulls go (whatever the direction)."""

    column: str
    descending: bool = False
    nulls: Literal["first", "last"] = "last"


def encode_form(form: bytes) -> str:
    """A normal form as text for a record."""
    return base64.b85encode(form).decode("ascii")


def decode_form(text: str) -> bytes:
    """The bytes of :func:`encode_form`."""
    return base64.b85decode(text)


def plain(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array without dictionary, extension, run ends or views."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pt.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == pa.string_view():
        return array.cast(pa.large_string())
    if array.type == pa.binary_view() or pt.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def key_columns(table: pa.Table, keys: Sequence[SortKey]) -> list[pa.Array]:
    """The key columns, each as one plain array. Raises SchemaError for a column that is not there or has no order."""
    found = []
    for key in keys:
        index = table.schema.get_field_index(key.column)
        if index < 0:
            raise SchemaError(
                f"the sort column {key.column!r} is not in the table, or is there twice (columns: {', '.join(table.schema.names)})",
                mend="Name a column of the rows that reach the sort.",
            )
        array = plain(table.column(index))
        kind = array.type
        if not (pt.is_null(kind) or is_text(kind) or is_bytes(kind) or is_fixed(kind)):
            raise SchemaError(f"column {key.column!r} of type {kind} has no order to sort by", mend="Sort by a scalar field of it.")
        found.append(array)
    return found


def is_fixed(kind: pa.DataType) -> bool:
    """Whether values have an order as numbers of fixed width."""
    scalar = pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)
    return bool(scalar or pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind) or pt.is_duration(kind))


# ---------------------------------------------------------------- sort indices


def sort_indices(table: pa.Table, keys: Sequence[SortKey]) -> Indices:
    """Row numbers in sorted order; equal rows in their present order. Raises SchemaError as :func:`key_columns` does."""
    columns = key_columns(table, keys)
    if len(keys) == 1 and is_fixed(columns[0].type) and not _is_wide(columns[0].type):
        return _sort_one(columns[0], keys[0])
    sortable: dict[str, Any] = {}
    order: list[tuple[str, str]] = []
    for number, (array, key) in enumerate(zip(columns, keys, strict=True)):
        if array.null_count:
            flags = array.is_null() if key.nulls == "last" else array.is_valid()
            sortable[f"n{number}"] = flags.cast(pa.uint8())
            order.append((f"n{number}", "ascending"))
        direction = "descending" if key.descending else "ascending"
        if pt.is_null(array.type):
            continue
        if is_fixed(array.type) and not _is_wide(array.type):
            codes = order_codes(array)
            if array.null_count:
                codes[array.is_null().to_numpy(zero_copy_only=False)] = 0
            sortable[f"v{number}"] = pa.array(codes)
        else:
            sortable[f"v{number}"] = array
        order.append((f"v{number}", direction))
    if not order:
        return np.arange(table.num_rows)
    return pc.sort_indices(pa.table(sortable), sort_keys=order).to_numpy().astype(np.int64, copy=False)


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal(kind) and kind.bit_width > 64)


def order_codes(array: pa.Array) -> U64:
    """Unsigned numbers in the order of the values (of a fixed type of at most 64 bits); arbitrary at nulls."""
    kind = array.type
    if pt.is_boolean(kind):
        return array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
    if pt.is_floating(kind):
        bits = float_bits(fixed(array, kind.to_pandas_dtype()))
        return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(_SIGN))
    if pt.is_unsigned_integer(kind):
        return fixed(array, kind.to_pandas_dtype()).astype(np.uint64)
    width = kind.bit_width // 8
    signed = fixed(array, np.dtype(f"i{width}")).astype(np.int64)
    return signed.view(np.uint64) ^ np.uint64(_SIGN)


def _sort_one(array: pa.Array, key: SortKey) -> Indices:
    codes = order_codes(array)
    if key.descending:
        codes = ~codes
    if not array.null_count:
        return argsort_stable(codes)
    null = array.is_null().to_numpy(zero_copy_only=False)
    nulls, values = np.flatnonzero(null), np.flatnonzero(~null)
    values = values[argsort_stable(codes[values])]
    return np.concatenate([nulls, values] if key.nulls == "first" else [values, nulls])


def argsort_stable(codes: U64) -> Indices:
    """Stable argsort: the fast unstable one, then each group of equal codes put back into row order."""
    order = np.argsort(codes)
    if len(order) < 2:
        return order
    ranked = codes[order]
    same = ranked[1:] == ranked[:-1]
    ties = int(np.count_nonzero(same))
    if not ties:
        return order
    if ties > len(order) // 4:
        return np.argsort(codes, kind="stable")
    touched = np.zeros(len(order), bool)
    touched[1:] |= same
    touched[:-1] |= same
    places = np.flatnonzero(touched)
    rows = order[places]
    order[places] = rows[np.lexsort((rows, ranked[places]))]
    return order


# ---------------------------------------------------------------- normal forms


def normalised(table: pa.Table, keys: Sequence[SortKey], rows: Sequence[int] | Indices) -> list[bytes]:
    """The normal forms of some rows' keys (meant for few: samples and borders)."""
    some = table.select([key.column for key in keys]).take(pa.array(rows, pa.int64()))
    columns = [_forms(array, key) for array, key in zip(key_columns(some, keys), keys, strict=True)]
    return [b"".join(forms) for forms in zip(*columns, strict=True)]


def _forms(array: pa.Array, key: SortKey) -> list[bytes]:
    null = _FIRST if key.nulls == "first" else _LAST
    kind = array.type
    if pt.is_null(kind):
        return [null] * len(array)
    if is_text(kind) or is_bytes(kind):
        raw = array.cast(pa.large_binary()).to_pylist()
        values = [None if value is None else value.replace(b"\0", b"\0\xff") + b"\0\1" for value in raw]
    elif _is_wide(kind):
        values = [None if value is None else _wide(value, kind.scale) for value in array.to_pylist()]
    else:
        big = order_codes(array).astype(">u8").tobytes()
        valid = array.is_valid().to_pylist()
        values = [big[8 * at : 8 * at + 8] if there else None for at, there in enumerate(valid)]
    if key.descending:
        values = [None if value is None else value.translate(_INVERTED) for value in values]
    return [null if value is None else _VALUE + value for value in values]


_INVERTED = bytes(255 - byte for byte in range(256))


def _wide(value: Decimal, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return ((-number if sign else number) + (1 << 255)).to_bytes(32, "big")


def first_at_least(table: pa.Table, keys: Sequence[SortKey], bound: bytes) -> int:
    """In a table sorted by ``keys``: the first row whose normal form is at or above ``bound`` (its number of rows if none is)."""
    low, high = 0, table.num_rows
    while low < high:
        middle = (low + high) // 2
        if normalised(table, keys, [middle])[0] < bound:
            low = middle + 1
        else:
            high = middle
    return low


def between(table: pa.Table, keys: Sequence[SortKey], low: bytes | None, high: bytes | None) -> pa.Table:
    """The rows of a sorted table whose normal form is in [low, high); None is open."""
    begin = 0 if low is None else first_at_least(table, keys, low)
    end = table.num_rows if high is None else max(begin, first_at_least(table, keys, high))
    return table if end - begin == table.num_rows else table.slice(begin, end - begin)
