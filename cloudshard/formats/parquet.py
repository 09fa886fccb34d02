"""Parquet: read by row groups with columns and predicates pushed down; see :mod:`cloudshard.formats.parquet_write` for writing.

A range is in bytes, and a row group belongs to the range that holds the midpoint of its data: so planning needs no footer. A row's
position is its index in the file.

Reader options:

- ``columns``: names of columns to read, in this order; a nested field is named ``meta.ts``.
- ``filter``: a predicate ``[[column, op, value], …]`` (all hold), or a list of such lists (any of them holds); op is one of
  ``=  ==  !=  <  <=  >  >=  in  not in``. Row groups whose statistics rule it out are not read, then rows are filtered exactly. Rows
  removed so were never read: they do not count as input (``rows_pruned`` among the reader's counters tells how many).

A row whose values do not fit the declared schema goes to the bad-row policy; a damaged file is an InputError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cloudshard.engine.block import Block, Origin
from cloudshard.errors import InputChanged, InputError, StoreError
from cloudshard.formats.align import Aligner, bounded
from cloudshard.formats.options import OptionReader
from cloudshard.formats.parquet_write import ParquetPartWriter, ParquetWriteOptions
from cloudshard.formats.port import ByteSink, PartWriter, ReadContext
from cloudshard.formats.predicate import Predicate
from cloudshard.formats.ranged import RangedFile, get_pinned, local_path
from cloudshard.formats.split import byte_ranges
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store

#: Compressed bytes of a row group up to which its columns are fetched at once, in few large requests. Above, they are streamed.
PRE_BUFFER_BYTES = 64 << 20
#: Bytes per request and column while streaming.
STREAM_BYTES = 4 << 20


class ParquetFormat:
    """The format "parquet"."""

    name = "parquet"
    suffixes: tuple[str, ...] = (".parquet", ".pq", ".parq")
    row_oriented = False
    position_unit = "row"

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """Byte ranges of about ``target_bytes``; each reads the row groups with their midpoint in it."""
        _read_options(options)
        return byte_ranges(info, url, target_bytes)

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """Tables of the row groups of the range. Raises InputError for a damaged file."""
        columns, predicate = _read_options(context.options)
        with _Opened(piece, context) as opened:
            metadata = opened.file.metadata
            wanted, read = _columns(opened.file.schema_arrow, columns, predicate, context.schema, piece.url)
            aligner = Aligner(context, wanted)
            first = 0
            for index in range(metadata.num_row_groups):
                group = metadata.row_group(index)
                start, first = first, first + group.num_rows
                if not _belongs(piece, group, index):
                    continue
                if predicate is not None and predicate.rules_out(group):
                    context.count("row_groups_skipped")
                    context.count("rows_pruned", group.num_rows)
                    continue
                for begin, table in opened.tables(index, group, read, context):
                    positions: Sequence[int] = range(start + begin, start + begin + table.num_rows)
                    if predicate is not None:
                        table, kept = predicate.apply(table)
                        context.count("rows_pruned", len(positions) - len(kept))
                        positions = [positions[at] for at in kept]
                    yield from bounded(aligner.align(table, positions), context)

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """A writer of one file; see :mod:`cloudshard.formats.parquet_write`."""
        return ParquetPartWriter(sink, schema, ParquetWriteOptions.of(options))

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Suffix of a part's file name."""
        return ".parquet"

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """A few rows of the first and the last row group, typed by the footer; a table without rows when the file has none."""
        context = ReadContext(
            store=store,
            key=info.key,
            origin=Origin(-1, url, "row"),
            options=options,
            schema=None,
            bad_row=lambda error, row: None,  # the run itself reports bad rows
            block_rows=max(1, rows - rows // 2),
        )
        piece = InputRange(url=url, size=info.size, etag=info.etag, start=0, end=max(1, info.size))
        columns, predicate = _read_options(options)
        with _Opened(piece, context) as opened:
            metadata = opened.file.metadata
            wanted, read = _columns(opened.file.schema_arrow, columns, predicate, None, url)
            aligner = Aligner(context, wanted)
            filled = [index for index in range(metadata.num_row_groups) if metadata.row_group(index).num_rows]
            if not filled:
                yield Block(context.origin, (), table=_empty(opened.file.schema_arrow, wanted))
            starts = [0]
            for index in range(metadata.num_row_groups):
                starts.append(starts[-1] + metadata.row_group(index).num_rows)
            for index in sorted({filled[0], filled[-1]}) if filled else []:
                begin, table = next(opened.tables(index, metadata.row_group(index), read, context, stream=True))
                yield from aligner.align(table, range(starts[index] + begin, starts[index] + begin + table.num_rows))


class _Opened:
    """The open file; translates what pyarrow raises. A local file is opened by path, any other through ranged requests."""

    def __init__(self, piece: InputRange, context: ReadContext) -> None:
        self._piece = piece
        self._context = context

    def __enter__(self) -> _Opened:
        path = local_path(self._context.store, self._context.key)
        try:
            if path is not None:
                self._check_version()
                self._source = pa.OSFile(path, "rb")
            else:
                self._source = pa.PythonFile(
                    RangedFile(self._context.store, self._context.key, self._piece, self._context.counts), mode="r"
                )
            self.file = pq.ParquetFile(self._source, page_checksum_verification=False)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error
        return self

    def __exit__(self, *reason: object) -> None:
        self.file.close(force=True)

    def _check_version(self) -> None:
        """One byte with the planned ETag: pyarrow opens the path by itself and would not notice another version."""
        get_pinned(self._context.store, self._context.key, self._piece, 0, min(1, self._piece.size))
        self._context.count("bytes_read", self._piece.end - self._piece.start)

    def _damaged(self, error: Exception) -> Exception:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, (InputChanged, StoreError)):
                return cause
            cause = cause.__cause__ or cause.__context__
        return InputError(
            f"not a readable Parquet file (truncated, damaged or encrypted): {error}",
            where=self._piece.url,
            mend="Copy it again from its origin, or exclude it.",
        )

    def tables(
        self, index: int, group: Any, columns: list[str] | None, context: ReadContext, *, stream: bool = False
    ) -> Iterator[tuple[int, pa.Table]]:
        """(first row in the group, table) of one row group, in batches bounded in rows and bytes."""
        rows = max(1, min(context.block_rows, context.block_bytes * group.num_rows // max(1, group.total_byte_size)))
        size = sum(group.column(at).total_compressed_size for at in range(group.num_columns))
        reader = self.file
        if stream or size > PRE_BUFFER_BYTES:
            reader = pq.ParquetFile(self._source, metadata=self.file.metadata, buffer_size=STREAM_BYTES if not stream else 256 << 10)
        elif not isinstance(self._source, pa.OSFile):
            reader = pq.ParquetFile(self._source, metadata=self.file.metadata, pre_buffer=True)
        done = 0
        try:
            for batch in reader.iter_batches(batch_size=rows, row_groups=[index], columns=columns, use_threads=False):
                table = pa.Table.from_batches([batch])
                yield done, table
                done += table.num_rows
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error


def _read_options(options: Mapping[str, Any]) -> tuple[list[str] | None, Predicate | None]:
    taken = OptionReader("parquet reader", options)
    columns = taken.names("columns")
    predicate = Predicate.of(taken.take("filter"))
    taken.finish()
    return columns, predicate


def _belongs(piece: InputRange, group: Any, index: int) -> bool:
    """Whether the row group's midpoint (or, for "row_groups", its number) lies in the range."""
    if piece.unit == "row_groups":
        return piece.start <= index < piece.end
    if not group.num_columns:
        return piece.start == 0
    low, high = None, 0
    for at in range(group.num_columns):
        column = group.column(at)
        start = column.data_page_offset
        if column.dictionary_page_offset:  # 0 and None both mean that there is none
            start = min(start, column.dictionary_page_offset)
        low = start if low is None else min(low, start)
        high = max(high, start + column.total_compressed_size)
    middle = min(((low or 0) + high) // 2, piece.size - 1)
    return piece.start <= middle < piece.end


def _columns(
    schema: pa.Schema, columns: list[str] | None, predicate: Predicate | None, declared: pa.Schema | None, url: str
) -> tuple[list[str] | None, list[str] | None]:
    """(columns that leave the reader, columns to read); None: all. Raises InputError for one that the file lacks."""
    if columns is not None:
        for name in columns:
            if schema.get_field_index(name.partition(".")[0]) < 0 and (declared is None or declared.get_field_index(name) < 0):
                raise InputError(f"no column {name!r}", where=url, mend=f"The file has: {', '.join(schema.names)}.")
    if predicate is not None:
        for name in predicate.columns:
            if schema.get_field_index(name) < 0:
                raise InputError(
                    f"the filter names column {name!r}, which is not there", where=url, mend=f"The file has: {', '.join(schema.names)}."
                )
    if columns is None:
        return None, None
    tops = list(dict.fromkeys(name.partition(".")[0] for name in columns))
    extra = [name for name in (predicate.columns if predicate is not None else ()) if name not in columns]
    return tops, [name for name in [*columns, *extra] if schema.get_field_index(name.partition(".")[0]) >= 0]


def _empty(schema: pa.Schema, wanted: list[str] | None) -> pa.Table:
    table = schema.empty_table()
    return table if wanted is None else table.select([name for name in wanted if name in table.schema.names])
