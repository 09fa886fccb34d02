"""Writing JSON lines. Rows of dicts are written as they are (absent stays absent); tables give every column of their schema.

Options: ``compression`` ("none" default, "gzip", "zstd"), ``compression_level``, ``nulls`` ("write" default, or "omit": keys whose value is
null are left out, at the top level), ``nan`` ("null" default, or "error") and ``bytes`` ("error" default, or "base64").

What JSON cannot hold is written so: NaN and the infinities as null, or they are an error; dates, times and UUIDs as ISO 8601 text; Decimal
and integers beyond 64 bits as text, which loses nothing; durations as seconds; bytes as base64 or as an error; sets as arrays; numpy
scalars and arrays as numbers and arrays. Anything else, and text with lone surrogates, is an error that names the row.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import orjson

from cloudshard.engine.block import Block, Row
from cloudshard.errors import RowError
from cloudshard.formats.compress import SUFFIXES, open_output
from cloudshard.formats.options import OptionReader
from cloudshard.formats.port import BadRow, ByteSink

_FLAGS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
#: Lines gathered before they go to the compressor or the sink.
_FLUSH_BYTES = 1 << 20


class JsonlWriteOptions(NamedTuple):
    """Checked options of the writer."""

    codec: str | None
    level: int | None
    omit_nulls: bool
    refuse_nan: bool
    base64: bool

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> JsonlWriteOptions:
        """Raises RecipeError for unknown names and values."""
        taken = OptionReader("jsonl writer", options)
        codec = taken.choice("compression", "none", ("none", "gzip", "zstd"))
        level = taken.take("compression_level")
        made = cls(
            None if codec == "none" else codec,
            None if level is None else int(level),
            taken.choice("nulls", "write", ("write", "omit")) == "omit",
            taken.choice("nan", "null", ("null", "error")) == "error",
            taken.choice("bytes", "error", ("error", "base64")) == "base64",
        )
        taken.finish()
        return made

    @property
    def suffix(self) -> str:
        """``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``."""
        return ".jsonl" if self.codec is None else f".jsonl{SUFFIXES[self.codec]}"


class JsonlWriter:
    """Writes one part. ``bad_row``: set by the caller to take rows that cannot be written; without it they raise RowError."""

    def __init__(self, sink: ByteSink, options: JsonlWriteOptions) -> None:
        self.rows = 0
        self.bad_row: BadRow | None = None
        self._options = options
        self._output = open_output(sink, options.codec, options.level)
        self._default = _default_with_base64 if options.base64 else _default
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, block: Block) -> None:
        """Append the rows of the block. Raises RowError for a row that JSON cannot hold, unless ``bad_row`` takes it."""
        rows: Sequence[Row] = block.rows if block.rows is not None else block.table.to_pylist() if block.table is not None else ()
        if self._options.omit_nulls:
            rows = [{name: value for name, value in row.items() if value is not None} for row in rows]
        try:
            if self._options.refuse_nan:
                for row in rows:
                    _refuse_nan(row)
            lines = [orjson.dumps(row, self._default, _FLAGS) for row in rows]
        except (TypeError, ValueError, RecursionError):
            lines = self._singly(block, rows)
        self.rows += len(lines)
        self._held += lines
        self._held_bytes += sum(map(len, lines))
        del lines
        if self._held_bytes >= _FLUSH_BYTES:
            self._flush()

    def _singly(self, block: Block, rows: Sequence[Row]) -> list[bytes]:
        lines = []
        for row, position in zip(rows, block.positions, strict=True):
            try:
                if self._options.refuse_nan:
                    _refuse_nan(row)
                lines.append(encode_row(row, self._default))
            except (TypeError, ValueError, RecursionError) as error:
                refused = RowError(
                    f"cannot be written as JSON: {error.__cause__ or error}",
                    object=block.origin.object,
                    position=position,
                    unit=block.origin.unit,
                )
                if self.bad_row is None:
                    raise refused from error
                self.bad_row(refused, row)
        return lines

    def _flush(self) -> None:
        if self._held_bytes <= 8 * _FLUSH_BYTES:
            self._output.write(b"".join(self._held))
        else:  # a huge line is not copied once more
            while self._held:
                self._output.write(self._held.pop(0))
        self._held = []
        self._held_bytes = 0

    def finish(self) -> None:
        """Write what is held and the compressor's trailer."""
        self._flush()
        self._output.finish()


def encode_row(row: Mapping[str, Any], default: Any) -> bytes:
    """One line. Integers beyond 64 bits, which orjson refuses without asking ``default``, become text."""
    try:
        return orjson.dumps(row, default, _FLAGS)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
        return orjson.dumps(_without_big_integers(row), default, _FLAGS)


def _without_big_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_big_integers(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_big_integers(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _refuse_nan(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f'{value} has no form in JSON; the option nan="null" writes null')
    elif isinstance(value, dict):
        for one in value.values():
            _refuse_nan(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _refuse_nan(one)


def _default(value: Any) -> Any:
    """What orjson does not know; see the module's table."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError('bytes have no form in JSON; the option bytes="base64" writes them so')
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def _default_with_base64(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return _default(value)
