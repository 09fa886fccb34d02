"""Between rows (dicts) and Arrow tables, and to what a user's batch function wants to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.errors import StepError

BATCH_KINDS = ("arrow", "pandas", "polars", "rows")


def _refuse(_index: int, column: str, reason: str) -> NoReturn:
    raise TypeError(f"rows cannot be an Arrow table: column {column!r}: {reason}")


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table with large types and all keys of all rows, in the order of first appearance."""
    from cloudshard.formats.schema import Conformer, infer

    return Conformer(infer(rows)).table(rows, _refuse)


def rows_of(table: pa.Table) -> list[Row]:
    """A table as rows."""
    rows: list[Row] = table.to_pylist()
    return rows


def as_rows(block: Block) -> Block:
    """The block in row form."""
    if block.table is None:
        return block
    return Block(block.origin, block.positions, rows=rows_of(block.table), nbytes=block.nbytes)


def as_table(block: Block, conformer: Any = None) -> Block:
    """The block in table form; ``conformer``: brings rows to the input's schema, so that a key that a batch lacks is a null column.

    Rows that do not fit the schema (a sampled one may be too narrow) go on with their own columns.
    """
    if block.table is not None:
        return block
    if conformer is not None:
        misfits: list[int] = []
        made = conformer.conform(block, lambda index, _column, _reason: misfits.append(index))
        if not misfits:
            table = made.table.drop_columns(["_extra"]) if not made.table["_extra"].null_count < len(made) else None
            if table is not None:
                return Block(block.origin, block.positions, table=table, nbytes=block.nbytes)
    return Block(block.origin, block.positions, table=table_of(block.rows or []), nbytes=block.nbytes)


def given(table: pa.Table, kind: str) -> Any:
    """What the user's batch function is given."""
    if kind == "arrow":
        return table
    if kind == "rows":
        return rows_of(table)
    if kind == "pandas":
        return table.to_pandas()
    import polars as pl

    return pl.from_arrow(table)


def taken(result: Any, step: str) -> pa.Table:
    """What a batch function returned, as a table: Arrow table or batch, pandas or polars frame, list of rows, dict of columns."""
    if isinstance(result, pa.Table):
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    if isinstance(result, list) and all(isinstance(row, dict) for row in result):
        return table_of(result) if result else pa.table({})
    if isinstance(result, Mapping):
        return pa.table(dict(result))
    if type(result).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(result, preserve_index=False).replace_schema_metadata(None)
    to_arrow: Callable[[], Any] | None = getattr(result, "to_arrow", None)
    if to_arrow is not None:
        return to_arrow()
    raise StepError(
        f"step {step} returned {type(result).__name__}",
        step=step,
        mend="A batch function returns an Arrow table, a pandas or polars frame, a list of rows, or a dict of columns.",
    )


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other; columns that differ are widened, missing ones are null."""
    if len(tables) == 1:
        return tables[0]
    first = tables[0].schema
    if all(table.schema.equals(first) for table in tables):
        return pa.concat_tables(tables)
    from cloudshard.formats.schema import Conformer, unify

    conformer = Conformer(unify((f"batch {number}", table.schema) for number, table in enumerate(tables)))
    origin = Origin(-1, "batch")
    blocks = [conformer.conform(Block(origin, range(table.num_rows), table=table), _refuse) for table in tables]
    return pa.concat_tables([block.table for block in blocks])
