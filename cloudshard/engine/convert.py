"""Between rows (dicts) and Arrow tables, and to what a user's batch function wants to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as pt

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.errors import SchemaError

#: (index, column, reason) of a row that cannot be part of the table.
Report = Callable[[int, str, str], None]

#: Rows looked at to guess the bytes of a block.
_LOOK_AT = 4


class WrongBatch(TypeError):
    """A batch function returned something that is no batch, or not the promised rows: no row's fault, so nothing to bisect."""


# ---------------------------------------------------------------- rows and tables


class RowTables:
    """Makes tables of rows, for one step and one item.

    Types come from ``base`` (the input's schema) and are widened as rows need it, so that a column which one batch lacks is null there and
    keeps its type. A row whose values go together with nothing before is reported and left out.
    """

    def __init__(self, base: pa.Schema | None = None) -> None:
        self._schema = base
        self._conformer: Any = None

    def make(self, rows: Sequence[Row], report: Report) -> tuple[list[int] | None, pa.Table]:
        """(indices of the rows that are kept, None for all; their table)."""
        if self._schema is not None:
            misfits: list[int] = []
            try:
                _, table = self._conform(rows, lambda index, column, reason: misfits.append(index))
            except SchemaError:  # a column that is new
                misfits.append(-1)
            if not misfits:
                return None, table
        kept = self._widen(rows, report)
        again, table = self._conform(rows if kept is None else [rows[index] for index in kept], _translated(report, kept))
        if again is None:
            return kept, table
        return (again if kept is None else [kept[index] for index in again]), table

    def _conform(self, rows: Sequence[Row], report: Report) -> tuple[list[int] | None, pa.Table]:
        from cloudshard.formats.schema import Conformer

        if self._conformer is None:
            self._conformer = Conformer(self._schema, "error")
        made = self._conformer.conform(Block(Origin(-1, "batch"), range(len(rows)), rows=list(rows)), report)
        return (None if len(made) == len(rows) else list(made.positions)), made.table

    def _widen(self, rows: Sequence[Row], report: Report) -> list[int] | None:
        """Widen the schema so that it holds the rows; those that it cannot hold are reported. The indices that are left, None for all."""
        from cloudshard.formats.schema import infer

        self._conformer = None
        try:
            self._schema = self._with(infer(rows))
            return None
        except SchemaError:
            kept = []
        for index, row in enumerate(rows):
            try:
                self._schema = self._with(infer([row]))
            except SchemaError as error:
                report(index, "", error.what)
                continue
            kept.append(index)
        return kept

    def _with(self, schema: pa.Schema) -> pa.Schema:
        from cloudshard.formats.schema import unify

        return schema if self._schema is None else unify([("the rows before", self._schema), ("this row", schema)])


def _translated(report: Report, kept: list[int] | None) -> Report:
    return report if kept is None else lambda index, column, reason: report(kept[index], column, reason)


