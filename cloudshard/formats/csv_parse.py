"""From CSV records to a table: text first, then column by column to its type, with each misfit told by its record."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cloudshard.errors import InputError
from cloudshard.formats.columns import shown
from cloudshard.formats.csv_records import Records
from cloudshard.formats.findings import find_failing
from cloudshard.formats.lines import Line
from cloudshard.formats.widen import is_bytes, is_text

#: ``refuse(position, reason, record)``.
Refuse = Callable[[int, str, bytes | Mapping[str, Any]], None]


class Dialect(NamedTuple):
    """How values are separated and quoted, and what stands for null."""

    delimiter: str
    quote: str
    escape: str
    encoding: str
    null_values: list[str] | None

    def parse_options(self, invalid: Callable[[Any], str] | None = None) -> Any:
        """As pyarrow wants it."""
        from pyarrow import csv

        return csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            escape_char=self.escape or False,
            newlines_in_values=True,
            ignore_empty_lines=False,
            invalid_row_handler=invalid,
        )

    def text(self, body: bytes) -> bytes:
        """``body`` in UTF-8."""
        return body if self.encoding == "utf-8" else body.decode(self.encoding).encode("utf-8")

    def split(self, record: bytes, url: str) -> list[str]:
        """The values of one record."""
        from pyarrow import csv

        try:
            body = self.text(record)
            options = csv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=len(body) + 1)
            convert = csv.ConvertOptions(null_values=[], auto_dict_encode=False, column_types=None, strings_can_be_null=False)
            table = csv.read_csv(io.BytesIO(body), options, self.parse_options(), convert)
            names = table.schema.names
            convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()), null_values=[], strings_can_be_null=False)
            table = csv.read_csv(io.BytesIO(body), options, self.parse_options(), convert)
        except (pa.ArrowException, UnicodeError) as error:
            raise InputError(
                f"the first record is no readable header: {error}", where=url, mend="Set delimiter, quote and encoding."
            ) from error
        return [str(column[0].as_py()) for column in table.columns]


class BatchParser:
    """Parses batches of records into tables of the ``wanted`` columns."""

    def __init__(
        self, dialect: Dialect, names: Sequence[str], wanted: Sequence[str], kinds: Mapping[str, pa.DataType], refuse: Refuse
    ) -> None:
        self._dialect = dialect
        self._names = list(names)
        self._wanted = list(wanted)
        self._kinds = kinds
        self._refuse = refuse

    def parse(self, batch: Records) -> tuple[pa.Table, list[int]]:
        """(table, positions of its rows); what cannot be read was refused."""
        records, positions = self._decodable(batch)
        raw, ragged = self._split(records)
        if ragged:
            for index, count in ragged:
                named = f"{len(self._names)} columns"
                self._refuse(positions[index], f"the record has {count} values, the file has {named}", bytes(records[index]))
            gone = {index for index, _ in ragged}
            left = [index for index in range(len(records)) if index not in gone]
            records, positions = [records[index] for index in left], [positions[index] for index in left]
        columns: list[pa.ChunkedArray] = []
        misfits: dict[int, str] = {}
        for name in self._wanted:
            column = self._convert(name, raw.column(name).combine_chunks(), misfits)
            if column is not None:
                columns.append(column)
        if misfits:
            for index in sorted(misfits):
                self._refuse(positions[index], misfits[index], bytes(records[index]))
            left = [index for index in range(len(records)) if index not in misfits]
            return self.parse(Records([records[index] for index in left], [positions[index] for index in left]))
        return pa.Table.from_arrays(columns, names=self._wanted), positions

    def _decodable(self, batch: Records) -> tuple[list[Line], list[int]]:
        if self._dialect.encoding == "utf-8":
            return batch
        records: list[Line] = []
        positions: list[int] = []
        for record, position in zip(batch.records, batch.positions, strict=True):
            try:
                records.append(self._dialect.text(bytes(record)))
                positions.append(position)
            except UnicodeDecodeError as error:
                self._refuse(position, f"not {self._dialect.encoding}: {error.reason} at byte {error.start} of the record", bytes(record))
        return records, positions

    def _split(self, records: Sequence[Line]) -> tuple[pa.Table, list[tuple[int, int]]]:
        """(all columns as bytes, [(index, number of values) of ragged records])."""
        from pyarrow import csv

        ragged: list[tuple[int, int]] = []
        body = b"".join(records)

        def note(row: Any) -> str:
            ragged.append((row.number - 1, row.actual_columns))
            return "skip"

        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.large_binary()),
            null_values=self._dialect.null_values or [],
            strings_can_be_null=bool(self._dialect.null_values),
            quoted_strings_can_be_null=False,
        )
        if not body:
            return pa.schema([pa.field(name, pa.large_binary()) for name in self._names]).empty_table(), []
        options = csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(body) + 1)
        return csv.read_csv(io.BytesIO(body), options, self._dialect.parse_options(note), convert), ragged

    def _convert(self, name: str, column: pa.Array | pa.ChunkedArray, misfits: dict[int, str]) -> pa.Array | None:
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        kind = self._kinds[name]
        if is_bytes(kind):
            return column.cast(kind)

        def attempt(some: Sequence[int]) -> str | None:
            try:
                to_type(column.slice(some[0], len(some)), kind)
            except pa.ArrowException:
                return self._reason(name, column[some[0]].as_py(), kind) if len(some) == 1 else "some"
            return None

        try:
            return to_type(column, kind)
        except pa.ArrowException:
            for index, reason in find_failing(len(column), attempt):
                misfits.setdefault(index, reason)
            return None

    def _reason(self, name: str, value: bytes, kind: pa.DataType) -> str:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"column {name!r}: invalid UTF-8 (0x{value[error.start]:02x}) at byte {error.start} of the value"
        return f"column {name!r}: {shown(text)} is no {kind}"


def to_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bytes as UTF-8 text, and the text as ``kind``. Raises ArrowException."""
    if pt.is_null(kind) and column.null_count < len(column):
        raise pa.ArrowInvalid("a value in a column that held nothing but null in the samples")
    text = column.cast(pa.large_string())
    if is_text(kind):
        return text if pt.is_large_string(kind) else text.cast(kind)
    if pt.is_null(kind):
        return pa.nulls(len(column))
    return pc.utf8_trim_whitespace(text).cast(kind)


