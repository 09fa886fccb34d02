"""Segments: what a stage's steps are compiled into. Blocks are pushed through a chain of them; each may hold rows back.

A segment knows how many rows of each open item it holds. When an item has ended above it and it holds none of its rows any
more, it says so to the segment below, until the output finishes the item: so batches may span items, and each item still
commits alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cloudshard.engine.block import Block
from cloudshard.engine.convert import slice_of
from cloudshard.engine.item import ItemFailed, ItemState
from cloudshard.engine.rowsteps import RowStep

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A flat_map is given so many rows at a time, and what it made goes on in blocks of so many: memory stays bounded by the rows of a few
#: parents, however many children they have.
FLAT_MAP_ROWS = 64
MOST_ROWS = 4096


class Segment:
    """Base of all segments."""

    def __init__(self) -> None:
        self.below: Segment | None = None
        self.states: Mapping[int, ItemState] = {}
        self.held: Counter[int] = Counter()
        self._ended: set[int] = set()

    def push(self, block: Block) -> None:
        """Take a block. May raise ItemFailed for the block's item."""
        raise TypeError(f"{type(self).__name__} takes no blocks")

    def flush(self, item: int) -> None:
        """Send on what is held of an item that has ended above, unless it may wait for rows of other items."""

    def drain(self) -> None:
        """Send on everything."""

    def close(self) -> None:
        """Free resources; nothing is sent on."""

    def emit(self, block: Block) -> None:
        """Hand a block down. A failure of its item is noted there and ends here: other items' rows in the same batch go on."""
        state = self.states.get(block.origin.item)
        if state is None or state.error is not None or self.below is None or not len(block):
            return
        try:
            self.below.push(block)
        except ItemFailed:
            return

    def end(self, item: int) -> None:
        """No more rows of the item come from above."""
        self._ended.add(item)
        self.flush(item)
        self.settle(item)

    def settle(self, item: int) -> None:
        """Pass the end of an item on if it has ended above and nothing of it is held."""
        if item in self._ended and not self.held[item]:
            self._ended.discard(item)
            del self.held[item]
            if self.below is not None:
                self.below.end(item)

    def forget(self, item: int) -> None:
        """The item failed: its rows are worth nothing."""
        self._ended.discard(item)
        self.held.pop(item, None)

    def failed(self, item: int) -> bool:
        """Whether the item has failed (or is gone)."""
        state = self.states.get(item)
        return state is None or state.error is not None


class RowSegment(Segment):
    """Neighbouring row steps. Holds nothing back."""

    def __init__(self, steps: list[RowStep]) -> None:
        super().__init__()
        self.steps = steps

    def push(self, block: Block) -> None:
        self._run(block, 0, self.states[block.origin.item])

    def _run(self, block: Block, begin: int, state: ItemState) -> None:
        """The block through the steps from ``begin`` on, and down."""
        for index in range(begin, len(self.steps)):
            if not len(block):
                return
            step = self.steps[index]
            multiplies = step.spec.kind == "flat_map"
            if multiplies and len(block) > FLAT_MAP_ROWS:
                for start in range(0, len(block), FLAT_MAP_ROWS):
                    self._run(slice_of(block, start, min(len(block), start + FLAT_MAP_ROWS)), index, state)
                return
            block = step.run(block, state)
            if multiplies and len(block) > MOST_ROWS:
                for start in range(0, len(block), MOST_ROWS):
                    self._run(slice_of(block, start, min(len(block), start + MOST_ROWS)), index + 1, state)
                return
        self.emit(block)
