"""Where rows go that failed: a Parquet file per attempt with one fixed schema.

Columns: row (JSON text), error_type, message, traceback, step, object, position, unit, item, epoch.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("row", pa.large_string()),
        ("error_type", pa.string()),
        ("message", pa.large_string()),
        ("traceback", pa.large_string()),
        ("step", pa.string()),
        ("object", pa.string()),
        ("position", pa.int64()),
        ("unit", pa.string()),
        ("item", pa.int64()),
        ("epoch", pa.int64()),
    ]
)

#: Text kept of one row, of a message and of a traceback: a quarantine is for people, the input still has the whole row.
MAX_ROW_CHARACTERS = 1 << 20
MAX_TEXT_CHARACTERS = 16_384
#: Rows held as Python objects before they become an Arrow batch.
FLUSH_ROWS = 512


def row_text(row: bytes | Mapping[str, Any] | None) -> str:
    """The row as JSON text; bytes that are no UTF-8 keep their values as escapes; values that JSON lacks become marked text."""
    if row is None:
        return ""
    if isinstance(row, (bytes, bytearray, memoryview)):
        return bytes(row[:MAX_ROW_CHARACTERS]).decode("utf-8", "backslashreplace").rstrip("\r\n")
    return json.dumps(_plain(row), ensure_ascii=False, default=str)[:MAX_ROW_CHARACTERS]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$base64": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    return value


class QuarantineSpool:
    """Collects the quarantined rows of one attempt as compressed Parquet in memory (a row costs its compressed text)."""

    def __init__(self, item: int, epoch: int) -> None:
        self._item = item
        self._epoch = epoch
        self._rows: list[dict[str, Any]] = []
        self._out: pa.BufferOutputStream | None = None
        self._writer: Any = None
        self.rows = 0

    def add(
        self,
        row: bytes | Mapping[str, Any] | None,
        *,
        error_type: str,
        message: str,
        traceback: str,
        step: str,
        object: str,
        position: int,
        unit: str,
    ) -> None:
        """Put one row away."""
        self.rows += 1
        self._rows.append(
            {
                "row": row_text(row),
                "error_type": error_type,
                "message": message[:MAX_TEXT_CHARACTERS],
                "traceback": traceback[-MAX_TEXT_CHARACTERS:],
                "step": step,
                "object": object,
                "position": position,
                "unit": unit,
                "item": self._item,
                "epoch": self._epoch,
            }
        )
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._out = pa.BufferOutputStream()
            self._writer = pq.ParquetWriter(self._out, SCHEMA, compression="zstd")
        self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMA))
        self._rows.clear()

    def finish(self) -> bytes | None:
        """The Parquet file, or None when nothing was quarantined."""
        if not self.rows:
            return None
        if self._rows:
            self._flush()
        self._writer.close()
        return bytes(self._out.getvalue()) if self._out is not None else None
