"""Writing Parquet. Options and what chose their defaults (W1's text, one thread):

- ``compression`` ("zstd"; also snappy, gzip, lz4, brotli, none) and ``compression_level`` (1 for zstd: three times the speed of 9).
- ``row_group_bytes`` (64 MiB of Arrow memory): what is buffered before a row group is written; it bounds the writer's memory to about
  twice that, and is what the readers of the file can split by.
- ``use_dictionary``: "auto" (default), true, false or a list of columns. "auto" looks at the first rows and gives a dictionary to columns
  in which values repeat: text without one is written at 230 instead of 167 MB/s.
- ``write_statistics``: "auto" (default), true or false: minima and maxima per row group, for predicates. "auto" leaves out text of more
  than 256 bytes on average: it prunes nothing, and collecting it takes six times the longest value in memory.

The Arrow schema is stored, so that all parts give the same types back (large_string stays large_string).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from cloudshard.engine.block import Block
from cloudshard.errors import RecipeError
from cloudshard.formats.align import table_for_file
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import ByteSink
from cloudshard.formats.sink import sink_file
from cloudshard.formats.widen import is_bytes, is_text

#: Values of a column that are looked at before it is given a dictionary, and the share of different ones up to which it is.
_LOOK_AT_ROWS = 2048
_REPEATING = 0.25
#: Fewer values than this say nothing.
_ENOUGH = 64
#: Mean bytes of a value from which a column is text to read, not a code to look up: no dictionary, and no minima and maxima (they prune
#: nothing, and cost several copies of the longest values).
_LONG_BYTES = 256
_WITH_LEVEL = ("zstd", "gzip", "brotli")
#: Lists of numbers such as embeddings are long; more of their values than this says nothing new.
_LOOK_AT_VALUES = 16384


class ParquetWriteOptions(NamedTuple):
    """Checked options of the writer."""

    compression: str
    level: int | None
    row_group_bytes: int
    use_dictionary: bool | list[str] | None
    statistics: bool | None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ParquetWriteOptions:
        """Raises RecipeError for unknown names and values."""
        taken = OptionReader("parquet writer", options)
        codec = taken.choice("compression", "zstd", ("zstd", "snappy", "gzip", "lz4", "brotli", "none"))
        level = taken.take("compression_level", 1 if codec == "zstd" else None)
        if level is not None and codec not in _WITH_LEVEL:
            raise RecipeError(
                f"{codec} has no compression_level", where="parquet writer", mend=f"Leave it out, or use {', '.join(_WITH_LEVEL)}."
            )
        dictionary = taken.take("use_dictionary", "auto")
        if (
            dictionary != "auto"
            and not isinstance(dictionary, bool)
            and not (isinstance(dictionary, list) and all(isinstance(one, str) for one in dictionary))
        ):
            raise RecipeError(
                f'use_dictionary must be "auto", true, false or a list of columns, not {dictionary!r}', where="parquet writer"
            )
        if level is not None and (isinstance(level, bool) or not isinstance(level, int)):
            raise RecipeError(f"compression_level must be a whole number, not {level!r}", where="parquet writer")
        statistics = taken.take("write_statistics", "auto")
        if statistics != "auto" and not isinstance(statistics, bool):
            raise RecipeError(f'write_statistics must be "auto", true or false, not {statistics!r}', where="parquet writer")
        made = cls(
            codec,
            level,
            taken.positive("row_group_bytes", 64 << 20),
            None if dictionary == "auto" else dictionary,
            None if statistics == "auto" else statistics,
        )
        taken.finish()
        return made


class ParquetPartWriter:
    """Writes one file. Without a schema, that of the first block holds for the file."""

    def __init__(self, sink: ByteSink, schema: pa.Schema | None, options: ParquetWriteOptions) -> None:
        self.rows = 0
        self._sink = sink
        self._schema = schema
        self._options = options
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []
        self._held_bytes = 0

    def write(self, block: Block) -> None:
        """Append the rows of the block. Raises InputError when a table does not have the file's schema."""
        table = table_for_file(block, self._schema)
        if self._schema is None:
            self._schema = table.schema
        self.rows += table.num_rows
        if self._held and table.num_rows == 1 and table.nbytes > self._options.row_group_bytes:
            self._flush()  # a huge row is not copied together with others
        for piece in _pieces(table, self._options.row_group_bytes):
            self._held.append(piece)
            self._held_bytes += piece.nbytes
            if self._held_bytes >= self._options.row_group_bytes:
                self._flush()

    def _flush(self) -> None:
        table = pa.concat_tables(self._held) if self._held else None
        self._held, self._held_bytes = [], 0
        if self._writer is None:
            self._writer = self._open(table)
        if table is not None and table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)

    def _open(self, table: pa.Table | None) -> pq.ParquetWriter:
        options = self._options
        traits = leaf_traits(table) if table is not None else []
        dictionary: bool | list[str] = (
            [leaf.path for leaf in traits if leaf.repeats] if options.use_dictionary is None else options.use_dictionary
        )
        statistics: bool | list[str] = [leaf.path for leaf in traits if not leaf.long] if options.statistics is None else options.statistics
        return pq.ParquetWriter(
            sink_file(self._sink),
            self._schema if self._schema is not None else pa.schema([]),
            compression=None if options.compression == "none" else options.compression,
            compression_level=options.level,
            use_dictionary=dictionary or False,
            write_statistics=statistics or False,
        )

    def finish(self) -> None:
        """Write what is held and the footer. A file without rows has the schema and is legal."""
        self._flush()
        if self._writer is not None:
            self._writer.close()


def _pieces(table: pa.Table, row_group_bytes: int) -> Iterator[pa.Table]:
    """The table in slices of about half a row group at most, so that one huge block does not make one huge row group."""
    size = table.nbytes
    if size <= row_group_bytes or table.num_rows < 2:
        yield table
        return
    rows = max(1, table.num_rows * row_group_bytes // (2 * size))
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)


# ---------------------------------------------------------------- which columns get a dictionary


class Leaf(NamedTuple):
    """What the first values of a leaf column (by its Parquet path) say: they repeat, or they are long."""

    path: str
    repeats: bool
    long: bool


def leaf_traits(table: pa.Table) -> list[Leaf]:
    """All leaf columns of the table."""
    head = table.slice(0, _LOOK_AT_ROWS)
    found: list[Leaf] = []
    for field in table.schema:
        # one chunk is enough: what is decided here is no matter of right and wrong
        chunk = max(head.column(field.name).chunks, key=len, default=None)
        for path, values in _leaves(field.name, pa.nulls(0, field.type) if chunk is None else chunk):
            some = values.slice(0, _LOOK_AT_VALUES)
            free = is_text(some.type) or is_bytes(some.type)
            long = free and (len(some) < _ENOUGH or some.nbytes > _LONG_BYTES * len(some))
            found.append(Leaf(path, not long and _repeats(some), long))
    return found


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    kind = array.type
    if pt.is_struct(kind):
        for child, inner in zip(array.flatten(), kind, strict=True):
            yield from _leaves(f"{path}.{inner.name}", child)
    elif pt.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        yield from _leaves(f"{path}.list.element", array.flatten())
    else:
        yield path, array


def _repeats(some: pa.Array) -> bool:
    if pt.is_boolean(some.type) or pt.is_null(some.type):
        return False
    if pt.is_dictionary(some.type):
        return True
    try:
        different = pc.count_distinct(some, mode="only_valid").as_py()
    except pa.ArrowException:  # a type without a hash
        return False
    filled = len(some) - some.null_count
    return bool(filled >= _ENOUGH and different <= filled * _REPEATING)