def _refuse(_index: int, column: str, reason: str) -> NoReturn:
    raise WrongBatch(f"rows cannot be an Arrow table: {f'column {column!r}: ' if column else ''}{reason}")


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table with large types and all keys of all rows, in the order of first appearance. Raises WrongBatch."""
    return RowTables().make(rows, _refuse)[1]


def rows_of(table: pa.Table) -> list[Row]:
    """A table as rows."""
    rows: list[Row] = table.to_pylist()
    return rows


def as_rows(block: Block) -> Block:
    """The block in row form."""
    if block.table is None:
        return block
    return Block(block.origin, block.positions, rows=rows_of(block.table), nbytes=block.nbytes)


def whole_table(blocks: Iterable[Block]) -> pa.Table:
    """All blocks as one table. Raises SchemaError naming the place of the first row whose values go together with nothing before."""
    maker = RowTables()
    tables = []
    for block in blocks:
        if block.table is not None:
            tables.append(block.table)
            continue

        def refuse(index: int, column: str, reason: str, block: Block = block) -> NoReturn:
            where = f"{block.origin.object}, {block.origin.unit} {block.positions[index]}"
            raise SchemaError(f"column {column!r}: {reason}" if column else reason, where=where, mend="Convert the column in a step.")

        tables.append(maker.make(block.rows or [], refuse)[1])
    return concat(tables) if tables else pa.table({})


def slice_of(block: Block, start: int, end: int) -> Block:
    """Rows [start, end) of the block."""
    share = block.nbytes * (end - start) // max(len(block), 1)
    if block.table is not None:
        return Block(block.origin, block.positions[start:end], table=block.table.slice(start, end - start), nbytes=share)
    return Block(block.origin, block.positions[start:end], rows=(block.rows or [])[start:end], nbytes=share)


def row_of(block: Block, index: int) -> Row:
    """One row of the block."""
    if block.table is not None:
        return rows_of(block.table.slice(index, 1))[0]
    return (block.rows or [])[index]


def size_of(block: Block) -> int:
    """Estimated bytes of the block: exact for tables; for rows what was read, or more if a look at some rows says so."""
    if block.table is not None:
        return int(block.table.nbytes)
    rows = block.rows or []
    if not rows:
        return 0
    some = rows[:: max(1, len(rows) // _LOOK_AT)][:_LOOK_AT]
    return max(block.nbytes, len(rows) * sum(map(_weight, some)) // len(some))


def _weight(value: Any, depth: int = 0) -> int:
    """Bytes of a value's content, roughly."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if depth > 4:
        return 8
    if isinstance(value, Mapping):
        return sum(_weight(one, depth + 1) for one in value.values())
    if isinstance(value, (list, tuple)):
        some = value[:_LOOK_AT]
        return 0 if not some else len(value) * sum(_weight(one, depth + 1) for one in some) // len(some)
    return int(getattr(value, "nbytes", 8))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other; columns that differ are widened, missing ones are null. Raises SchemaError for what cannot be widened."""
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


# ---------------------------------------------------------------- what batch functions get and give


def given(table: pa.Table, kind: str) -> Any:
    """What the user's batch function is given (rows are never a table: the caller has them)."""
    if kind == "arrow":
        return table
    if kind == "pandas":
        return to_pandas(table)
    import polars as pl

    return pl.from_arrow(table)


def to_pandas(table: pa.Table) -> Any:
    """A pandas frame. Integers and booleans with nulls get pandas' nullable types: as floats, large integers would be rounded."""
    import pandas as pd

    with_nulls = {
        str(field.type)
        for field, column in zip(table.schema, table.columns, strict=True)
        if column.null_count and (pt.is_integer(field.type) or pt.is_boolean(field.type))
    }
    if not with_nulls:
        return table.to_pandas()
    names = {"bool": "boolean", **{f"{u}int{n}": f"{u.upper()}Int{n}" for u in ("", "u") for n in (8, 16, 32, 64)}}
    nullable = {name: pd.api.types.pandas_dtype(names[name]) for name in with_nulls}
    return table.to_pandas(types_mapper=lambda kind: nullable.get(str(kind)))


def taken(result: Any, span: bool = False) -> pa.Table | list[Row]:
    """What a batch function returned, as a table or as rows: Arrow table or batch, pandas or polars frame, list of rows, dict of columns.

    Raises WrongBatch for anything else. ``span`` is only for the message.
    """
    if isinstance(result, pa.Table):
        return result
    if isinstance(result, list):
        wrong = next((row for row in result if not isinstance(row, dict)), None)
        if wrong is not None:
            raise WrongBatch(f"the function returned a list with a {type(wrong).__name__} in it, expected rows (dict)")
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    if isinstance(result, Mapping):
        return _of_columns(result)
    if type(result).__module__.partition(".")[0] == "pandas" and hasattr(result, "columns"):
        # a named index is data (the key of a group-by); an unnamed one is row numbers
        keep = any(name is not None for name in result.index.names)
        return pa.Table.from_pandas(result, preserve_index=keep).replace_schema_metadata(None)
    to_arrow: Callable[[], Any] | None = getattr(result, "to_arrow", None)
    made = None if to_arrow is None else to_arrow()
    if isinstance(made, pa.Table):
        return made
    expected = "an Arrow table, a pandas or polars frame, a list of rows or a dict of columns"
    hint = " (an empty batch removes all rows)" if result is None and not span else ""
    raise WrongBatch(f"the function returned {type(result).__name__}, expected {expected}{hint}")


def _of_columns(columns: Mapping[str, Any]) -> pa.Table:
    lengths = {name: len(column) for name, column in columns.items() if hasattr(column, "__len__")}
    if len(set(lengths.values())) > 1 or len(lengths) < len(columns):
        raise WrongBatch(f"the function returned a dict whose columns have different lengths: {_some(lengths.items())}")
    return pa.table(dict(columns))


def _some(pairs: Iterable[tuple[str, int]]) -> str:
    shown = [f"{name} {length}" for name, length in pairs]
    return ", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")
