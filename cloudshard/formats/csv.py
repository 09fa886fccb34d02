"""CSV and its kin. Rows leave as tables; a row's position is the byte offset of its record.

Values are read as text first and converted column by column afterwards, so that one bad value costs its row and not the file.

Reader options:

- ``header`` (true): the first record names the columns. False: ``column_names``, or those of the declared schema, or ``f0``, ``f1``…
- ``column_names``: names of the columns; with ``header`` true they replace the ones in the file.
- ``columns``: the columns to read, in this order.
- ``delimiter`` ("," or, for ``.tsv``, a tab), ``quote`` ('"'; "" for none), ``escape`` ("" for none).
- ``types``: column → Arrow type name (``{"zip": "string"}``); a declared schema does the same. Otherwise types come from samples; numbers
  with leading zeros stay text.
- ``null_values`` ([""]): what stands for null when it is not quoted.
- ``encoding`` ("utf-8"): any that extends ASCII.
- ``splittable`` (false): your promise that no value contains a line end. Then a plain file is cut into byte ranges; without it, a file is
  one shard.
- ``blank_lines``: "skip" (default; counted) or "error". ``max_row_bytes`` (64 MiB). ``compression`` as for JSON lines.

A record with more or fewer values than the header, a value that does not fit its column's type, and invalid text go to the bad-row policy.
Writer options are described in :mod:`cloudshard.formats.csv_write`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from cloudshard.engine.block import Block, Origin
from cloudshard.errors import InputError, RecipeError, RowError
from cloudshard.formats.align import bounded
from cloudshard.formats.compress import SUFFIXES, codec_of, decompressed
from cloudshard.formats.csv_parse import BatchParser, Dialect, infer_types
from cloudshard.formats.csv_records import RecordJoiner, Records
from cloudshard.formats.csv_write import CsvPartWriter, CsvWriteOptions
from cloudshard.formats.lines import line_batches
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import BadRow, ByteSink, PartWriter, ReadContext
from cloudshard.formats.ranged import chunks
from cloudshard.formats.split import byte_ranges, whole_object
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo, Store

DEFAULT_MAX_ROW_BYTES = 64 << 20
#: What is read at the head for the header and for types, at first.
SAMPLE_BYTES = 256 << 10
#: Rows from which types are told when nothing is declared and nothing was sampled (local use).
TYPE_ROWS = 1000

_BOM = b"\xef\xbb\xbf"


class _Options(NamedTuple):
    codec: str | None
    header: bool
    column_names: list[str] | None
    columns: list[str] | None
    types: dict[str, pa.DataType]
    dialect: Dialect
    splittable: bool
    blank_lines: str
    max_row_bytes: int


def _read_options(url: str, options: Mapping[str, Any]) -> _Options:
    taken = OptionReader("csv reader", options)
    codec = taken.choice("compression", "auto", ("auto", "none", *SUFFIXES))
    made = _Options(
        codec_of(url) if codec == "auto" else None if codec == "none" else codec,
        taken.flag("header", True),
        taken.names("column_names"),
        taken.names("columns"),
        _types(taken.take("types")),
        Dialect(
            _character(taken, "delimiter", "\t" if ".tsv" in url.lower() else ","),
            _character(taken, "quote", '"'),
            _character(taken, "escape", ""),
            _encoding(taken),
            taken.names("null_values") if "null_values" in options else [""],
        ),
        taken.flag("splittable", False),
        taken.choice("blank_lines", "skip", ("skip", "error")),
        taken.positive("max_row_bytes", DEFAULT_MAX_ROW_BYTES),
    )
    taken.finish()
    return made


def _types(given: Any) -> dict[str, pa.DataType]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RecipeError("types must map column names to type names", where="csv reader")
    made = {}
    for name, kind in given.items():
        try:
            made[str(name)] = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(str(kind))
        except ValueError as error:
            raise RecipeError(
                f"unknown type {kind!r} of column {name!r}",
                where="csv reader",
                mend="E.g. int64, float64, string, bool, date32, timestamp[us].",
            ) from error
    return made


def _character(taken: OptionReader, name: str, default: str) -> str:
    value = taken.text(name, default)
    if len(value.encode("utf-8")) > 1 or value in ("\n", "\r") or (not value and name == "delimiter"):
        raise RecipeError(f"{name} must be one ASCII character, not {value!r}", where="csv reader")
    return value


def _encoding(taken: OptionReader) -> str:
    name = taken.text("encoding", "utf-8")
    try:
        extends_ascii = '\n,"x'.encode(name) == b'\n,"x'
        return codecs.lookup(name).name if extends_ascii else _refuse_encoding(name)
    except LookupError as error:
        raise RecipeError(f"unknown encoding {name!r}", where="csv reader") from error


def _refuse_encoding(name: str) -> str:
    raise RecipeError(f"the encoding {name!r} does not extend ASCII", where="csv reader", mend="Convert the file to UTF-8 first.")


class CsvFormat:
    """The format "csv"."""

    name = "csv"
    suffixes: tuple[str, ...] = (".csv", ".tsv")
    row_oriented = False
    position_unit = "byte"

    def split(self, store: Store, info: ObjectInfo, url: str, target_bytes: int | None, options: Mapping[str, Any]) -> Sequence[InputRange]:
        """Byte ranges when the option ``splittable`` promises that they are safe, otherwise one range."""
        taken = _read_options(url, options)
        return byte_ranges(info, url, target_bytes) if taken.splittable and taken.codec is None else whole_object(info, url)

    def read(self, piece: InputRange, context: ReadContext) -> Iterator[Block]:
        """Tables of the records that start in the range. Raises InputError for a missing or double header."""
        options = _read_options(piece.url, context.options)
        names = _names(piece, context, options)
        if names is None:
            return
        kinds = _kinds(names, piece, context, options)
        wanted = names if options.columns is None else options.columns
        for name in wanted:
            if name not in names:
                raise InputError(f"no column {name!r}", where=piece.url, mend=f"The file has: {', '.join(names)}.")
        refuse = _refusal(piece.url, context.bad_row)
        parser = BatchParser(options.dialect, names, wanted, kinds, refuse)
        for records in _records(piece, context, options, skip_header=options.header and piece.start == 0):
            for some in _sliced(records, context):
                table, positions = parser.parse(some)
                if positions:
                    yield from bounded([Block(context.origin, positions, table=table, nbytes=table.nbytes)], context)

    def open_writer(self, sink: ByteSink, schema: pa.Schema | None, options: Mapping[str, Any]) -> PartWriter:
        """A writer of one file; see :mod:`cloudshard.formats.csv_write`."""
        return CsvPartWriter(sink, schema, CsvWriteOptions.of(options))

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """Suffix of a part's file name."""
        return CsvWriteOptions.of(options).suffix

    def sample(self, store: Store, info: ObjectInfo, url: str, options: Mapping[str, Any], *, rows: int) -> Iterator[Block]:
        """The first ``rows`` rows, typed by themselves and by ``types``; a table without rows when there is only a header."""
        context = ReadContext(
            store=store,
            key=info.key,
            origin=Origin(-1, url, "byte"),
            options=options,
            schema=None,
            bad_row=lambda error, row: None,  # the run itself reports bad rows
            block_rows=rows,
        )
        taken = _read_options(url, options)
        piece = InputRange(url=url, size=info.size, etag=info.etag, start=0, end=info.size, unit="object")
        names = _names(piece, context, taken)
        if names is None:
            return
        found = next(self.read(piece, context), None)
        if found is None:
            kinds = _kinds(names, piece, context, taken)
            wanted = names if taken.columns is None else taken.columns
            empty = pa.schema([pa.field(name, kinds[name]) for name in wanted]).empty_table()
            yield Block(context.origin, (), table=empty)
        else:
            yield found


