"""Writing CSV. Options: ``header`` (true), ``delimiter`` (","), ``quoting`` ("needed" default, "all", "none"), ``compression`` ("none"
default, "gzip", "zstd") and ``compression_level``.

Null is an empty field and empty text is ``""``, so that our reader (and others that look at quotes) gets both back. Lists, structs and maps
become JSON text, bytes base64. Rows without a schema take the columns of the first block; a later new column is an error that names it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.types as pt

from cloudshard.engine.block import Block
from cloudshard.errors import InputError, RecipeError
from cloudshard.formats.compress import SUFFIXES, open_output
from cloudshard.formats.conform import Conformer
from cloudshard.formats.infer import infer_fields
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import ByteSink
from cloudshard.formats.sink import sink_file
from cloudshard.formats.widen import is_bytes


class CsvWriteOptions(NamedTuple):
    """Checked options of the writer."""

    header: bool
    delimiter: str
    quoting: str
    codec: str | None
    level: int | None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvWriteOptions:
        """Raises RecipeError for unknown names and values."""
        taken = OptionReader("csv writer", options)
        codec = taken.choice("compression", "none", ("none", "gzip", "zstd"))
        level = taken.take("compression_level")
        made = cls(
            taken.flag("header", True),
            taken.text("delimiter", ","),
            taken.choice("quoting", "needed", ("needed", "all", "none")),
            None if codec == "none" else codec,
            None if level is None else int(level),
        )
        taken.finish()
        if len(made.delimiter.encode("utf-8")) != 1:
            raise RecipeError(f"delimiter must be one ASCII character, not {made.delimiter!r}", where="csv writer")
        return made

    @property
    def suffix(self) -> str:
        """``.csv`` or ``.tsv``, and the compression's."""
        return (".tsv" if self.delimiter == "\t" else ".csv") + ("" if self.codec is None else SUFFIXES[self.codec])


class _Sink:
    """The compressor as a byte sink."""

    def __init__(self, sink: ByteSink, options: CsvWriteOptions) -> None:
        self.output = open_output(sink, options.codec, options.level)

    def write(self, data: bytes | memoryview) -> int:
        self.output.write(bytes(data))
        return len(data)


class CsvPartWriter:
    """Writes one file."""

    def __init__(self, sink: ByteSink, schema: pa.Schema | None, options: CsvWriteOptions) -> None:
        self.rows = 0
        self._sink = _Sink(sink, options)
        self._schema = schema
        self._options = options
        self._conformer: Conformer | None = None
        self._writer: Any = None

    def write(self, block: Block) -> None:
        """Append the rows of the block. Raises InputError or SchemaError when they do not have the file's columns."""
        table = block.table
        if table is None:
            if self._schema is None:
                self._schema = pa.schema(infer_fields(block.rows or []))
            self._conformer = self._conformer or Conformer(self._schema)
            table = self._conformer.conform(block, _refuse(block)).table
        if table is None:
            return
        if self._schema is None:
            self._schema = table.schema
        if not table.schema.equals(self._schema):
            raise InputError(
                f"a block has other columns than the file: {table.schema.names}",
                where=block.origin.object,
                mend="Declare the output schema.",
            )
        self.rows += table.num_rows
        self._open(self._schema)
        if table.num_rows:
            self._writer.write_table(_flat(table, self._options))

    def _open(self, schema: pa.Schema) -> None:
        if self._writer is None:
            from pyarrow import csv

            options = csv.WriteOptions(
                include_header=self._options.header,
                delimiter=self._options.delimiter,
                quoting_style={"needed": "needed", "all": "all_valid", "none": "none"}[self._options.quoting],
            )
            flat = _flat(schema.empty_table(), self._options).schema
            self._writer = csv.CSVWriter(sink_file(self._sink), flat, write_options=options)

    def finish(self) -> None:
        """Write the header, if nothing was written yet, and the compressor's trailer."""
        if self._schema is not None:
            self._open(self._schema)
        if self._writer is not None:
            self._writer.close()
        self._sink.output.finish()


def _refuse(block: Block) -> Any:
    def refuse(index: int, column: str, reason: str) -> None:
        raise InputError(f"column {column!r}: {reason}", where=f"{block.origin.object}, {block.origin.unit} {block.positions[index]}")

    return refuse


def _flat(table: pa.Table, options: CsvWriteOptions) -> pa.Table:
    """The table with every column of a type that CSV can hold."""
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pt.is_nested(field.type):
            values = [None if value is None else _json(value) for value in column.to_pylist()]
        elif is_bytes(field.type):
            values = [None if value is None else base64.b64encode(value).decode("ascii") for value in column.to_pylist()]
        elif pt.is_dictionary(field.type):
            table = table.set_column(index, field.name, column.cast(field.type.value_type))
            continue
        else:
            continue
        table = table.set_column(index, field.name, pa.chunked_array([pa.array(values, pa.large_string())], type=pa.large_string()))
    return table


def _json(value: Any) -> str:
    return orjson.dumps(value, _default, orjson.OPT_NON_STR_KEYS).decode("utf-8")


def _default(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)
