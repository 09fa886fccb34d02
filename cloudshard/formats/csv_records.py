"""From lines to CSV records: a record goes on over line ends that stand inside quotes. Each keeps the byte offset at which it starts.

Inside and outside of quotes are told apart by counting: a doubled quote changes nothing, so a record is complete when the number of quote
characters so far is even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cloudshard.formats.lines import Line, LineBatch


class Records(NamedTuple):
    """Records with their line ends, and their byte offsets."""

    records: list[Line]
    positions: list[int]


class RecordJoiner:
    """``limit``: bytes of a record at most; ``too_long(position, size)`` is told of larger ones, ``open_quote(position)`` of one whose
    quote is never closed."""

    def __init__(
        self, quote: bytes | None, limit: int, too_long: Callable[[int, int], None], open_quote: Callable[[int, bytes], None]
    ) -> None:
        self._quote = quote
        self._limit = limit
        self._too_long = too_long
        self._open_quote = open_quote

    def join(self, batches: Iterator[LineBatch]) -> Iterator[Records]:
        """The records of the lines, batch by batch."""
        quote = self._quote
        held = bytearray()
        start, size = 0, 0
        for batch in batches:
            if quote is None or (not size and not any(quote in _bytes(buffer) for buffer in batch.buffers)):
                yield Records(batch.lines, batch.positions)
                continue
            records: list[Line] = []
            positions: list[int] = []
            for line, position in zip(batch.lines, batch.positions, strict=True):
                odd = line.count(quote) % 2
                if not size and not odd:
                    records.append(line)
                    positions.append(position)
                    continue
                if not size:
                    start = position
                size += len(line)
                if size <= self._limit:
                    held += line
                if start == position or not odd:
                    continue  # still inside the quotes
                if size <= self._limit:
                    records.append(bytes(held))
                    positions.append(start)
                else:
                    self._too_long(start, size)
                held, size = bytearray(), 0
            if records:
                yield Records(records, positions)
        if size > self._limit:
            self._too_long(start, size)
        elif size:
            self._open_quote(start, bytes(held))


def _bytes(buffer: Line | memoryview) -> Line:
    return bytes(buffer) if isinstance(buffer, memoryview) else buffer