def _refusal(url: str, bad_row: BadRow) -> Any:
    def refuse(position: int, reason: str, record: bytes | Mapping[str, Any]) -> None:
        bad_row(RowError(reason, object=url, position=position), record)

    return refuse


def _records(piece: InputRange, context: ReadContext, options: _Options, *, skip_header: bool) -> Iterator[Records]:
    """Records of the range, without blank lines, the byte order mark and (``skip_header``) the first one."""
    refuse = _refusal(piece.url, context.bad_row)

    def too_long(position: int, size: int) -> None:
        refuse(position, f"the record has {size:,} bytes, max_row_bytes allows {options.max_row_bytes:,}", b"")

    def open_quote(position: int, record: bytes) -> None:
        refuse(position, "a quote is never closed: the rest of the file is inside it", record[:4096])

    if options.codec is not None:
        raw = chunks(context.store, context.key, piece, start=0, end=piece.size, counts=context.counts)
        lines = line_batches(decompressed(raw, options.codec, piece.url), start=0, end=None, limit=options.max_row_bytes, too_long=too_long)
    else:
        first = max(0, piece.start - 1)
        raw = chunks(context.store, context.key, piece, start=first, end=piece.end, counts=context.counts)
        lines = line_batches(raw, start=piece.start, end=piece.end, limit=options.max_row_bytes, too_long=too_long)
    quote = options.dialect.quote.encode() or None
    joiner = RecordJoiner(None if options.splittable else quote, options.max_row_bytes, too_long, open_quote)
    for records, positions in joiner.join(lines):
        if positions[0] == 0 and records[0].startswith(_BOM):
            records = [records[0][3:], *records[1:]]
        blank = [index for index, record in enumerate(records) if len(record) <= 2 and not record.strip(b"\r\n")]
        if blank:
            context.count("blank_lines", len(blank))
            if options.blank_lines == "error":
                for index in blank:
                    refuse(positions[index], "a blank line", bytes(records[index]))
            left = sorted(set(range(len(records))) - set(blank))
            records, positions = [records[index] for index in left], [positions[index] for index in left]
        if skip_header and records:
            records, positions, skip_header = records[1:], positions[1:], False
        if records:
            yield Records(records, positions)


