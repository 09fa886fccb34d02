"""Batch segments: map_batches and SQL over Arrow tables, with a queue of their own that fires when it is full."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from cloudshard.engine.block import Block, Origin
from cloudshard.engine.convert import as_table, concat, given, rows_of, taken
from cloudshard.engine.item import ItemFailed
from cloudshard.engine.policy import BeforeRow, suppress
from cloudshard.engine.segments import Segment
from cloudshard.errors import StepError
from cloudshard.plan.values import StepSpec

#: Without a size given, a batch fires at these: Arrow's overhead is gone above a few thousand rows, memory stays bounded.
DEFAULT_BATCH_ROWS = 16_384
DEFAULT_BATCH_BYTES = 64 << 20

#: A table to a table.
TableFunction = Callable[[pa.Table], pa.Table]


class BatchSegment(Segment):
    """One batch step. ``span``: one output row per input row is promised, so a batch may hold rows of several items."""

    def __init__(
        self, spec: StepSpec, index: int, function: TableFunction, *, keeps_rows: bool, careful: bool, schema: pa.Schema | None = None
    ) -> None:
        super().__init__()
        self.spec = spec
        self.index = index
        self.before_row: BeforeRow | None = None
        self._function = function
        self._span = bool(spec.params.get("span_shards"))
        self._keeps_rows = keeps_rows or self._span
        self._rows = 1 if careful else int(spec.params.get("batch_rows") or DEFAULT_BATCH_ROWS)
        self._bytes = int(spec.params.get("batch_bytes") or DEFAULT_BATCH_BYTES)
        self._queues: dict[int, list[Block]] = {}
        self._conformer = _conformer(schema)

    def push(self, block: Block) -> None:
        block = as_table(block, self._conformer)
        name = -1 if self._span else block.origin.item
        queue = self._queues.setdefault(name, [])
        queue.append(block)
        self.held[block.origin.item] += len(block)
        rows = sum(map(len, queue))
        while rows >= self._rows or (rows and sum(part.table.nbytes for part in queue) >= self._bytes):
            batch = _cut(queue, min(rows, self._rows))
            rows -= sum(map(len, batch))
            self._fire(batch)

    def flush(self, item: int) -> None:
        if not self._span:
            queue = self._queues.pop(item, [])
            if queue:
                self._fire(queue)

    def drain(self) -> None:
        for name in list(self._queues):
            queue = self._queues.pop(name)
            if queue:
                self._fire(queue)

    def forget(self, item: int) -> None:
        super().forget(item)
        for name, queue in list(self._queues.items()):
            self._queues[name] = [block for block in queue if block.origin.item != item]

    # ------------------------------------------------------------ one batch

    def _fire(self, batch: Sequence[Block]) -> None:
        batch = [block for block in batch if not self.failed(block.origin.item)]
        if not batch:
            return
        began = time.perf_counter()
        outputs = self._attempt(batch)
        seconds = time.perf_counter() - began
        rows = sum(map(len, batch))
        for block in batch:
            state = self.states[block.origin.item]
            state.tallies[self.index].seconds += seconds * len(block) / max(rows, 1)
        for output in outputs:
            self.emit(output)
        for item in dict.fromkeys(block.origin.item for block in batch):
            self.held[item] -= sum(len(block) for block in batch if block.origin.item == item)
            self.settle(item)

    def _attempt(self, batch: Sequence[Block]) -> list[Block]:
        """The batch's outputs; a batch that fails is bisected until the failing rows are alone."""
        rows = sum(map(len, batch))
        try:
            return self._call(batch, rows)
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
            if rows == 1:
                self._suppress(batch[0], error)
                return self._nulled(batch[0])
            left = list(batch)
            halves = (_cut(left, rows // 2), left)
            outputs: list[Block] = []
            for half in halves:
                alive = [block for block in half if not self.failed(block.origin.item)]
                outputs += self._attempt(alive) if alive else []
            return outputs

    def _call(self, batch: Sequence[Block], rows: int) -> list[Block]:
        if self.before_row is not None:
            self.before_row(batch[0].origin.object, batch[0].positions[0], self.spec.name)
        table = self._function(concat([block.table for block in batch]))
        if self._keeps_rows:
            if table.num_rows != rows:
                what = f"step {self.spec.name} got {rows} rows and returned {table.num_rows}, but spans shards"
                raise StepError(
                    what, step=self.spec.name, mend="With span_shards=True row i of the result must belong to row i of the batch."
                )
            return self._split(batch, table)
        return [self._whole(batch, table, rows)]

    def _split(self, batch: Sequence[Block], table: pa.Table) -> list[Block]:
        outputs = []
        at = 0
        for block in batch:
            self._count(block.origin.item, len(block), len(block))
            outputs.append(Block(block.origin, block.positions, table=table.slice(at, len(block)), nbytes=block.nbytes))
            at += len(block)
        return outputs

    def _whole(self, batch: Sequence[Block], table: pa.Table, rows: int) -> Block:
        """All of one item: where the count is unchanged rows keep their places, else they get that of the batch's first row."""
        positions = [position for block in batch for position in block.positions]
        if table.num_rows != rows:
            positions = [positions[0]] * table.num_rows
        self._count(batch[0].origin.item, rows, table.num_rows)
        return Block(batch[0].origin, positions, table=table, nbytes=sum(block.nbytes for block in batch))

    def _count(self, item: int, rows_in: int, rows_out: int) -> None:
        self.states[item].tallies[self.index].through(rows_in, rows_out)

    def _suppress(self, block: Block, error: BaseException) -> None:
        state = self.states[block.origin.item]
        tally = state.tallies[self.index]
        where = {"step": self.spec.name, "origin": block.origin, "position": block.positions[0], "row": rows_of(block.table)[0]}
        try:
            stays = suppress(state, tally, self.spec.on_error, error, **where)  # type: ignore[arg-type]
        except ItemFailed:
            return
        tally.through(1, int(stays), int(not stays))

    def _nulled(self, block: Block) -> list[Block]:
        """Policy "null": the row goes on unchanged."""
        return [block] if self.spec.on_error == "null" else []


def _conformer(schema: pa.Schema | None) -> Any:
    if schema is None:
        return None
    from cloudshard.formats.schema import Conformer

    return Conformer(schema, "collect")


def _cut(queue: list[Block], rows: int) -> list[Block]:
    """Take the first ``rows`` rows off the queue."""
    batch: list[Block] = []
    while rows and queue:
        block = queue[0]
        if len(block) <= rows:
            batch.append(queue.pop(0))
            rows -= len(block)
        else:
            batch.append(_slice(block, 0, rows))
            queue[0] = _slice(block, rows, len(block))
            rows = 0
    return batch


def _slice(block: Block, start: int, end: int) -> Block:
    share = block.nbytes * (end - start) // max(len(block), 1)
    return Block(block.origin, block.positions[start:end], table=block.table.slice(start, end - start), nbytes=share)


def batch_function(spec: StepSpec, function: Callable[..., Any]) -> TableFunction:
    """The user's batch function as one from table to table."""
    kind = str(spec.params.get("as", "arrow"))
    return lambda table: taken(function(given(table, kind)), spec.name)


class FilterSegment(Segment):
    """``filter("sql condition")``: DuckDB computes the mask, Arrow filters; each row keeps its place."""

    def __init__(self, spec: StepSpec, index: int, mask: TableFunction, *, schema: pa.Schema | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.index = index
        self._mask = mask
        self._conformer = _conformer(schema)

    def push(self, block: Block) -> None:
        block = as_table(block, self._conformer)
        state = self.states[block.origin.item]
        tally = state.tallies[self.index]
        began = time.perf_counter()
        try:
            mask = self._mask(block.table).column(0).combine_chunks().fill_null(False)
        except Exception as error:  # noqa: BLE001 - DuckDB's errors are the user's SQL
            suppress(
                state,
                tally,
                "raise",
                error,
                step=self.spec.name,
                origin=Origin(block.origin.item, block.origin.object, block.origin.unit),
                position=block.positions[0],
                row=None,
            )
            return
        table = block.table.filter(mask)
        flags = mask.to_pylist()
        positions = [position for position, flag in zip(block.positions, flags, strict=True) if flag]
        tally.through(len(block), table.num_rows)
        tally.seconds += time.perf_counter() - began
        self.emit(Block(block.origin, positions, table=table, nbytes=block.nbytes))
