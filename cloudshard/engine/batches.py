"""The queue of a batch step: it fires when it has enough rows or bytes, and is flushed at the item's end.

With ``span`` one queue takes the rows of all open items, to fill a model's batches; otherwise each item has its own. A batch that fails is
cut in halves until the failing rows are alone; the others go on. What is in a batch is a list of :class:`Piece`, one per block that it
was filled from, so that every row keeps its item and its place.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cloudshard.engine.block import Block
from cloudshard.engine.convert import WrongBatch, row_of, size_of, slice_of
from cloudshard.engine.item import ItemFailed, ItemState
from cloudshard.engine.policy import BeforeRow, is_out_of_memory, step_error, suppress
from cloudshard.engine.segments import Segment
from cloudshard.plan.values import StepSpec

_LOG = logging.getLogger("cloudshard.engine")


@dataclass(slots=True)
class Piece:
    """Rows of one block in a batch: as they came (``block``), and as the step is given them (``table``; None: as they came)."""

    block: Block
    table: pa.Table | None = None

    def __len__(self) -> int:
        return len(self.block)

    def cut(self, start: int, end: int) -> Piece:
        """Rows [start, end)."""
        return Piece(slice_of(self.block, start, end), None if self.table is None else self.table.slice(start, end - start))


class _Queue:
    """Blocks in order, with their rows and bytes."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._blocks: deque[tuple[Block, int]] = deque()

    def add(self, block: Block) -> None:
        size = size_of(block)
        self._blocks.append((block, size))
        self.rows += len(block)
        self.nbytes += size

    def take(self, rows: int) -> list[Block]:
        """The first ``rows`` rows."""
        taken = []
        while rows and self._blocks:
            block, size = self._blocks.popleft()
            if len(block) > rows:
                share = size * rows // len(block)
                self._blocks.appendleft((slice_of(block, rows, len(block)), size - share))
                block, size = slice_of(block, 0, rows), share
            taken.append(block)
            rows -= len(block)
            self.rows -= len(block)
            self.nbytes -= size
        return taken

    def forget(self, item: int) -> None:
        kept = [(block, size) for block, size in self._blocks if block.origin.item != item]
        self._blocks = deque(kept)
        self.rows = sum(len(block) for block, _ in kept)
        self.nbytes = sum(size for _, size in kept)


