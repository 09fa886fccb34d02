"""Cutting a stream of chunks into lines, each with the byte offset at which it starts.

A line belongs to the range in which it starts: the reader of [start, end) with start > 0 looks at the byte before ``start``, skips the
line that an earlier range began, and reads on beyond ``end`` to finish its own last line. Lines end in LF (a CR before it is left to the
parser); the last line needs none. However long a line is, its bytes are held once, and beyond ``limit`` not at all.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

#: Lines are cut and parsed in pieces of this size. Measured on W1 (rows of 2.4 KB): rows of 256 KiB stay in the processor's cache while
#: they are parsed and checked (0.96 of a bare loop's CPU, checks included); with 1 MiB it is 1.09, with 8 MiB 1.49.
PIECE_BYTES = 256 << 10

Line = bytes | bytearray


class LineBatch(NamedTuple):
    """Whole lines with their LF, the byte offset of each, and the same bytes in as few buffers as there are."""

    lines: list[Line]
    positions: list[int]
    buffers: tuple[Line | memoryview, ...]


def line_batches(
    chunks: Iterator[bytes], *, start: int, end: int | None, limit: int, too_long: Callable[[int, int], None]
) -> Iterator[LineBatch]:
    """Batches of the lines that start in [start, end) (``end`` None: to the end of the stream).

    ``chunks`` begins at byte ``start`` - 1, or at 0 when ``start`` is 0. A line of more than ``limit`` bytes (its ending not counted) is
    reported as ``too_long(offset, size)`` once its end is reached, and left out.
    """
    cutter = _Cutter(start, limit, too_long)
    for chunk in chunks:
        for low in range(0, len(chunk), PIECE_BYTES):
            cutter.feed(chunk if len(chunk) <= PIECE_BYTES else chunk[low : low + PIECE_BYTES])
            if cutter.ready is not None and (end is None or cutter.ready.positions[0] < end):
                # handed over without a name here: this frame sleeps while the caller works, and would keep a huge line in memory
                yield cutter.take(end)
            if end is not None and cutter.line_start >= end:
                return
        del chunk  # not held while the next one is fetched
    cutter.finish()
    if cutter.ready is not None:
        yield cutter.take(None)


def _before(batch: LineBatch, end: int) -> LineBatch:
    """Only the lines that start before ``end``."""
    if batch.positions[-1] < end:
        return batch
    keep = bisect_left(batch.positions, end)
    lines = batch.lines[:keep]
    return LineBatch(lines, batch.positions[:keep], tuple(lines))


class _Cutter:
    """``line_start``: offset of the line that is being gathered; when nothing is, of the next one. ``ready``: complete lines."""

    def __init__(self, start: int, limit: int, too_long: Callable[[int, int], None]) -> None:
        self.line_start = start
        self.ready: LineBatch | None = None
        self._limit = limit
        self._too_long = too_long
        self._held: Line = b""
        self._held_size = 0  # larger than len(_held) once the line is beyond the limit
        self._foreign = start > 0  # inside a line of an earlier range
        self._position = max(0, start - 1)  # of the next byte to come

    def take(self, end: int | None) -> LineBatch:
        """What is ready (only lines that start before ``end``), which is no longer held then."""
        batch, self.ready = self.ready or LineBatch([], [], ()), None
        return batch if end is None else _before(batch, end)

    def feed(self, piece: bytes) -> None:
        """Makes ready the lines that ``piece`` completes."""
        position, self._position = self._position, self._position + len(piece)
        low = 0
        if self._foreign:
            low = piece.find(b"\n") + 1
            if not low:
                self.line_start = self._position
                return
            self._foreign = False
            self.line_start = position + low
        high = piece.rfind(b"\n") + 1
        if high <= low:
            self._hold(piece[low:] if low else piece)
            return
        lines: list[Line] = []
        buffers: list[Line | memoryview] = []
        positions: list[int] = []
        if self._held_size:
            first_end = piece.find(b"\n", low) + 1
            self._hold(piece[low:first_end])
            if self._close_line():
                lines.append(self._held)
                buffers.append(self._held)
                positions.append(self.line_start)
            self._held, self._held_size = b"", 0
            low = first_end
        if high > low:
            body = piece if not low and high == len(piece) else piece[low:high]
            cut = io.BytesIO(body).readlines()
            offsets = list(accumulate(map(len, cut), initial=position + low))
            offsets.pop()
            if len(body) <= self._limit or not self._drop_long(cut, offsets):
                buffers.append(body)
            else:
                buffers.extend(cut)
            lines += cut
            positions = positions + offsets if positions else offsets
        self.line_start = position + high
        if high < len(piece):
            self._hold(piece[high:])
        if lines:
            self.ready = LineBatch(lines, positions, tuple(buffers))

    def finish(self) -> None:
        """Makes ready the last line, when it has no ending."""
        if self._held_size and self._close_line():
            self.ready = LineBatch([self._held], [self.line_start], (self._held,))
            self._held, self._held_size = b"", 0

    def _hold(self, part: bytes) -> None:
        """Append to the line that is being gathered. A bytearray grows in place: a second copy of a huge line never exists."""
        self._held_size += len(part)
        if self._held_size > self._limit + 2:
            self._held = (bytes(self._held[-1:]) + part)[-2:]  # only to see how the line ends
        elif not self._held:
            self._held = part
        else:
            if isinstance(self._held, bytes):
                self._held = bytearray(self._held)
            self._held += part

    def _close_line(self) -> bool:
        """Whether the gathered line is within the limit; reports it otherwise."""
        size = self._held_size - _ending(self._held)
        if size <= self._limit:
            return True
        self._too_long(self.line_start, size)
        return False

    def _drop_long(self, lines: list[bytes], positions: list[int]) -> bool:
        """Remove and report lines beyond the limit; whether there were any."""
        sizes = [len(line) - _ending(line) for line in lines]
        if max(sizes) <= self._limit:
            return False
        for index in [index for index, size in enumerate(sizes) if size > self._limit]:
            self._too_long(positions[index], sizes[index])
        kept = [index for index, size in enumerate(sizes) if size <= self._limit]
        lines[:] = [lines[index] for index in kept]
        positions[:] = [positions[index] for index in kept]
        return True


def _ending(line: Line) -> int:
    """Bytes of the line's ending."""
    if line.endswith(b"\r\n"):
        return 2
    return 1 if line.endswith((b"\n", b"\r")) else 0
