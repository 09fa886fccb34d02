"""Runs: what our own stages materialise for the next one. Arrow IPC streams; a range is in rows.

A run is written by one attempt and read as its commit record says: fewer rows than that is an IntegrityError, never a short result.
Writer options: ``compression`` ("lz4" default: runs are read once, soon) and ``batch_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from cloudshard.engine.block import Block, Origin
from cloudshard.errors import InputError, IntegrityError
from cloudshard.formats.align import Aligner, bounded
from cloudshard.formats.arrow import stream_tables
from cloudshard.formats.arrow_write import ArrowPartWriter, ArrowWriteOptions
from cloudshard.formats.port import ByteSink, PartWriter, ReadContext
from cloudshard.formats.split import whole_object
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store
from cloudshard.store.upload import CHECKSUM


class RunsFormat:
    """The format "runs"; not for users."""

    name = "runs"
    suffixes: tuple[str, ...] = (".run",)
    row_oriented = False
    position_unit = "row"

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """One range: how runs are cut follows from the commit records, not from listing."""
        return whole_object(info, url)

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """Rows [start, end) of the run (unit "rows"), or all of them. Raises IntegrityError when there are fewer."""
        bounded_by_rows = piece.unit == "rows"
        low, high = (piece.start, piece.end) if bounded_by_rows else (0, None)
        aligner = Aligner(context, None)
        seen = 0
        digest = xxhash.xxh3_128() if piece.checksum else None
        try:
            for first, table in stream_tables(piece, context, digest.update if digest is not None else None):
                seen = first + table.num_rows
                begin = max(0, low - first)
                stop = table.num_rows if high is None else min(table.num_rows, high - first)
                if begin < stop:
                    some = table.slice(begin, stop - begin)
                    yield from bounded(aligner.align(some, range(first + begin, first + stop)), context)
                if high is not None and seen >= high and digest is None:
                    break
        except InputError as error:
            raise IntegrityError(error.what, where=error.where, mend="The run is damaged; gc it and run again.") from error
        if digest is not None and piece.checksum != f"{CHECKSUM}{digest.hexdigest()}":
            raise IntegrityError(
                "the run's bytes are not those that were committed (checksum)", where=piece.url, mend="Run again on a new prefix."
            )
        if high is not None and seen < high:
            raise IntegrityError(f"the run has {seen} rows, its commit record says at least {high}", where=piece.url)

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """A writer of one run."""
        return ArrowPartWriter(sink, schema, ArrowWriteOptions.of({"compression": "lz4", **options}), stream=True)

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Suffix of a run's key."""
        return ".run"

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """The first rows."""
        context = ReadContext(
            store=store, key=info.key, origin=Origin(-1, url, "row"), options=options, schema=None, bad_row=lambda error, row: None
        )
        piece = InputRange(url=url, size=info.size, etag=info.etag, start=0, end=info.size, unit="object")
        for first, table in stream_tables(piece, context):
            some = table.slice(0, rows)
            yield Block(context.origin, range(first, first + some.num_rows), table=some, nbytes=some.nbytes)
            return