# ---------------------------------------------------------------- types from values

_CANDIDATES = (pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))


def infer_types(dialect: Dialect, names: Sequence[str], records: Sequence[Line]) -> dict[str, pa.DataType]:
    """The first of integer, float, date, timestamp and boolean that all values have; else text. No value at all: null."""
    parser = BatchParser(dialect, names, names, dict.fromkeys(names, pa.large_binary()), lambda position, reason, record: None)
    table, _ = parser.parse(Records(list(records), [0] * len(records)))
    return {name: _infer(table.column(name).combine_chunks()) for name in names}


def _infer(column: pa.Array | pa.ChunkedArray) -> pa.DataType:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, pa.large_binary())
    if column.null_count == len(column):
        return pa.null()
    try:
        text = column.cast(pa.large_string())
    except pa.ArrowException:
        return pa.large_string()
    if pc.any(pc.match_substring_regex(text, r"^[+-]?0[0-9]")).as_py():
        return pa.large_string()  # a code with leading zeros, which a number would lose
    if (
        pc.all(pc.is_in(pc.utf8_lower(text), pa.array(["true", "false"], pa.large_string()), skip_nulls=True)).as_py()
        and column.null_count == 0
    ):
        return pa.bool_()
    for kind in _CANDIDATES:
        try:
            to_type(column, kind)
        except pa.ArrowException:
            continue
        return kind
    return pa.large_string()
