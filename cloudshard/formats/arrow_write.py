"""Writing Arrow IPC files and streams; see :mod:`cloudshard.formats.arrow` for the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from cloudshard.engine.block import Block
from cloudshard.formats.align import table_for_file
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import ByteSink
from cloudshard.formats.sink import sink_file


class ArrowWriteOptions(NamedTuple):
    """Checked options of the writer."""

    compression: str | None
    batch_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ArrowWriteOptions:
        """Raises RecipeError for unknown names and values."""
        taken = OptionReader("arrow writer", options)
        codec = taken.choice("compression", "zstd", ("zstd", "lz4", "none"))
        made = cls(None if codec == "none" else codec, taken.positive("batch_bytes", 8 << 20))
        taken.finish()
        return made


class ArrowPartWriter:
    """Writes one IPC file (``stream``: one IPC stream). Without a schema, that of the first block holds."""

    def __init__(self, sink: ByteSink, schema: pa.Schema | None, options: ArrowWriteOptions, *, stream: bool = False) -> None:
        self.rows = 0
        self._sink = sink
        self._schema = schema
        self._options = options
        self._stream = stream
        self._writer: pa.RecordBatchFileWriter | pa.RecordBatchStreamWriter | None = None
        self._held: list[pa.Table] = []
        self._held_bytes = 0

    def write(self, block: Block) -> None:
        """Append the rows of the block. Raises InputError when a table does not have the file's schema."""
        table = table_for_file(block, self._schema)
        if self._schema is None:
            self._schema = table.schema
        if self._held and table.num_rows == 1 and table.nbytes > self._options.batch_bytes:
            self._flush()  # a huge row is not copied together with others
        self.rows += table.num_rows
        self._held.append(table)
        self._held_bytes += table.nbytes
        if self._held_bytes >= self._options.batch_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            make = pa.ipc.new_stream if self._stream else pa.ipc.new_file
            schema = self._schema if self._schema is not None else pa.schema([])
            self._writer = make(sink_file(self._sink), schema, options=pa.ipc.IpcWriteOptions(compression=self._options.compression))
        if self._held:
            table = pa.concat_tables(self._held)
            rows = (
                max(1, table.num_rows * self._options.batch_bytes // max(1, 2 * table.nbytes))
                if table.nbytes > 2 * self._options.batch_bytes
                else None
            )
            self._writer.write_table(table.combine_chunks(), max_chunksize=rows)
            self._held, self._held_bytes = [], 0

    def finish(self) -> None:
        """Write what is held and the footer. A file without rows has the schema and is legal."""
        self._flush()
        if self._writer is not None:
            self._writer.close()
