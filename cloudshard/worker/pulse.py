"""A child's pulse: one page of shared memory that the supervisor reads without asking, even after the child has died.

Layout (little-endian, 8 bytes a cell): the cells of :class:`Cell`, then from byte ``OBJECT_AT`` the UTF-8 name of the object of the
row in hand. A writer sets the name before the position, so that a reader of a dead child's page sees a pair that belongs together,
or no position at all.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from enum import IntEnum
from typing import NamedTuple

PAGE_BYTES = 8192
OBJECT_AT = 256
STEP_AT = 6144
_OBJECT_BYTES = STEP_AT - OBJECT_AT
_STEP_BYTES = PAGE_BYTES - STEP_AT


class Cell(IntEnum):
    """Cells of the page. ``BEAT`` counts signs of life; ``CALL_SINCE`` is CLOCK_MONOTONIC in milliseconds, 0 outside user code;
    ``MOVED_AT``, likewise, has a writer of its own (a thread of the child)."""

    BEAT = 0
    ROWS = 1
    BYTES = 2
    TICKET = 3
    CALL_SINCE = 4
    CALL_ALLOWED = 5
    POSITION = 6
    OBJECT_LENGTH = 7
    STEP_LENGTH = 8
    MOVED_AT = 9


class RowPlace(NamedTuple):
    """The row that a careful child had in hand, and the step (empty: not known)."""

    object: str
    position: int
    step: str = ""


def new_page() -> int:
    """A file descriptor of a zeroed page in memory, to be shared by handing it over."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("cloudshard-pulse", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, PAGE_BYTES)
    return handle


class Pulse:
    """One page. The child writes, the supervisor reads. Closes nothing but its own mapping; ``handle`` may be closed after."""

    def __init__(self, handle: int) -> None:
        self._map = mmap.mmap(handle, PAGE_BYTES)
        self._bytes = memoryview(self._map)
        self.cells = self._bytes[:OBJECT_AT].cast("q")
        self._object = ""
        self._step = ""

    # ------------------------------------------------------------ the child's side

    def beat(self, rows: int = 0, nbytes: int = 0) -> None:
        """Something has moved: ``rows`` and ``nbytes`` more."""
        cells = self.cells
        cells[Cell.BEAT] += 1
        cells[Cell.ROWS] += rows
        cells[Cell.BYTES] += nbytes

    def begin(self, ticket: int) -> None:
        """Start an attempt: no row in hand yet."""
        self.cells[Cell.POSITION] = -1
        self.cells[Cell.CALL_SINCE] = 0
        self.cells[Cell.TICKET] = ticket
        self.cells[Cell.BEAT] += 1

    def enter_call(self, allowed_seconds: float = 0.0) -> None:
        """User code begins; it may take ``allowed_seconds`` (0: the worker's usual patience)."""
        self.cells[Cell.CALL_ALLOWED] = int(allowed_seconds * 1000)
        self.cells[Cell.CALL_SINCE] = int(time.monotonic() * 1000) or 1
        self.cells[Cell.BEAT] += 1

    def leave_call(self) -> None:
        """User code has returned."""
        self.cells[Cell.CALL_SINCE] = 0
        self.cells[Cell.BEAT] += 1

    def moved(self) -> None:
        """The call in hand is getting somewhere: its time begins anew. May be called from another thread of the child."""
        self.cells[Cell.MOVED_AT] = int(time.monotonic() * 1000)

    def leave_row(self) -> None:
        """No row is in hand."""
        self.cells[Cell.POSITION] = -1

    def at_row(self, object: str, position: int, step: str = "") -> None:
        """Take a row in hand (careful mode). Names too long for the page are cut in the middle of nowhere but still compared cut."""
        cells = self.cells
        if object != self._object:
            cells[Cell.POSITION] = -1
            data = object.encode("utf-8", "surrogatepass")[:_OBJECT_BYTES]
            self._bytes[OBJECT_AT : OBJECT_AT + len(data)] = data
            cells[Cell.OBJECT_LENGTH] = len(data)
            self._object = object
        if step != self._step:
            data = step.encode("utf-8", "surrogatepass")[:_STEP_BYTES]
            self._bytes[STEP_AT : STEP_AT + len(data)] = data
            cells[Cell.STEP_LENGTH] = len(data)
            self._step = step
        cells[Cell.POSITION] = position
        cells[Cell.BEAT] += 1

    # ------------------------------------------------------------ the supervisor's side

    @property
    def beats(self) -> int:
        """Moves whenever the child does."""
        return self.cells[Cell.BEAT]

    @property
    def rows(self) -> int:
        """Rows read so far by this child."""
        return self.cells[Cell.ROWS]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows read so far."""
        return self.cells[Cell.BYTES]

    @property
    def ticket(self) -> int:
        """The assignment begun last (0: none yet)."""
        return self.cells[Cell.TICKET]

    def call(self) -> tuple[float, float] | None:
        """(seconds in the present user call without a sign of life, seconds allowed or 0), or None outside user code."""
        since = self.cells[Cell.CALL_SINCE]
        if not since:
            return None
        since = max(since, self.cells[Cell.MOVED_AT])
        return max(0.0, time.monotonic() - since / 1000), self.cells[Cell.CALL_ALLOWED] / 1000

    def row_in_hand(self) -> RowPlace | None:
        """The row that the careful child had taken in hand, or None when it had none."""
        position = self.cells[Cell.POSITION]
        length = self.cells[Cell.OBJECT_LENGTH]
        if position < 0 or not length:
            return None
        name = bytes(self._bytes[OBJECT_AT : OBJECT_AT + length]).decode("utf-8", "replace")
        step = bytes(self._bytes[STEP_AT : STEP_AT + self.cells[Cell.STEP_LENGTH]]).decode("utf-8", "replace")
        return RowPlace(name, position, step)

    def close(self) -> None:
        """Unmap the page."""
        self.cells.release()
        self._bytes.release()
        self._map.close()