def _sliced(records: Records, context: ReadContext) -> Iterator[Records]:
    for begin in range(0, len(records.records), context.block_rows):
        yield Records(records.records[begin : begin + context.block_rows], records.positions[begin : begin + context.block_rows])


def _head(piece: InputRange, context: ReadContext, options: _Options, count: int, *, skip_header: bool) -> Records:
    """The first ``count`` records of the object, whatever the range."""
    start = InputRange(url=piece.url, size=piece.size, etag=piece.etag, start=0, end=min(piece.size, SAMPLE_BYTES))
    quiet = ReadContext(
        store=context.store, key=context.key, origin=context.origin, options=context.options, schema=None, bad_row=lambda error, row: None
    )
    if options.codec is not None:
        start = piece
    found: list[Any] = []
    positions: list[int] = []
    for records in _records(start, quiet, options, skip_header=skip_header):
        found += list(islice(records.records, count - len(found)))
        positions += records.positions[: len(found) - len(positions)]
        if len(found) >= count:
            break
    return Records(found, positions)


def _names(piece: InputRange, context: ReadContext, options: _Options) -> list[str] | None:
    """Names of the file's columns; None when it has no record at all."""
    head = _head(piece, context, options, 1, skip_header=False)
    if not head.records:
        return None
    first = options.dialect.split(bytes(head.records[0]), piece.url)
    if options.column_names is not None:
        names = options.column_names
    elif options.header:
        names = [name.strip() for name in first]
    elif context.schema is not None:
        names = list(context.schema.names)
    else:
        names = [f"f{index}" for index in range(len(first))]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InputError(f"two columns have the name {double!r}", where=piece.url, mend="Give column_names.")
    if options.column_names is not None and len(names) != len(first):
        raise InputError(f"column_names has {len(names)} names, the file has {len(first)} columns", where=piece.url)
    return names


def _kinds(names: Sequence[str], piece: InputRange, context: ReadContext, options: _Options) -> dict[str, pa.DataType]:
    """The type of each column: from ``types``, the declared or sampled schema, or the first rows of the object."""
    kinds = {field.name: field.type for field in context.schema} if context.schema is not None else {}
    kinds.update(options.types)
    if all(name in kinds for name in names):
        return kinds
    head = _head(piece, context, options, TYPE_ROWS, skip_header=options.header)
    return {**infer_types(options.dialect, names, head.records), **kinds}
