"""JSON lines: one object per line, plain or compressed. Rows leave as dicts, exactly as they stand in the file.

Reader options (defaults are strict; a refused line goes to the bad-row policy with its byte offset and the reason):

- ``max_row_bytes`` (64 MiB): a longer line is refused, and is not held in memory.
- ``blank_lines``: "skip" (default; counted) or "error".
- ``nan``: "error" (default) or "null" for NaN, Infinity and numbers beyond the range of a float.
- ``duplicate_keys``: "error" (default) or "last".
- ``big_integers``: "error" (default), "string" or "float" for integers that need more than 64 bits.
- ``compression``: "auto" (default: by the suffix .gz .zst .bz2 .lz4), "none", "gzip", "zstd", "bz2" or "lz4".

Plain files are cut into byte ranges; a compressed file is one shard, and positions in it are offsets in the decompressed stream.
Writer options are described in :mod:`cloudshard.formats.jsonl_write`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.errors import RowError
from cloudshard.formats.compress import SUFFIXES, codec_of, decompressed
from cloudshard.formats.json_rows import JsonOptions, JsonParser
from cloudshard.formats.jsonl_write import JsonlWriteOptions, JsonlWriter
from cloudshard.formats.lines import Line, LineBatch, line_batches
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import ByteSink, PartWriter, ReadContext
from cloudshard.formats.ranged import chunks
from cloudshard.formats.split import byte_ranges, whole_object
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store

DEFAULT_MAX_ROW_BYTES = 64 << 20
#: Bytes of rows in one block at most, whatever the caller allows: W1 read with 256 KiB 1.05, with 1 MiB 1.11 of a bare loop over the lines.
BLOCK_BYTES = 512 << 10
#: What a sample reads from the head and from the tail, at first; a line that is longer makes it read on.
SAMPLE_BYTES = 256 << 10


class _Options(NamedTuple):
    codec: str | None
    max_row_bytes: int
    json: JsonOptions


def _read_options(url: str, options: Mapping[str, Any]) -> _Options:
    taken = OptionReader("jsonl reader", options)
    codec = taken.choice("compression", "auto", ("auto", "none", *SUFFIXES))
    made = _Options(
        codec_of(url) if codec == "auto" else None if codec == "none" else codec,
        taken.positive("max_row_bytes", DEFAULT_MAX_ROW_BYTES),
        JsonOptions.take(taken),
    )
    taken.finish()
    return made


class JsonlFormat:
    """The format "jsonl"."""

    name = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".jsonlines", ".json")
    row_oriented = True
    position_unit = "byte"

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """Byte ranges of about ``target_bytes``; one range for a compressed object; none for an empty one."""
        if _read_options(url, options).codec is not None:
            return whole_object(info, url)
        return byte_ranges(info, url, target_bytes)

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """Rows that start in the range, in order."""
        return self._read(piece, context, chunk_bytes=None)

    def _read(self, piece: InputRange, context: ReadContext, *, chunk_bytes: int | None) -> Iterator[Block]:
        options = _read_options(piece.url, context.options)

        def refuse(position: int, reason: str, line: Line) -> None:
            context.bad_row(RowError(reason, object=piece.url, position=position), bytes(line))

        def too_long(position: int, size: int) -> None:
            reason = f"the line has {size:,} bytes, max_row_bytes allows {options.max_row_bytes:,}"
            mend = "Raise max_row_bytes (the row must fit into memory), or let bad rows be dropped or quarantined."
            context.bad_row(RowError(reason, object=piece.url, position=position, mend=mend), b"")

        parser = JsonParser(options.json, context.counts, refuse)
        if options.codec is not None:
            raw = chunks(context.store, context.key, piece, start=0, end=piece.size, counts=context.counts, chunk_bytes=chunk_bytes)
            source = decompressed(raw, options.codec, piece.url)
            batches = line_batches(source, start=0, end=None, limit=options.max_row_bytes, too_long=too_long)
        else:
            first = max(0, piece.start - 1)
            source = chunks(context.store, context.key, piece, start=first, end=piece.end, counts=context.counts, chunk_bytes=chunk_bytes)
            batches = line_batches(source, start=piece.start, end=piece.end, limit=options.max_row_bytes, too_long=too_long)
        yield from _blocks(batches, parser, context)

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """A writer of JSON lines; ``schema`` may be None (rows as they are)."""
        return JsonlWriter(sink, JsonlWriteOptions.of(options))

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Suffix of a part's file name."""
        return JsonlWriteOptions.of(options).suffix

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """Up to ``rows`` rows, half from the head and half from the tail (compressed objects: from the head only)."""
        if not info.size:
            return
        context = ReadContext(
            store=store,
            key=info.key,
            origin=Origin(-1, url, "byte"),
            options=options,
            schema=None,
            bad_row=lambda error, row: None,  # the run itself reports bad rows; a sample only looks for types
        )
        compressed = _read_options(url, options).codec is not None
        whole = InputRange(url=url, size=info.size, etag=info.etag, start=0, end=info.size)
        head = whole if compressed else InputRange(url=url, size=info.size, etag=info.etag, start=0, end=min(info.size, SAMPLE_BYTES))
        wanted = rows if compressed else max(1, rows - rows // 2)
        last = -1
        for block in _first_rows(self._read(head, context, chunk_bytes=SAMPLE_BYTES), wanted):
            last = block.positions[-1]
            yield block
        if compressed:
            return
        # behind the last row of the head, not behind the head: in a small file both are the same bytes
        start = max(last + 1, info.size - SAMPLE_BYTES)
        tail = InputRange(url=url, size=info.size, etag=info.etag, start=start, end=max(start, info.size))
        yield from _last_rows(self._read(tail, context, chunk_bytes=SAMPLE_BYTES), rows - wanted)


def _blocks(batches: Iterator[LineBatch], parser: JsonParser, context: ReadContext) -> Iterator[Block]:
    """Rows of the batches in blocks within the bounds."""
    most_bytes = min(context.block_bytes, BLOCK_BYTES)
    most_rows = context.block_rows
    rows: list[Row] = []
    positions: list[int] = []
    size = 0
    for batch in batches:
        batch_bytes = sum(map(len, batch.buffers))
        parsed, places = parser.parse(batch)
        del batch  # a huge line is not held while its row is worked on
        if not parsed:
            continue
        if rows and (size + batch_bytes > most_bytes or len(rows) + len(parsed) > most_rows):
            yield Block(context.origin, positions, rows=rows, nbytes=size)
            rows, positions, size = [], [], 0
        if len(parsed) <= most_rows and batch_bytes <= most_bytes:
            rows = rows + parsed if rows else parsed
            positions = positions + places if positions else places
            size += batch_bytes
            continue
        each = max(1, batch_bytes // len(parsed))
        step = max(1, min(most_rows, most_bytes // each))
        for begin in range(0, len(parsed), step):
            some = parsed[begin : begin + step]
            yield Block(context.origin, places[begin : begin + step], rows=some, nbytes=each * len(some))
        del parsed
    if rows:
        yield Block(context.origin, positions, rows=rows, nbytes=size)


def _first_rows(blocks: Iterator[Block], wanted: int) -> Iterator[Block]:
    """The first ``wanted`` rows. An archive that is damaged further on is the run's matter."""
    for block in blocks:
        if block.rows is None or wanted <= 0:
            return
        yield Block(block.origin, block.positions[:wanted], rows=block.rows[:wanted], nbytes=block.nbytes)
        wanted -= len(block)
        if wanted <= 0:
            return


def _last_rows(blocks: Iterator[Block], wanted: int) -> Iterator[Block]:
    """The last ``wanted`` rows."""
    rows: list[Row] = []
    positions: list[int] = []
    origin, size = None, 0
    for block in blocks:
        if block.rows is not None:
            origin, size = block.origin, size + block.nbytes
            rows = (rows + block.rows)[-wanted:] if wanted else []
            positions = ([*positions, *block.positions])[-wanted:] if wanted else []
    if origin is not None and rows:
        yield Block(origin, positions, rows=rows, nbytes=size)
