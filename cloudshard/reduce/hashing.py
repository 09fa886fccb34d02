"""The pinned 64-bit hash of key columns: the same on every version, platform and machine, because runs of different workers must agree.

All arithmetic is modulo 2**64. ``mix`` is the finaliser of splitmix64: x ^= x>>30; x *= 0xBF58476D1CE4E5B9; x ^= x>>27;
x *= 0x94D049BB133111EB; x ^= x>>31. Every kind of value has a tag T (``_TAGS``); with a seed, T ^ mix(seed) stands for T. The value's hash:

null        mix(T). Null is equal to null and to nothing else (that a *join* never matches nulls is the join's business).
bool        mix(0 or 1 ^ T)
integer     mix(two's complement in 64 bits ^ T): equal by value over all widths, signed and unsigned (from 2**63 on T is another).
float       widened to 64 bits; -0.0 is 0.0; every NaN is 0x7FF8000000000000; mix(bits ^ T). A whole float is *not* the integer.
decimal     n * 10**-scale in the field modulo 2**61-1, so that 1.5 = 1.50 whatever width and scale; mix(residue ^ T)
date        days since 1970 (both date types); time: nanoseconds since midnight; mix(number ^ T)
timestamp   mix(mix(whole seconds since 1970 ^ T) ^ nanoseconds): independent of the unit. With a zone it is the instant, whatever the
            zone; without one it has another tag. Duration likewise.
string      UTF-8 bytes, no normalisation (NFC and NFD differ); all string types alike. Binary likewise, with another tag.
            At most 32 bytes: h = T ^ length; for each little-endian 8-byte word w (the last padded with zeros):
            h = (h ^ w) * 0x9FB21C651E98DF25; h ^= h>>29; then mix(h). Longer: mix(xxh3_64(bytes, seed) ^ T).
dictionary, run-end encoded, extension: the hash of the values they stand for
struct      h = mix(T + number of fields); for each field in order: h = mix(h * 0x9E3779B97F4A7C15 + hash of the field). Names do not count.
list        (all list types) mix(S ^ mix(T + length)), S the sum over i of mix(hash of element i + (i + 1) * 0x9E3779B97F4A7C15)

The hash of a row is that of its first key; for each further key h = mix(h * 0x9E3779B97F4A7C15 + hash of the value).

Measured (one core, million values per second): int64 476, strings of 17 bytes 17 (a loop over xxh3: 11; dictionary first: 7),
texts of 2 KB 1.4 (2.8 GB/s). Short strings are therefore hashed as words in numpy, long ones by xxh3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from cloudshard.errors import SchemaError

U64 = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0x9FB21C651E98DF25
_SHORT = 32
_PRIME = (1 << 61) - 1
#: Rows hashed at a time: the temporaries stay in the second-level cache.
_CHUNK = 1 << 15

#: First eight hex words of pi's fraction and on: nothing up the sleeve.
_TAGS = {
    "null": 0x243F6A8885A308D3,
    "bool": 0x13198A2E03707344,
    "int": 0xA4093822299F31D0,
    "uint": 0x082EFA98EC4E6C89,
    "float": 0x452821E638D01377,
    "decimal": 0xBE5466CF34E90C6C,
    "date": 0xC0AC29B7C97C50DD,
    "time": 0x3F84D5B5B5470917,
    "instant": 0x9216D5D98979FB1B,
    "timestamp": 0xD1310BA698DFB5AC,
    "duration": 0x2FFD72DBD01ADFB7,
    "string": 0xB8E1AFED6A267E96,
    "binary": 0xBA7C9045F12C7F99,
    "struct": 0x24A19947B3916CF7,
    "list": 0x0801F2E2858EFC16,
}

_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(9)], dtype=np.uint64)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def hash_rows(table: pa.Table | pa.RecordBatch, keys: Sequence[str], *, seed: int = 0) -> U64:
    """The hash of each row's ``keys``: uint64, one per row. Two seeds together make a hash of 128 bits.

    Raises SchemaError for a key that the table lacks, or whose type has no hash (map, union, interval).
    """
    result: U64 | None = None
    for key in keys:
        index = table.schema.get_field_index(key)
        if index < 0:
            raise SchemaError(
                f"the key column {key!r} is not in the table, or is there twice (columns: {', '.join(table.schema.names)})",
                mend="Name a column of the rows that reach the boundary.",
            )
        try:
            values = hash_column(table.column(index), seed=seed)
        except _Unhashable as error:
            raise SchemaError(f"column {key!r} of type {error.kind} cannot be a key", mend="Cast it, or use a field of it.") from error
        result = values if result is None else combine(result, values)
    if result is None:
        raise SchemaError("no key column is given", mend="Name at least one.")
    return result


def combine(hashes: U64, values: U64) -> U64:
    """The hash of a row that has a further key."""
    return mix(hashes * np.uint64(_GOLDEN) + values)


def mix(values: U64) -> U64:
    """The finaliser of splitmix64, elementwise, into a new array."""
    x = values ^ (values >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def mix_one(value: int) -> int:
    """The finaliser of one number."""
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & _MASK
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


class _Unhashable(Exception):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(str(kind))
        self.kind = kind


def hash_column(column: pa.ChunkedArray | pa.Array, *, seed: int = 0) -> U64:
    """The hash of each value of a column."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    hashed = [_hash_array(chunk, mix_one(seed & _MASK), seed & _MASK) for chunk in chunks]
    return hashed[0] if len(hashed) == 1 else np.concatenate([np.empty(0, np.uint64), *hashed])


