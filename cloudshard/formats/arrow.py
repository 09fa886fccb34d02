"""Arrow IPC: files are read by record batches (a batch belongs to the range that holds its midpoint), streams are one shard.

A row's position is its index in the file. Reader option: ``columns``. Writer options: ``compression`` ("zstd" default, "lz4", "none") and
``batch_bytes`` (8 MiB): what is gathered into one record batch, which is also what readers can split by. Files are written in the file
format, never as streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cloudshard.engine.block import Block, Origin
from cloudshard.errors import InputError
from cloudshard.formats.align import Aligner, bounded
from cloudshard.formats.arrow_footer import MAGIC, BatchPlace, batch_places, batch_rows
from cloudshard.formats.arrow_write import ArrowPartWriter, ArrowWriteOptions
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import ByteSink, PartWriter, ReadContext
from cloudshard.formats.ranged import BYTES_READ, ChunkStream, chunks, get_pinned
from cloudshard.formats.split import byte_ranges, whole_object
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store

_STREAM_SUFFIXES = (".arrows",)


class ArrowFormat:
    """The format "arrow"."""

    name = "arrow"
    suffixes: tuple[str, ...] = (".arrow", ".feather", ".ipc", ".arrows")
    row_oriented = False
    position_unit = "row"

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """Byte ranges of about ``target_bytes``; one range for ``.arrows`` (the suffix of streams)."""
        _columns_option(options)
        if url.lower().endswith(_STREAM_SUFFIXES):
            return whole_object(info, url)
        return byte_ranges(info, url, target_bytes)

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """Tables of the range. A stream that does not have the suffix of one is read by the range that begins at 0, as a whole."""
        columns = _columns_option(context.options)
        aligner = Aligner(context, columns)
        for first, table in _tables(piece, context):
            _validate(table, first, piece.url)
            _check_columns(table.schema, columns, context, piece.url)
            yield from bounded(aligner.align(table, range(first, first + table.num_rows)), context)

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """A writer of one file."""
        return ArrowPartWriter(sink, schema, ArrowWriteOptions.of(options))

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Suffix of a part's file name."""
        return ".arrow"

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """A few rows of the first batch (all batches have one schema); a table without rows when there is none."""
        context = ReadContext(
            store=store,
            key=info.key,
            origin=Origin(-1, url, "row"),
            options=options,
            schema=None,
            bad_row=lambda error, row: None,  # the run itself reports bad rows
        )
        columns = _columns_option(options)
        piece = InputRange(url=url, size=info.size, etag=info.etag, start=0, end=max(1, info.size))
        for first, table in _tables(piece, context, first_only=True):
            _check_columns(table.schema, columns, context, url)
            some = table.slice(0, rows)
            if not some.num_rows:
                yield Block(context.origin, (), table=some if columns is None else some.select(columns))
            yield from Aligner(context, columns).align(some, range(first, first + some.num_rows))


def _columns_option(options: Mapping[str, Any]) -> list[str] | None:
    taken = OptionReader("arrow reader", options)
    columns = taken.names("columns")
    taken.finish()
    return columns


def _check_columns(schema: pa.Schema, columns: list[str] | None, context: ReadContext, url: str) -> None:
    for name in columns or ():
        if schema.get_field_index(name) < 0 and (context.schema is None or context.schema.get_field_index(name) < 0):
            raise InputError(f"no column {name!r}", where=url, mend=f"The file has: {', '.join(schema.names)}.")


def _validate(table: pa.Table, first: int, url: str) -> None:
    """The format has no checksums: offsets that point nowhere would kill the process when a value is used."""
    try:
        table.validate(full=True)
        _decode_names(table.schema)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(error, f"{url}, batch at row {first}") from error


def _decode_names(fields: Iterable[pa.Field]) -> None:
    """Raises UnicodeDecodeError for a name that is not UTF-8: pyarrow decodes names when they are asked for."""
    for field in fields:
        if field.name and field.type.num_fields:
            _decode_names(field.type.field(index) for index in range(field.type.num_fields))


def _tables(piece: InputRange, context: ReadContext, *, first_only: bool = False) -> Iterator[tuple[int, pa.Table]]:
    """(index of the first row, table) of each batch of the range."""

    def read(start: int, end: int) -> bytes:
        data = get_pinned(context.store, context.key, piece, start, end)
        context.count(BYTES_READ, len(data))
        return data

    if not piece.size:
        return
    if piece.unit == "object" or read(0, min(piece.size, 8))[:6] != MAGIC:
        if piece.start == 0:
            yield from stream_tables(piece, context)
        return
    places = batch_places(read, piece.size, piece.url)
    schema, dictionaries = _head(read, places, piece)
    first = 0
    if first_only and not places:
        yield 0, schema.empty_table()
    for place in places:
        if piece.start <= place.middle < piece.end:
            table = _one_batch(read, place, schema, dictionaries, piece)
            yield first, table
            first += table.num_rows
            if first_only:
                return
        elif place.middle < piece.start:
            first += batch_rows(read, place, piece.url)
        else:
            return


def _head(read: Any, places: Sequence[BatchPlace], piece: InputRange) -> tuple[pa.Schema, bytes]:
    """The schema, and the bytes of the stream that must stand before any batch (schema message and dictionaries)."""
    end = places[0].start if places else piece.size
    head = read(8, end)
    try:
        return pa.ipc.open_stream(pa.BufferReader(head)).schema, head
    except (OSError, pa.ArrowException) as error:
        raise _damaged(error, piece.url) from error


def _one_batch(read: Any, place: BatchPlace, schema: pa.Schema, head: bytes, piece: InputRange) -> pa.Table:
    body = read(place.start, place.start + place.metadata_bytes + place.body_bytes)
    try:
        if any(pa.types.is_dictionary(field.type) for field in schema):
            return pa.ipc.open_stream(pa.BufferReader(head + body)).read_all()
        return pa.Table.from_batches([pa.ipc.read_record_batch(pa.ipc.read_message(body), schema)])
    except (OSError, pa.ArrowException) as error:
        raise _damaged(error, f"{piece.url}, batch at byte {place.start}") from error


def stream_tables(piece: InputRange, context: ReadContext, watch: Callable[[bytes], None] | None = None) -> Iterator[tuple[int, pa.Table]]:
    """(index of the first row, table) of each batch of an IPC stream. ``watch`` sees the bytes as they are read."""
    source = chunks(context.store, context.key, piece, start=0, end=piece.size, counts=context.counts)
    if watch is not None:
        source = _watched(source, watch)
    first = 0
    try:
        with pa.ipc.open_stream(pa.PythonFile(ChunkStream(source), mode="r")) as reader:
            for batch in reader:
                yield first, pa.Table.from_batches([batch])
                first += batch.num_rows
            if not first:
                yield 0, reader.schema.empty_table()
        for _ in source if watch is not None else ():  # what follows the end-of-stream mark belongs to the object too
            pass
    except (OSError, pa.ArrowException) as error:
        raise _damaged(error, f"{piece.url}, after row {first}") from error


def _watched(source: Iterator[bytes], watch: Callable[[bytes], None]) -> Iterator[bytes]:
    for chunk in source:
        watch(chunk)
        yield chunk


def _damaged(error: Exception, where: str) -> InputError:
    return InputError(
        f"not readable as Arrow IPC (truncated or damaged): {error}", where=where, mend="Copy it again from its origin, or exclude it."
    )
