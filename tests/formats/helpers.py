"""Objects in memory, and reading them in one range or many."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from cloudshard.engine.block import Block, Origin, Row
from cloudshard.errors import RowError
from cloudshard.formats.port import ReadContext
from cloudshard.formats.registry import get_format
from cloudshard.ledger.records import InputRange
from cloudshard.store.memory import MemoryStore
from cloudshard.store.port import ObjectInfo, Store


class Bad(NamedTuple):
    """A row that the lenient callback was given."""

    error: RowError
    row: Any


class RemoteStore(MemoryStore):
    """A memory store that looks remote: readers prefetch and coalesce. ``gets`` records (start, end) of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.url = "s3://bucket"
        self.gets: list[tuple[int, int | None]] = []

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        self.gets.append((start, end))
        return super().get(key, start=start, end=end, if_etag=if_etag)


def stored(body: bytes, key: str, store: MemoryStore | None = None) -> tuple[MemoryStore, ObjectInfo, str]:
    """A store that holds ``body``: (store, info, URL)."""
    store = store if store is not None else MemoryStore("t")
    store.put(key, body)
    return store, store.head(key), f"{store.url}/{key}"


def context_for(
    store: Store,
    key: str,
    url: str,
    *,
    options: Mapping[str, Any] | None = None,
    schema: pa.Schema | None = None,
    bad: list[Bad] | None = None,
    unit: str = "byte",
    block_rows: int = 2048,
    block_bytes: int = 8 << 20,
) -> ReadContext:
    """Strict without ``bad``; lenient, collecting into it, otherwise."""

    def bad_row(error: RowError, row: Any) -> None:
        if bad is None:
            raise error
        bad.append(Bad(error, row))

    return ReadContext(
        store=store,
        key=key,
        origin=Origin(0, url, unit),
        options=options or {},
        schema=schema,
        bad_row=bad_row,
        block_rows=block_rows,
        block_bytes=block_bytes,
    )


class ReadResult(NamedTuple):
    """Everything that came out of a read."""

    rows: list[Row]
    positions: list[int]
    blocks: list[Block]
    counts: dict[str, int]
    bad: list[Bad]


def rows_of(blocks: Iterable[Block]) -> list[Row]:
    """Rows of blocks of either kind."""
    rows: list[Row] = []
    for block in blocks:
        assert (block.rows is None) != (block.table is None)
        found = block.rows if block.rows is not None else block.table.to_pylist()
        assert len(found) == len(block.positions)
        rows.extend(found)
    return rows


def read(
    format_name: str,
    body: bytes,
    key: str = "a.jsonl",
    *,
    options: Mapping[str, Any] | None = None,
    target_bytes: int | None = None,
    cuts: Sequence[int] | None = None,
    lenient: bool = False,
    store: MemoryStore | None = None,
    schema: pa.Schema | None = None,
    **bounds: Any,
) -> ReadResult:
    """All rows of an object, range by range. ``cuts``: inner cut points instead of the format's own split."""
    fmt = get_format(format_name)
    store, info, url = stored(body, key, store)
    pieces = list(fmt.split(store, info, url, target_bytes, options or {}))
    if cuts is not None:
        edges = [0, *sorted(cuts), info.size]
        pieces = [InputRange(url, info.size, info.etag, low, high) for low, high in pairwise(edges) if high > low]
    bad: list[Bad] = []
    counts: dict[str, int] = {}
    blocks: list[Block] = []
    for piece in pieces:
        context = context_for(
            store, key, url, options=options, schema=schema, bad=bad if lenient else None, unit=fmt.position_unit, **bounds
        )
        blocks += list(fmt.read(piece, context))
        for name, number in context.counts.items():
            counts[name] = counts.get(name, 0) + number
    return ReadResult(rows_of(blocks), [at for block in blocks for at in block.positions], blocks, counts, bad)


def write(
    format_name: str, blocks: Iterable[Block], schema: pa.Schema | None = None, options: Mapping[str, Any] | None = None
) -> tuple[bytes, int]:
    """(bytes of one part, rows that the writer counted)."""
    sink = io.BytesIO()
    writer = get_format(format_name).open_writer(sink, schema, options or {})
    for block in blocks:
        writer.write(block)
    writer.finish()
    assert not sink.closed, "the sink is the caller's to close"
    return sink.getvalue(), writer.rows


def block_of(rows: list[Row]) -> Block:
    """Rows as a block."""
    return Block(Origin(0, "memory://t/x", "row"), range(len(rows)), rows=rows, nbytes=100 * len(rows))


def table_block(table: pa.Table) -> Block:
    """A table as a block."""
    return Block(Origin(0, "memory://t/x", "row"), range(table.num_rows), table=table, nbytes=table.nbytes)