def _tag(name: str, salt: int) -> np.uint64:
    return np.uint64(_TAGS[name] ^ salt)


def _hash_array(array: pa.Array, salt: int, seed: int) -> U64:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _hash_array(array.storage, salt, seed)
    null = np.uint64(mix_one(_TAGS["null"] ^ salt))
    if pt.is_null(kind):
        return np.full(len(array), null)
    if pt.is_dictionary(kind):
        codes = array.indices
        inner = np.append(_hash_array(array.dictionary, salt, seed), null)
        return inner[codes.cast(pa.int64()).fill_null(len(inner) - 1).to_numpy(zero_copy_only=False)]
    if pt.is_run_end_encoded(kind):
        return _hash_array(pc.run_end_decode(array), salt, seed)
    result = _hash_filled(array, kind, salt, seed)
    if array.null_count:
        result[array.is_null().to_numpy(zero_copy_only=False)] = null
    return result


def _hash_filled(array: pa.Array, kind: pa.DataType, salt: int, seed: int) -> U64:
    """Hashes of all values; what stands where a value is null does not matter."""
    if is_text(kind) or is_bytes(kind):
        return _hash_bytes(array, _tag("string" if is_text(kind) else "binary", salt), seed)
    if pt.is_struct(kind):
        result = np.full(len(array), np.uint64(mix_one((_TAGS["struct"] ^ salt) + kind.num_fields & _MASK)))
        for child in array.flatten():
            result = combine(result, _hash_array(child, salt, seed))
        return result
    if is_list(kind):
        return _hash_lists(array, salt, seed)
    result = np.empty(len(array), np.uint64)
    for start in range(0, len(array), _CHUNK):
        result[start : start + _CHUNK] = _hash_numbers(array.slice(start, _CHUNK), kind, salt)
    return result


