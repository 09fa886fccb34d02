"""Batch segments: map_batches and SQL over Arrow tables (or rows), and SQL conditions, which leave rows as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa

from cloudshard.engine.batches import Piece, QueueSegment
from cloudshard.engine.block import Block, Row
from cloudshard.engine.convert import RowTables, WrongBatch, as_rows, concat, given, rows_of, taken
from cloudshard.plan.values import StepSpec

#: Without a size given, a batch fires at these: Arrow's and DuckDB's overhead is gone above a few thousand rows, memory stays bounded.
DEFAULT_BATCH_ROWS = 16_384
DEFAULT_BATCH_BYTES = 64 << 20
#: SQL over rows is bounded more tightly: a dict costs several times its table, and DuckDB needs no more to be quick.
SQL_BATCH_ROWS = 8_192
SQL_BATCH_BYTES = 16 << 20

#: A table to a table.
TableFunction = Callable[[pa.Table], pa.Table]


class TableSegment(QueueSegment):
    """A step from tables to tables. ``schema``: of the input, when no step before may have changed the columns."""

    def __init__(
        self,
        spec: StepSpec,
        index: int,
        function: Callable[[Any], Any],
        *,
        careful: bool = False,
        schema: pa.Schema | None = None,
        hopeless: tuple[type[BaseException], ...] = (),
    ) -> None:
        sql = spec.kind == "sql"
        rows = int(spec.params.get("batch_rows") or (SQL_BATCH_ROWS if sql else DEFAULT_BATCH_ROWS))
        nbytes = int(spec.params.get("batch_bytes") or (SQL_BATCH_BYTES if sql else DEFAULT_BATCH_BYTES))
        super().__init__(spec, index, rows=1 if careful else rows, nbytes=nbytes, span=bool(spec.params.get("span_shards")))
        self._function = function
        self._form = str(spec.params.get("as", "arrow"))
        self._schema = schema
        self._hopeless: tuple[type[BaseException], ...] = (WrongBatch, *hopeless)
        self._makers: dict[int, RowTables] = {}

    def forget(self, item: int) -> None:
        super().forget(item)
        self._makers.pop(item, None)

    def settle(self, item: int) -> None:
        if not self.held[item]:
            self._makers.pop(item, None)
        super().settle(item)

    def _is_hopeless(self, error: BaseException) -> bool:
        return isinstance(error, self._hopeless)

    # ------------------------------------------------------------ preparing

    def _prepare(self, batch: list[Block]) -> list[Piece]:
        if self._form == "rows":
            return [Piece(as_rows(block)) for block in batch]
        return self._with_tables(batch)

    def _with_tables(self, batch: list[Block]) -> list[Piece]:
        """Tables for all blocks. Neighbouring row blocks become one table, so that many small ones cost what one costs."""
        pieces: list[Piece] = []
        group: list[Block] = []
        for block in batch:
            if block.table is not None:
                pieces += self._table_of(group)
                group = []
                pieces.append(Piece(block, block.table))
            else:
                group.append(block)
        return pieces + self._table_of(group)

    def _table_of(self, group: list[Block]) -> list[Piece]:
        if not group:
            return []
        maker = self._makers.setdefault(-1 if self._span else group[0].origin.item, RowTables(self._schema))
        bad: dict[int, str] = {}

        def report(index: int, column: str, reason: str) -> None:
            bad[index] = f"the row cannot be part of an Arrow table: {f'column {column!r}: ' if column else ''}{reason}"

        kept, table = maker.make([row for block in group for row in block.rows or ()], report)
        pieces: list[Piece] = []
        start = at = 0
        for block in group:
            end = start + len(block)
            if kept is not None:
                for index in range(start, end):
                    if index in bad:
                        self.suppress_row(block, index - start, TypeError(bad[index]))
                block = _without(block, {index - start for index in bad if start <= index < end})
            pieces.append(Piece(block, table.slice(at, len(block))))
            at += len(block)
            start = end
        return pieces

    # ------------------------------------------------------------ calling

    def _call(self, batch: Sequence[Piece]) -> list[Block]:
        rows = sum(map(len, batch))
        argument: Any
        if self._form == "rows":
            # the function may change rows in place, fail, and be given them again in a smaller batch
            argument = [row.copy() for piece in batch for row in piece.block.rows or ()]
        else:
            argument = given(concat([piece.table for piece in batch]), self._form)
        result = taken(self._function(argument), self._span)
        made = len(result) if isinstance(result, list) else result.num_rows
        if made == rows:
            return self._rejoin(batch, result)
        if self._span:
            raise WrongBatch(
                f"the function got {rows} rows and returned {made}, but the step spans shards: row i of the result must belong to row i"
            )
        return self._replace(batch, result, rows, made)

    def _rejoin(self, batch: Sequence[Piece], result: pa.Table | list[Row]) -> list[Block]:
        """One row per row: each keeps its place. Neighbours of one origin travel on together."""
        outputs: list[Block] = []
        at = 0
        for piece in _neighbours(batch):
            self.states[piece.origin.item].tallies[self.index].through(len(piece), len(piece))
            outputs.append(_block(piece, result[at : at + len(piece)] if isinstance(result, list) else result.slice(at, len(piece))))
            at += len(piece)
        return outputs

    def _replace(self, batch: Sequence[Piece], result: pa.Table | list[Row], rows: int, made: int) -> list[Block]:
        """Another number of rows, all of one item: which belongs to which is not known, so all get the place of the batch's first row."""
        first = batch[0].block
        self.states[first.origin.item].tallies[self.index].through(rows, made)
        nbytes = sum(piece.block.nbytes for piece in batch)
        return [_block(Block(first.origin, [first.positions[0]] * made, nbytes=nbytes), result)]


