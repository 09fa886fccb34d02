"""From tables as a file holds them to blocks of the declared schema, bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from cloudshard.engine.block import Block
from cloudshard.errors import InputError, RowError, SchemaError
from cloudshard.formats.cast import cast_column
from cloudshard.formats.findings import Findings, find_failing
from cloudshard.formats.infer import infer_fields
from cloudshard.formats.port import ReadContext
from cloudshard.formats.widen import is_text


class Aligner:
    """Brings known columns to the declared schema's types; a row that does not fit goes to the bad-row policy.

    ``wanted``: columns that leave, in order (None: all). A declared column that the file lacks is null. A column that the declared schema
    lacks stays at the end: what happens to it is the sink's policy.
    """

    def __init__(self, context: ReadContext, wanted: Sequence[str] | None) -> None:
        self._context = context
        self._wanted = wanted

    def align(self, table: pa.Table, positions: Sequence[int]) -> Iterator[Block]:
        """The table as blocks (none when no row is left)."""
        table, positions = self._sound(table, positions)
        schema = self._context.schema
        if schema is not None:
            table, positions = self._typed(table, positions, schema)
        if self._wanted is not None:
            table = table.select([name for name in self._wanted if table.schema.get_field_index(name) >= 0])
        if len(positions):
            yield Block(self._context.origin, positions, table=table, nbytes=table.nbytes)

    def _sound(self, table: pa.Table, positions: Sequence[int]) -> tuple[pa.Table, Sequence[int]]:
        """Without rows whose text is not UTF-8: pyarrow does not look (looking: 10 GB/s), and the first use of a value would fail."""
        try:
            table.validate(full=True)
        except pa.ArrowException:
            pass
        else:
            return table, positions

        def attempt(some: Sequence[int]) -> str | None:
            piece = table.take(pa.array(some, pa.int64()))
            for name in piece.schema.names:
                try:
                    piece.column(name).validate(full=True)
                except pa.ArrowException as error:
                    return f"column {name!r}: {str(error).rpartition('Invalid: ')[2]}"
            return None

        problems = dict(find_failing(table.num_rows, attempt))
        for row, reason in problems.items():
            error = RowError(reason, object=self._context.origin.object, position=positions[row], unit="row")
            self._context.bad_row(error, _raw_row(table.slice(row, 1)))
        kept = [row for row in range(table.num_rows) if row not in problems]
        return table.take(pa.array(kept, pa.int64())), [positions[row] for row in kept]

    def _typed(self, table: pa.Table, positions: Sequence[int], schema: pa.Schema) -> tuple[pa.Table, Sequence[int]]:
        findings = Findings()
        names: list[str] = []
        columns: list[pa.ChunkedArray] = []
        for field in schema:
            if self._wanted is not None and field.name not in self._wanted:
                continue
            loose = field.with_nullable(True)  # nulls are judged where the schema is a contract: at the sink
            if table.schema.get_field_index(field.name) < 0:
                column = pa.chunked_array([pa.nulls(table.num_rows, field.type)], type=field.type)
            else:
                column = self._cast(table, loose, findings)
            if column is not None:
                names.append(field.name)
                columns.append(column)
        if findings.misfits or findings.unknown:
            return self._without_misfits(table, positions, schema, findings)
        for name in table.schema.names:
            if schema.get_field_index(name) < 0:
                names.append(name)
                columns.append(table.column(name))
        return pa.table(columns, names=names), positions

    def _cast(self, table: pa.Table, field: pa.Field, findings: Findings) -> pa.ChunkedArray | None:
        try:
            return cast_column(table.column(field.name), field, field.name, findings)
        except SchemaError as error:
            raise SchemaError(error.what, where=self._context.origin.object, mend=error.mend) from error

    def _without_misfits(
        self, table: pa.Table, positions: Sequence[int], schema: pa.Schema, findings: Findings
    ) -> tuple[pa.Table, Sequence[int]]:
        origin = self._context.origin
        problems = {row: f"column {path!r}: {reason}" for row, (path, reason) in findings.misfits.items()}
        for row, found in findings.unknown.items():
            problems.setdefault(row, f"field {next(iter(found))!r} is not in the declared schema")
        for row in sorted(problems):
            error = RowError(problems[row], object=origin.object, position=positions[row], unit="row")
            self._context.bad_row(error, table.slice(row, 1).to_pylist()[0])
        kept = [row for row in range(table.num_rows) if row not in problems]
        return self._typed(table.take(pa.array(kept, pa.int64())), [positions[row] for row in kept], schema)


def _raw_row(table: pa.Table) -> dict[str, Any]:
    """The one row of ``table``; text that is not UTF-8 as bytes, and nested values that hold such as null."""
    row: dict[str, Any] = {}
    for name in table.schema.names:
        column = table.column(name)
        try:
            row[name] = column[0].as_py()
        except UnicodeDecodeError:
            row[name] = column.cast(pa.large_binary())[0].as_py() if is_text(column.type) else None
    return row


def bounded(blocks: Iterable[Block], context: ReadContext) -> Iterator[Block]:
    """The blocks, halved until each is within the bounds (a single row may be larger)."""
    for block in blocks:
        todo = [block]
        while todo:
            some = todo.pop()
            table = some.table
            if table is None or len(some) < 2 or (len(some) <= context.block_rows and some.nbytes <= 2 * context.block_bytes):
                yield some
                continue
            half = len(some) // 2
            for low, high in ((half, len(some)), (0, half)):
                piece = table.slice(low, high - low)
                todo.append(Block(some.origin, some.positions[low:high], table=piece, nbytes=piece.nbytes))


def table_for_file(block: Block, schema: pa.Schema | None) -> pa.Table:
    """The block as a table of the file's ``schema`` (None: the file begins with it). InputError when a table has another one."""
    table = block.table
    if table is None:
        rows = block.rows or []
        table = pa.Table.from_pylist(rows, schema=schema if schema is not None else pa.schema(infer_fields(rows)))
    if schema is not None and not table.schema.equals(schema):
        raise InputError(
            f"a block has the columns {table.schema.names} with other types or in another order than the file",
            where=block.origin.object,
            mend="Declare the output schema.",
        )
    return table
