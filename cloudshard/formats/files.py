"""Whole files as rows: ``path`` (URL), ``content``, ``size`` (bytes) and ``modified`` (UTC, by the store's clock).

Reader options:

- ``content``: "text" (default), "bytes" or "none" (only path, size and time; nothing is read).
- ``encoding`` ("utf-8") and ``errors`` for text: "strict" (default: a file that cannot be decoded goes to the bad-row policy), "replace" or
  "ignore". A byte order mark is skipped.
- ``max_row_bytes`` (64 MiB): a larger file goes to the bad-row policy and is not read.
- ``modified`` (true): the column ``modified``, which costs one more request per file.

One range per object; the planner puts many into one shard. A row's position is 0.
"""

from __future__ import annotations

import codecs
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from cloudshard.engine.block import Block, Origin
from cloudshard.errors import RecipeError, RowError
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import ByteSink, PartWriter, ReadContext
from cloudshard.formats.ranged import BYTES_READ, get_pinned
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store

DEFAULT_MAX_ROW_BYTES = 64 << 20


class _Options(NamedTuple):
    content: str
    encoding: str
    errors: str
    max_row_bytes: int
    modified: bool


def _read_options(options: Mapping[str, Any]) -> _Options:
    taken = OptionReader("files reader", options)
    made = _Options(
        taken.choice("content", "text", ("text", "bytes", "none")),
        taken.text("encoding", "utf-8"),
        taken.choice("errors", "strict", ("strict", "replace", "ignore")),
        taken.positive("max_row_bytes", DEFAULT_MAX_ROW_BYTES),
        taken.flag("modified", True),
    )
    taken.finish()
    try:
        codecs.lookup(made.encoding)
    except LookupError as error:
        raise RecipeError(f"unknown encoding {made.encoding!r}", where="files reader") from error
    return made


class FilesFormat:
    """The format "files"."""

    name = "files"
    suffixes: tuple[str, ...] = (".txt", ".md", ".html", ".xml", ".py")
    row_oriented = True
    position_unit = "byte"

    def schema(self, options: Mapping[str, Any]) -> pa.Schema:
        """The schema of the rows, which is the same for all inputs."""
        taken = _read_options(options)
        fields = [pa.field("path", pa.large_string())]
        if taken.content != "none":
            fields.append(pa.field("content", pa.large_string() if taken.content == "text" else pa.large_binary()))
        fields.append(pa.field("size", pa.int64()))
        if taken.modified:
            fields.append(pa.field("modified", pa.timestamp("us", "UTC")))
        return pa.schema(fields)

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """One range per object; an empty file is a row too."""
        _read_options(options)
        return [InputRange(url=url, size=info.size, etag=info.etag, start=0, end=info.size, unit="object")]

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """The one row of the object."""
        options = _read_options(context.options)
        row: dict[str, Any] = {"path": piece.url}
        if options.content != "none":
            if piece.size > options.max_row_bytes:
                reason = f"the file has {piece.size:,} bytes, max_row_bytes allows {options.max_row_bytes:,}"
                mend = "Raise max_row_bytes (the row must fit into memory), or let bad rows be dropped or quarantined."
                context.bad_row(RowError(reason, object=piece.url, position=0, mend=mend), row)
                return
            body = get_pinned(context.store, context.key, piece, 0, piece.size) if piece.size else b""
            context.count(BYTES_READ, len(body))
            if options.content == "bytes":
                row["content"] = body
            else:
                try:
                    row["content"] = _text(body, options)
                except UnicodeDecodeError as error:
                    reason = f"not {options.encoding}: {error.reason} at byte {error.start}"
                    mend = 'Set encoding, errors="replace", or content="bytes".'
                    context.bad_row(RowError(reason, object=piece.url, position=0, mend=mend), body)
                    return
        row["size"] = piece.size
        if options.modified:
            row["modified"] = dt.datetime.fromtimestamp(context.store.head(context.key).last_modified, dt.UTC)
        yield Block(context.origin, [0], rows=[row], nbytes=piece.size + len(piece.url))

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """Raises RecipeError: rows are written as parquet, jsonl, csv or arrow."""
        raise RecipeError("the format 'files' can only be read", mend="Write parquet, jsonl, csv or arrow.")

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Raises RecipeError, as :meth:`open_writer` does."""
        raise RecipeError("the format 'files' can only be read", mend="Write parquet, jsonl, csv or arrow.")

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """The row itself."""
        context = ReadContext(
            store=store, key=info.key, origin=Origin(-1, url, "row"), options=options, schema=None, bad_row=lambda error, row: None
        )
        for piece in self.split(store, info, url, None, options):
            yield from self.read(piece, context)


def _text(body: bytes, options: _Options) -> str:
    text = body.decode(options.encoding, options.errors)
    return text[1:] if text.startswith("\ufeff") else text
