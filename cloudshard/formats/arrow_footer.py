"""The few facts of an Arrow IPC file that pyarrow does not tell: where its record batches lie, and how many rows each has.

Read straight from the flatbuffers of the footer and of the batches' own metadata (a few hundred bytes each), so that a range of a file can
be read without the batches before it. Layout: the format's ``File.fbs`` and ``Message.fbs``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from cloudshard.errors import InputError

MAGIC = b"ARROW1"

#: Reads bytes [start, end) of the file.
ReadBytes = Callable[[int, int], bytes]


class BatchPlace(NamedTuple):
    """One record batch: bytes [start, start + metadata_bytes + body_bytes)."""

    start: int
    metadata_bytes: int
    body_bytes: int

    @property
    def middle(self) -> int:
        """The byte that decides to which range the batch belongs."""
        return self.start + (self.metadata_bytes + self.body_bytes) // 2


def batch_places(read: ReadBytes, size: int, url: str) -> list[BatchPlace]:
    """All record batches, in order. Raises InputError when the file has no valid footer."""
    tail = read(max(0, size - 64 * 1024), size)
    if size < 18 or tail[-6:] != MAGIC:
        raise InputError("not an Arrow IPC file: its end is missing", where=url, mend="It may be truncated; copy it again from its origin.")
    length = struct.unpack_from("<i", tail, len(tail) - 10)[0]
    if not 0 < length <= size - 10:
        raise InputError("an Arrow IPC file with a damaged footer", where=url, mend="Copy it again from its origin.")
    begin = len(tail) - 10 - length
    footer = tail[begin : begin + length] if begin >= 0 else read(size - 10 - length, size - 10)
    try:
        found = _Table.root(footer).structs(3, 24)
        places = [BatchPlace(*struct.unpack_from("<qi4xq", footer, at)) for at in found]
    except (struct.error, IndexError) as error:
        raise InputError(f"an Arrow IPC file with a damaged footer: {error}", where=url, mend="Copy it again from its origin.") from error
    if any(place.start < 0 or place.start + place.metadata_bytes + place.body_bytes > size for place in places):
        raise InputError("an Arrow IPC file whose footer points beyond its end", where=url, mend="Copy it again from its origin.")
    return places


def batch_rows(read: ReadBytes, place: BatchPlace, url: str) -> int:
    """Rows of one batch, from its metadata alone."""
    data = read(place.start, place.start + place.metadata_bytes)
    try:
        prefix = 8 if data[:4] == b"\xff\xff\xff\xff" else 4
        header = _Table.root(data[prefix:]).table(2)
        return header.int64(0)
    except (struct.error, IndexError) as error:
        raise InputError(
            f"a damaged record batch at byte {place.start}: {error}", where=url, mend="Copy the file again from its origin."
        ) from error


class _Table:
    """A flatbuffers table: fields by number, absent ones are zero or empty."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        self._count = (struct.unpack_from("<H", data, self._fields)[0] - 4) // 2

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _place(self, number: int) -> int:
        offset = struct.unpack_from("<H", self._data, self._fields + 4 + 2 * number)[0] if number < self._count else 0
        return self._at + offset if offset else 0

    def int64(self, number: int) -> int:
        place = self._place(number)
        return int(struct.unpack_from("<q", self._data, place)[0]) if place else 0

    def table(self, number: int) -> _Table:
        place = self._place(number)
        if not place:
            raise IndexError(f"field {number} is missing")
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def structs(self, number: int, size: int) -> list[int]:
        """Places of the members of a vector of structs."""
        place = self._place(number)
        if not place:
            return []
        vector = place + struct.unpack_from("<I", self._data, place)[0]
        count = struct.unpack_from("<I", self._data, vector)[0]
        if count * size > len(self._data) - vector:  # before a list of billions is made of a damaged number
            raise IndexError(f"a vector of {count} members in {len(self._data)} bytes")
        return [vector + 4 + size * index for index in range(count)]