def _hash_numbers(array: pa.Array, kind: pa.DataType, salt: int) -> U64:
    if pt.is_boolean(kind):
        return mix(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64) ^ _tag("bool", salt))
    if pt.is_integer(kind):
        values = fixed(array, kind.to_pandas_dtype())
        bits = values.astype(np.int64, copy=False).view(np.uint64) if pt.is_signed_integer(kind) else values.astype(np.uint64, copy=False)
        if kind == pa.uint64():
            tags = np.where(bits >> np.uint64(63), _tag("uint", salt), _tag("int", salt))
            return mix(bits ^ tags)
        return mix(bits ^ _tag("int", salt))
    if pt.is_floating(kind):
        return mix(float_bits(fixed(array, kind.to_pandas_dtype())) ^ _tag("float", salt))
    if pt.is_decimal(kind):
        return mix(_residues(array, kind) ^ _tag("decimal", salt))
    if kind == pa.date32():
        return mix(fixed(array, np.int32).astype(np.int64).view(np.uint64) ^ _tag("date", salt))
    if kind == pa.date64():
        return mix((fixed(array, np.int64) // 86_400_000).view(np.uint64) ^ _tag("date", salt))
    if pt.is_time(kind):
        ticks = fixed(array, np.int32 if pt.is_time32(kind) else np.int64).astype(np.int64)
        return mix((ticks * (1_000_000_000 // _PER_SECOND[kind.unit])).view(np.uint64) ^ _tag("time", salt))
    if pt.is_timestamp(kind):
        return _seconds(fixed(array, np.int64), kind.unit, _tag("timestamp" if kind.tz is None else "instant", salt))
    if pt.is_duration(kind):
        return _seconds(fixed(array, np.int64), kind.unit, _tag("duration", salt))
    raise _Unhashable(kind)


def fixed(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """The values of a fixed-width array without a copy, whatever its nulls (what stands at a null is arbitrary)."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=array.offset + len(array))[array.offset :]


def float_bits(values: npt.NDArray[Any]) -> U64:
    """Bits of the values as 64-bit floats, with one zero and one NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaNs become quiet, which is what we want
        wide = values.astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    bits: U64 = wide.view(np.uint64)
    bits[np.isnan(wide)] = 0x7FF8000000000000
    return bits


def _seconds(ticks: npt.NDArray[np.int64], unit: str, tag: np.uint64) -> U64:
    per = _PER_SECOND[unit]
    seconds = ticks // per
    nanoseconds = (ticks - seconds * per) * (1_000_000_000 // per)
    return mix(mix(seconds.view(np.uint64) ^ tag) ^ nanoseconds.view(np.uint64))


def _residues(array: pa.Array, kind: pa.DataType) -> U64:
    """Each decimal's value modulo 2**61-1, by Horner's rule over its 32-bit digits."""
    digits = kind.bit_width // 32
    words = fixed(array, np.dtype((np.uint32, (digits,))) if digits > 1 else np.uint32).reshape(-1, digits).astype(np.uint64)
    negative = words[:, -1] >> np.uint64(31)
    total = np.zeros(len(words), np.uint64)
    for digit in range(digits - 1, -1, -1):
        total = _reduced(_times(total, 1 << 32) + words[:, digit])
    total = _reduced(total + negative * np.uint64(_PRIME - pow(2, 32 * digits, _PRIME)))
    return _times(total, pow(10, -kind.scale % (_PRIME - 1), _PRIME)) if kind.scale else total


def _reduced(values: U64) -> U64:
    prime = np.uint64(_PRIME)
    values = (values & prime) + (values >> np.uint64(61))
    return np.where(values >= prime, values - prime, values)


def _times(values: U64, factor: int) -> U64:
    """``values * factor`` modulo 2**61-1, both below it: 2**61 is 1 there."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a_high, a_low = values >> shift, values & low
    b_high, b_low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    middle = a_high * b_low + a_low * b_high
    folded = (middle >> np.uint64(29)) + ((middle & np.uint64((1 << 29) - 1)) << shift)
    return _reduced(a_high * b_high * np.uint64(8) + folded + _reduced(a_low * b_low))


# ---------------------------------------------------------------- strings and lists


def is_text(kind: pa.DataType) -> bool:
    """Any string type."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or kind == pa.string_view())


def is_bytes(kind: pa.DataType) -> bool:
    """Any binary type."""
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or kind == pa.binary_view())


def is_list(kind: pa.DataType) -> bool:
    """Any list type."""
    return bool(
        pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) or pt.is_list_view(kind) or pt.is_large_list_view(kind)
    )


def byte_values(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Any string or binary array as (offsets, one more than values; all bytes)."""
    kind = array.type
    if kind == pa.string_view() or kind == pa.binary_view() or pt.is_fixed_size_binary(kind):
        array = array.cast(pa.large_string() if kind == pa.string_view() else pa.large_binary())
        kind = array.type
    dtype = np.int64 if pt.is_large_string(kind) or pt.is_large_binary(kind) else np.int32
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, np.int64), np.empty(0, np.uint8)
    taken = np.frombuffer(offsets, dtype, count=array.offset + len(array) + 1)[array.offset :].astype(np.int64)
    return taken, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _hash_bytes(array: pa.Array, tag: np.uint64, seed: int) -> U64:
    offsets, data = byte_values(array)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    result = np.empty(len(lengths), np.uint64)
    long = lengths > _SHORT
    some = bool(long.any())
    if not some or not long.all():
        for start in range(0, len(lengths), _CHUNK):
            part = slice(start, start + _CHUNK)
            size = np.where(long[part], 0, lengths[part]) if some else lengths[part]
            result[part] = _hash_words(offsets[:-1][part], size, data, tag)
    if some:
        rows = np.flatnonzero(long)
        view = data.data
        digest = xxhash.xxh3_64_intdigest
        for start in range(0, len(rows), _CHUNK):
            some_rows = rows[start : start + _CHUNK]
            starts = offsets[some_rows].tolist()
            ends = (offsets[some_rows] + lengths[some_rows]).tolist()
            found = [digest(view[begin:end], seed) for begin, end in zip(starts, ends, strict=True)]
            result[some_rows] = mix(np.array(found, np.uint64) ^ tag)
    return result


def _hash_words(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], tag: np.uint64) -> U64:
    """Values of at most 32 bytes, word by word over all rows at once."""
    hashes: U64 = lengths.astype(np.uint64) ^ tag
    longest = int(lengths.max(initial=0))
    shortest = int(lengths.min(initial=0))
    if longest and data.size < 8:
        data = np.concatenate([data, np.zeros(8, np.uint8)])
    if longest:
        words = np.lib.stride_tricks.as_strided(data[:8].view("<u8"), (data.size - 7,), (1,))
        last = data.size - 8
    for at in range(0, longest, 8):
        where = starts + at
        # a word that would end after the last byte is read earlier and shifted down: its first bytes belong to what stands before
        late = np.maximum(where - last, 0)
        word: U64 = words[where - late]
        if late.any():
            word >>= (np.minimum(late, 7) * 8).astype(np.uint64)
        rest = lengths - at
        if shortest < at + 8:
            word &= _MASKS[np.clip(rest, 0, 8)]
        made: U64 = (hashes ^ word) * np.uint64(_WORD)
        made ^= made >> np.uint64(29)
        if shortest <= at:
            np.copyto(made, hashes, where=rest <= 0)
        hashes = made
    return mix(hashes)


def _hash_lists(array: pa.Array, salt: int, seed: int) -> U64:
    lengths = pc.list_value_length(array).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    elements = _hash_array(array.flatten(), salt, seed)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    places = np.arange(1, len(elements) + 1, dtype=np.uint64) - np.repeat(begins, lengths).astype(np.uint64)
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(mix(elements + places * np.uint64(_GOLDEN)), out=sums[1:])
    sizes = mix(lengths.astype(np.uint64) + _tag("list", salt))
    totals: U64 = sums[ends] - sums[begins]
    return mix(totals ^ sizes)