class QueueSegment(Segment):
    """Base of the batch steps: subclasses say how a batch is prepared and what the step does with it."""

    def __init__(self, spec: StepSpec, index: int, *, rows: int, nbytes: int, span: bool) -> None:
        super().__init__()
        self.spec = spec
        self.index = index
        self.before_row: BeforeRow | None = None
        self._most_rows = rows
        self._most_bytes = nbytes
        self._span = span
        self._queues: dict[int, _Queue] = {}

    # ------------------------------------------------------------ for subclasses

    def _prepare(self, batch: list[Block]) -> list[Piece]:
        """The batch in the form that the step wants; rows that cannot have it are dealt with here. Called once per batch."""
        return [Piece(block) for block in batch]

    def _call(self, batch: Sequence[Piece]) -> list[Block]:
        """Run the step over the whole batch and count its rows; raises whatever the step raises."""
        raise TypeError(f"{type(self).__name__} has no call")

    def _is_hopeless(self, error: BaseException) -> bool:
        """Whether the error is none of a row, so that smaller batches would fail just so."""
        return isinstance(error, WrongBatch)

    # ------------------------------------------------------------ the queue

    def push(self, block: Block) -> None:
        item = block.origin.item
        queue = self._queues.setdefault(-1 if self._span else item, _Queue())
        queue.add(block)
        self.held[item] += len(block)
        while queue.rows and (queue.rows >= self._most_rows or queue.nbytes >= self._most_bytes):
            rows = min(self._most_rows, queue.rows)
            if queue.nbytes > self._most_bytes:
                rows = min(rows, max(1, queue.rows * self._most_bytes // queue.nbytes))
            self._fire(queue.take(rows))

    def flush(self, item: int) -> None:
        queue = None if self._span else self._queues.pop(item, None)
        if queue is not None:
            self._fire(queue.take(queue.rows))

    def drain(self) -> None:
        for name in list(self._queues):
            queue = self._queues.pop(name)
            self._fire(queue.take(queue.rows))

    def forget(self, item: int) -> None:
        super().forget(item)
        if self._span and -1 in self._queues:
            self._queues[-1].forget(item)
        self._queues.pop(item, None)

    # ------------------------------------------------------------ one batch

    def _fire(self, batch: list[Block]) -> None:
        batch = [block for block in batch if not self.failed(block.origin.item)]
        if not batch:
            return
        began = time.perf_counter()
        outputs = self._run_whole(self._alive(self._prepare(batch)))
        seconds = (time.perf_counter() - began) / max(1, sum(map(len, batch)))
        rows: dict[int, int] = {}
        for block in batch:
            rows[block.origin.item] = rows.get(block.origin.item, 0) + len(block)
        for item, count in rows.items():
            self.states[item].tallies[self.index].seconds += seconds * count
        for output in outputs:
            self.emit(output)
        for item, count in rows.items():
            self.held[item] -= count
            self.settle(item)

    def _alive(self, batch: list[Piece]) -> list[Piece]:
        return [piece for piece in batch if len(piece) and not self.failed(piece.block.origin.item)]

    def _run_whole(self, batch: list[Piece]) -> list[Block]:
        """The outputs of a batch. One that fails as a whole and not in its parts is told of: nobody else would notice."""
        if not batch:
            return []
        before = self._suppressed(batch)
        errors: list[BaseException] = []
        outputs = self._run(batch, errors)
        if errors and not any(self.failed(piece.block.origin.item) for piece in batch) and self._suppressed(batch) == before:
            _LOG.warning(
                "step %s failed on %d rows together and succeeded on parts of them: %s: %s",
                self.spec.name,
                sum(map(len, batch)),
                type(errors[0]).__name__,
                errors[0],
            )
        return outputs

    def _suppressed(self, batch: Sequence[Piece]) -> int:
        items = {piece.block.origin.item for piece in batch}
        tallies = [self.states[item].tallies[self.index] for item in items]
        return sum(tally.dropped + tally.quarantined for tally in tallies)

    def _run(self, batch: list[Piece], errors: list[BaseException]) -> list[Block]:
        """The outputs of a batch; if it fails, of its halves. ``errors`` gets what was raised on the way."""
        if not batch:
            return []
        rows = sum(map(len, batch))
        first = batch[0].block
        if self.before_row is not None:
            self.before_row(first.origin.object, first.positions[0], self.spec.name)
        try:
            return self._call(batch)
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
            errors.append(error)
            if is_out_of_memory(error):
                self._fail_all(batch, error)
                return []
            if rows == 1 or self._is_hopeless(error):
                self._give_up(batch, error)
                return []
            left, right = _halves(batch, rows // 2)
            outputs = self._run(left, errors)
            # with "raise" the first half's failure has ended the item: its other rows need not be tried
            return outputs + self._run(self._alive(right), errors)

    def _fail_all(self, batch: Sequence[Piece], error: BaseException) -> None:
        for piece in batch:
            self._state(piece).fail(step_error(error, self.spec.name, _span_of(piece.block)))

    def _give_up(self, batch: Sequence[Piece], error: BaseException) -> None:
        """Each row of the batch has failed with ``error``."""
        for piece in batch:
            if self.spec.on_error == "raise":  # the place is the batch's
                self._state(piece).fail(step_error(error, self.spec.name, _span_of(piece.block)))
                continue
            for index in range(len(piece)):
                self.suppress_row(piece.block, index, error)

    def suppress_row(self, block: Block, index: int, error: BaseException) -> None:
        """Apply the step's policy to one row of a block, and count it as gone."""
        state = self.states[block.origin.item]
        if state.error is not None:
            return
        tally = state.tallies[self.index]
        place = {"step": self.spec.name, "origin": block.origin, "position": block.positions[index]}
        try:
            suppress(state, tally, self.spec.on_error, error, row=row_of(block, index), **place)  # type: ignore[arg-type]
        except ItemFailed:
            return
        tally.through(1, 0, 1)

    def _state(self, piece: Piece) -> ItemState:
        return self.states[piece.block.origin.item]


def _halves(batch: Sequence[Piece], rows: int) -> tuple[list[Piece], list[Piece]]:
    """The first ``rows`` rows of the batch, and the others."""
    left: list[Piece] = []
    right: list[Piece] = []
    for piece in batch:
        if rows >= len(piece):
            left.append(piece)
        elif rows <= 0:
            right.append(piece)
        else:
            left.append(piece.cut(0, rows))
            right.append(piece.cut(rows, len(piece)))
        rows -= len(piece)
    return left, right


def _span_of(block: Block) -> str:
    """The place of a block's rows, in words."""
    first, last = block.positions[0], block.positions[-1]
    where = f"{block.origin.object}, {block.origin.unit} {first}"
    return where if first == last else f"{where} to {last}"
