"""What a file format must offer: split, read, write. Formats are found by name in :mod:`cloudshard.formats.registry`.

Readers yield :class:`~cloudshard.engine.block.Block` values bounded in rows and bytes. A row that cannot be read goes to the
``bad_row`` callback, which raises (strict), or counts and returns (lenient): reading then goes on with the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from cloudshard.engine.block import Block, Origin
from cloudshard.errors import RowError
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store

#: Called with the error and the raw bytes (or a dict) of the row that cannot be read. Returns when the row is to be skipped.
BadRow = Callable[[RowError, bytes | Mapping[str, Any]], None]


class ReadContext:
    """What a reader gets besides the range: the open store and key, options, schema, the bad-row callback."""

    __slots__ = ("bad_row", "block_bytes", "block_rows", "counts", "key", "options", "origin", "schema", "store")

    def __init__(
        self,
        *,
        store: Store,
        key: str,
        origin: Origin,
        options: Mapping[str, Any],
        schema: pa.Schema | None,
        bad_row: BadRow,
        block_rows: int = 2048,
        block_bytes: int = 8 << 20,
    ) -> None:
        self.store = store
        self.key = key
        self.origin = origin
        self.options = options
        self.schema = schema
        self.bad_row = bad_row
        self.block_rows = block_rows
        self.block_bytes = block_bytes
        #: What the reader counts besides rows: ``bytes_read``, ``blank_lines``, ``nan_as_null``, ``row_groups_skipped``, ``rows_pruned``…
        self.counts: dict[str, int] = {}

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counts[name] = self.counts.get(name, 0) + number


class ByteSink(Protocol):
    """Where a writer puts its bytes, in order (an :class:`cloudshard.store.upload.UploadStream` or a buffer)."""

    def write(self, data: bytes | memoryview) -> int: ...


class PartWriter(Protocol):
    """Writes blocks into one object. ``rows`` counts what was written."""

    rows: int

    def write(self, block: Block) -> None:
        """Append the block's rows. Table blocks already have the sink's schema when there is one."""
        ...

    def finish(self) -> None:
        """Write what is buffered and the footer; the sink itself is closed by the caller."""
        ...


class Format(Protocol):
    """One file format."""

    name: str
    suffixes: tuple[str, ...]
    #: True when rows leave the reader as dicts, False when as Arrow tables.
    row_oriented: bool
    #: What the positions of its rows count: "byte" or "row".
    position_unit: str

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """Cut one object into contiguous ranges of about ``target_bytes`` (None: one range). Must not read the data."""
        ...

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """Rows of one range, in order. Raises InputChanged when the object is not the pinned one."""
        ...

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Suffix of a part's file name, for the writer's options."""
        ...

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """A writer of one part."""
        ...

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """A few rows from the head and the tail, for deciding the schema; reads little."""
        ...
