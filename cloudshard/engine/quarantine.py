"""Where rows go that failed: one Parquet file per attempt, with the same columns in every run.

======================  =============================================================================================================
column                  meaning
======================  =============================================================================================================
``row``                 the row as JSON text, as it was before the step that failed. Bytes are ``{"$base64": "…"}``, a line that could
                        not be parsed is ``{"$line": "…"}`` (or ``{"$base64": "…"}`` when it is no UTF-8), NaN is null, what JSON has no
                        form for is its ``repr`` as ``{"$repr": "…"}``
``error_type``          name of the exception's class
``message``             its text
``traceback``           where it was raised, user code's frames only (empty when no code was running)
``step``                the step's name; ``read`` and ``write`` for rows that could not be read or written
``object``              URL of the input object
``position``, ``unit``  the row's place in it: byte offset of its line, or its index
``item``, ``epoch``     work item and epoch of the attempt
======================  =============================================================================================================

A row that a step changes in place is kept as it was: the engine hands the step a shallow copy when its policy is "quarantine" or "null".
Changes inside nested lists and dicts are seen.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from cloudshard.engine.block import Origin
from cloudshard.errors import CloudshardError

SCHEMA = pa.schema(
    [
        pa.field("row", pa.large_string()),
        pa.field("error_type", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("traceback", pa.string(), nullable=False),
        pa.field("step", pa.string(), nullable=False),
        pa.field("object", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("item", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
    ]
)

#: Rows that are held before they are written down, in rows and bytes: a corpus where every row fails must not fill the memory.
_HELD_ROWS = 1000
_HELD_BYTES = 1 << 20
#: A file below this stays in memory.
_SPOOL_BYTES = 4 << 20
_MAX_TEXT = 20_000
#: Text of a row beyond this is cut: a quarantine is for looking at, the row itself stands in the input.
_MAX_ROW_TEXT = 16 << 20


class Quarantine:
    """The quarantined rows of one attempt; costs nothing while there are none."""

    def __init__(self, item: int, epoch: int) -> None:
        self.rows = 0
        self._item = item
        self._epoch = epoch
        self._held: list[dict[str, Any]] = []
        self._held_bytes = 0
        self._file: Any = None
        self._writer: Any = None

    def add(self, row: Any, origin: Origin, position: int, error: BaseException | str, step: str) -> None:
        """Take in one row. ``row``: a dict, or the bytes that could not be parsed; ``error``: the exception, or a reason in words."""
        failed = isinstance(error, BaseException)
        record = {
            "row": row_text(row),
            "error_type": type(error).__name__ if failed else "PoisonRow",
            "message": _clean(error.what if isinstance(error, CloudshardError) else str(error))[:_MAX_TEXT],
            "traceback": _traceback_of(error),
            "step": step,
            "object": _clean(origin.object),
            "position": position,
            "unit": origin.unit,
            "item": self._item,
            "epoch": self._epoch,
        }
        self.rows += 1
        self._held.append(record)
        self._held_bytes += sum(len(value) for value in record.values() if isinstance(value, str))
        if len(self._held) >= _HELD_ROWS or self._held_bytes >= _HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, dir=os.environ.get("CLOUDSHARD_SCRATCH") or None)  # noqa: SIM115
            self._writer = pq.ParquetWriter(self._file, SCHEMA, compression="zstd", compression_level=1)
        if self._held:
            self._writer.write_table(pa.Table.from_pylist(self._held, schema=SCHEMA))
            self._held, self._held_bytes = [], 0

    def finish(self) -> tuple[BinaryIO, int] | None:
        """(file at its start, size), or None when there are no rows."""
        if not self.rows:
            return None
        self._flush()
        self._writer.close()
        self._writer = None
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        return self._file, size

    def close(self) -> None:
        """Forget the file."""
        self._held = []
        writer, file = self._writer, self._file
        self._writer = self._file = None
        if writer is not None:
            writer.close()
        if file is not None:
            file.close()


def _traceback_of(error: BaseException | str) -> str:
    """User code's frames; nothing when no user code was running."""
    from cloudshard.engine.policy import user_traceback

    if not isinstance(error, BaseException) or isinstance(error, CloudshardError):
        return ""
    return _clean(user_traceback(error))[-_MAX_TEXT:]


def row_text(row: Any) -> str:
    """A row, or bytes that were to become one, as JSON text; see the module's table."""
    if isinstance(row, (bytes, bytearray, memoryview)):
        body = bytes(row)
        try:
            row = {"$line": body.decode("utf-8")}
        except UnicodeDecodeError:
            row = {"$base64": base64.b64encode(body).decode("ascii")}
    try:
        text = orjson.dumps(row, _default, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode("utf-8")
    except (TypeError, ValueError, RecursionError):
        text = orjson.dumps(_safe(row, 0), orjson_repr).decode("utf-8")
    if len(text) > _MAX_ROW_TEXT:
        text = orjson.dumps({"$cut": text[:_MAX_ROW_TEXT], "$length": len(text)}).decode("utf-8")
    return text


def _default(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$base64": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return orjson_repr(value)


def orjson_repr(value: Any) -> Any:
    """The last resort: what Python shows."""
    return {"$repr": _clean(repr(value))}


def _safe(value: Any, depth: int) -> Any:
    """The slow way round: big integers, lone surrogates and bottomless nesting become text."""
    if depth > 100:
        return orjson_repr(type(value))
    if isinstance(value, Mapping):
        return {_clean(str(key)): _safe(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_safe(one, depth + 1) for one in value]
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else {"$repr": str(value)}
    return _default(value)


def _clean(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