class FilterSegment(TableSegment):
    """``filter("SQL condition")``: DuckDB computes a mask; the rows themselves stay what and as they are.

    ``whole``: the step's query as it was written. It is tried once, on no rows: what may not stand in a WHERE is refused there.
    """

    def __init__(self, spec: StepSpec, index: int, mask: TableFunction, *, whole: TableFunction, **options: Any) -> None:
        super().__init__(spec, index, mask, **options)
        self._whole: TableFunction | None = whole

    def _call(self, batch: Sequence[Piece]) -> list[Block]:
        rows = sum(map(len, batch))
        table = concat([piece.table for piece in batch])
        if self._whole is not None:
            self._whole(table.slice(0, 0))
            self._whole = None
        mask: pa.Table = self._function(table)
        if mask.num_rows != rows:
            raise WrongBatch(f"the condition is not one of single rows: it gave {mask.num_rows} results for {rows} rows")
        flags = [True] * rows
        for column in mask.columns:  # COLUMNS(…) in a condition makes several, all of which must hold
            flags = [flag and bool(value) for flag, value in zip(flags, column.to_pylist(), strict=True)]
        outputs = []
        at = 0
        for piece in batch:
            some = flags[at : at + len(piece)]
            at += len(piece)
            kept = _compressed(piece.block, some)
            self.states[piece.block.origin.item].tallies[self.index].through(len(piece), len(kept))
            outputs.append(kept)
        return outputs


def _compressed(block: Block, flags: list[bool]) -> Block:
    """The rows whose flag is set."""
    if all(flags):
        return block
    positions = list(compress(block.positions, flags))
    nbytes = block.nbytes * len(positions) // max(1, len(flags))
    if block.table is not None:
        return Block(block.origin, positions, table=block.table.filter(pa.array(flags, pa.bool_())), nbytes=nbytes)
    return Block(block.origin, positions, rows=list(compress(block.rows or (), flags)), nbytes=nbytes)


def _without(block: Block, bad: set[int]) -> Block:
    return block if not bad else _compressed(block, [index not in bad for index in range(len(block))])


def _neighbours(batch: Sequence[Piece]) -> list[Block]:
    """Origins and positions of the batch, neighbours of the same origin joined (without their rows)."""
    joined: list[Block] = []
    positions: list[int] = []
    for piece in batch:
        block = piece.block
        if joined and joined[-1].origin == block.origin:
            positions.extend(block.positions)
            joined[-1].nbytes += block.nbytes
        else:
            positions = list(block.positions)
            joined.append(Block(block.origin, positions, nbytes=block.nbytes))
    return joined


def _block(place: Block, result: pa.Table | list[Row]) -> Block:
    if isinstance(result, list):
        return Block(place.origin, place.positions, rows=result, nbytes=place.nbytes)
    return Block(place.origin, place.positions, table=result, nbytes=place.nbytes)


__all__ = ["FilterSegment", "TableFunction", "TableSegment", "rows_of"]
