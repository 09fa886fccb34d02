"""Bringing blocks to exactly one schema: the same columns, types and order in every part.

Rows that do not fit are reported one by one and left out; nothing else is lost. A key that the schema lacks follows ``new_columns``:

- ``error``: SchemaError with the column and the place of the row;
- ``quarantine``: the row is reported like one that does not fit;
- ``drop``: the value is dropped and counted in :attr:`Conformer.dropped`;
- ``collect``: the values go, as one JSON object per row, into the column ``_extra``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.errors import SchemaError
from cloudshard.formats.cast import cast_column
from cloudshard.formats.columns import Gatherer, TooLarge
from cloudshard.formats.findings import Findings

NewColumns = Literal["error", "quarantine", "drop", "collect"]
#: (index in the block, column, reason) of a row that is left out.
Report = Callable[[int, str, str], None]

EXTRA = "_extra"


class Conformer:
    """Makes tables of exactly :attr:`schema`. Keep one for many blocks: the plan for a schema is made once.

    ``dropped``: column → values dropped so far (policy ``drop``).
    """

    def __init__(self, schema: pa.Schema, new_columns: NewColumns = "error") -> None:
        declared = set(schema.names)
        if len(declared) < len(schema.names):
            raise SchemaError("two columns of the schema have the same name", mend="Rename one.")
        self._inner = pa.schema([field for field in schema if field.name != EXTRA]) if new_columns == "collect" else schema
        self.schema = self._inner.append(pa.field(EXTRA, pa.large_string())) if new_columns == "collect" else schema
        self.schema = self.schema.with_metadata(schema.metadata)
        self.new_columns = new_columns
        self.dropped: dict[str, int] = {}
        self._gatherer = Gatherer(list(self._inner), "")

    def conform(self, block: Block, report: Report) -> Block:
        """The block as a table of the schema, without the rows that were reported. Raises SchemaError (policy ``error``)."""
        if block.table is not None:
            kept, table = self._conform_table(block, report)
        else:
            kept, table = self._conform_rows(block, report)
        positions = block.positions if kept is None else [block.positions[index] for index in kept]
        return Block(block.origin, positions, table=table, nbytes=block.nbytes)

    def table(self, rows: Sequence[Row], report: Report) -> pa.Table:
        """The rows as a table of the schema; see :meth:`conform`."""
        return self._conform_rows(Block(Origin(-1, "rows"), range(len(rows)), rows=list(rows)), report)[1]

    # ------------------------------------------------------------ rows

    def _conform_rows(self, block: Block, report: Report) -> tuple[list[int] | None, pa.Table]:
        rows = block.rows or []
        tables: list[pa.Table] = []
        kept: list[int] = []
        complete = True
        todo = [(0, len(rows))]
        while todo:
            begin, end = todo.pop()
            some = rows if end - begin == len(rows) else rows[begin:end]
            try:
                here, table = self._build(some, _shifted(report, begin), lambda index, begin=begin: _place(block, begin + index))  # type: ignore[misc]
            except TooLarge:
                if end - begin < 2:
                    raise SchemaError(
                        "one row needs more than 2 GiB in a column with 32-bit offsets",
                        where=_place(block, begin),
                        mend="Declare the column as large_string, large_binary or large_list.",
                    ) from None
                half = (begin + end) // 2
                todo += [(half, end), (begin, half)]
                continue
            tables.append(table)
            complete = complete and here is None
            kept.extend(range(begin, end) if here is None else [begin + index for index in here])
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables) if tables else self.schema.empty_table()
        return (None if complete else kept), table

    def _build(self, rows: Sequence[Row], report: Report, place: Callable[[int], str]) -> tuple[list[int] | None, pa.Table]:
        """(indices of the rows that are kept, None for all; their table)."""
        if not self.schema.names and rows:
            raise SchemaError(
                "the schema has no columns, so rows would be lost", where=place(0), mend="Let each row have at least one key."
            )
        findings = Findings()
        arrays = self._gatherer.build(rows, findings)
        extra = findings.unknown
        bad = self._misfits(findings, place)
        kept: list[int] | None = None
        if bad or arrays is None:
            kept = [index for index in range(len(rows)) if index not in bad]
            rows = [rows[index] for index in kept]
            arrays = self._gatherer.build(rows, Findings())
            if arrays is None:
                raise SchemaError("rows do not fit the schema, and it cannot be told which", where=place(0))
        if self.new_columns == "collect":
            arrays.append(_extra_column(extra, range(len(rows)) if kept is None else kept))
        # only now: TooLarge above makes the caller come again with fewer rows
        _report(findings, report)
        self._count_dropped(findings)
        return kept, pa.Table.from_arrays(arrays, schema=self.schema)

    # ------------------------------------------------------------ tables

    def _conform_table(self, block: Block, report: Report) -> tuple[list[int] | None, pa.Table]:
        table = block.table if block.table is not None else self.schema.empty_table()
        if table.schema.equals(self.schema) and all(field.nullable for field in self.schema):
            return None, table
        findings = Findings()
        columns: list[pa.ChunkedArray] = []
        fits = True
        for field in self._inner:
            made = self._cast(table, field, findings, block.origin.object)
            if made is None:
                fits = False
            else:
                columns.append(made)
        known = {*self._inner.names, *((EXTRA,) if self.new_columns == "collect" else ())}
        strangers = [name for name in table.schema.names if name not in known]
        for name in strangers:
            self._note_strangers(table, name, findings)
        bad = self._misfits(findings, lambda index: _place(block, index))
        _report(findings, report)
        if not bad and fits:
            self._count_dropped(findings)
            if self.new_columns == "drop":
                for name in strangers:
                    filled = table.num_rows - table.column(name).null_count
                    self.dropped[name] = self.dropped.get(name, 0) + filled
            if self.new_columns == "collect":
                columns.append(_extra_of(table, findings))
            return None, pa.Table.from_arrays(columns, schema=self.schema)
        kept = [index for index in range(table.num_rows) if index not in bad]
        smaller = Block(block.origin, [block.positions[index] for index in kept], table=table.take(pa.array(kept, pa.int64())))
        again, made_table = self._conform_table(smaller, report)
        return (kept if again is None else [kept[index] for index in again]), made_table

    def _cast(self, table: pa.Table, field: pa.Field, findings: Findings, where: str) -> pa.ChunkedArray | None:
        if table.schema.get_field_index(field.name) < 0:
            if not field.nullable and table.num_rows:
                raise SchemaError(
                    f"column {field.name!r} is missing and is declared as never null",
                    where=where,
                    mend="Make it in a step, or declare it nullable.",
                )
            return pa.chunked_array([pa.nulls(table.num_rows, field.type)], type=field.type)
        try:
            return cast_column(table.column(field.name), field, field.name, findings)
        except SchemaError as error:
            raise SchemaError(error.what, where=where, mend=error.mend) from error

    def _note_strangers(self, table: pa.Table, name: str, findings: Findings) -> None:
        column = table.column(name)
        if self.new_columns == "error":
            if table.num_rows:
                findings.stranger(0, name, None)
        elif self.new_columns != "drop":
            for index, value in enumerate(column.to_pylist()):
                if value is not None:
                    findings.stranger(index, name, value)

    # ------------------------------------------------------------ policy

    def _misfits(self, findings: Findings, place: Callable[[int], str]) -> set[int]:
        """The rows to leave out. Raises SchemaError for unknown columns (policy ``error``)."""
        if findings.unknown and self.new_columns == "error":
            self._raise_unknown(findings.unknown, place)
        if self.new_columns == "quarantine":
            for row, found in findings.unknown.items():
                findings.misfit(row, next(iter(found)), f"unknown column {_names(found)}: the schema does not have it")
        return set(findings.misfits)

    def _count_dropped(self, findings: Findings) -> None:
        """Counts unknown values of the rows that are kept (policy ``drop``)."""
        if self.new_columns == "drop":
            for row, found in findings.unknown.items():
                if row not in findings.misfits:
                    for name in found:
                        self.dropped[name] = self.dropped.get(name, 0) + 1

    def _raise_unknown(self, unknown: Mapping[int, Mapping[str, Any]], place: Callable[[int], str]) -> NoReturn:
        row = min(unknown)
        raise SchemaError(
            f"unknown column {_names(unknown[row])}: the schema does not have it",
            where=place(row),
            mend="Declare it, or set new_columns to collect, drop or quarantine.",
        )


def _report(findings: Findings, report: Report) -> None:
    for row in sorted(findings.misfits):
        report(row, *findings.misfits[row])


def _names(found: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in list(found)[:5])


def _place(block: Block, index: int) -> str:
    return f"{block.origin.object}, {block.origin.unit} {block.positions[index]}"


def _shifted(report: Report, by: int) -> Report:
    return report if not by else lambda index, column, reason: report(index + by, column, reason)


def _extra_column(extra: Mapping[int, Mapping[str, Any]], rows: Iterable[int]) -> pa.Array:
    return pa.array([_as_json(extra[index]) if index in extra else None for index in rows], pa.large_string())


def _extra_of(table: pa.Table, findings: Findings) -> pa.ChunkedArray:
    """The new extras of a table; a column ``_extra`` that it already has is kept where there is nothing new."""
    made = _extra_column(findings.unknown, range(table.num_rows))
    if table.schema.get_field_index(EXTRA) >= 0:
        made = pc.coalesce(made, table.column(EXTRA).combine_chunks().cast(pa.large_string()))
    return pa.chunked_array(made.chunks if isinstance(made, pa.ChunkedArray) else [made], type=pa.large_string())


def _as_json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value, _default, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS).decode(
        "utf-8"
    )


def _default(value: Any) -> Any:
    return list(value) if isinstance(value, list) else str(value)
