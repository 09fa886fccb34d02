"""The columns and types of the ledger's SQL views: the same whatever the run holds, also when a table is empty.

Times are seconds since the epoch: ``*_at`` by the store's clock (Last-Modified), ``started``/``finished`` as the worker wrote
them. ``run`` is the run's URL in every table. docs/ledger-sql.md explains each column; a test keeps both alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_COUNTS = dict.fromkeys(("rows_in", "rows_out", "added", "filtered", "dropped", "quarantined", "nulled"), "int64")

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "run": "string",
        "run_id": "string",
        "pipeline": "string",
        "fingerprint": "string",
        "created_by": "string",
        "created_at": "double",
        "finished_at": "double",
        "complete": "bool",
        "stages": "int32",
        "items": "int64",
        "output": "string",
        "format": "string",
        "lease_seconds": "double",
        "max_retries": "int32",
        "parameters": "string",
        "packages": "string",
    },
    "stages": {
        "run": "string",
        "stage": "int32",
        "steps": "list<string>",
        "source": "string",
        "sink": "string",
        "boundary": "string",
        "items": "int64",
        "sealed": "bool",
        "sealed_at": "double",
        "sealed_by": "string",
        **_COUNTS,
        "parts": "int64",
        "bytes": "int64",
    },
    "items": {
        "run": "string",
        "stage": "int32",
        "item": "int64",
        "kind": "string",
        "state": "string",
        "epoch": "int32",
        "failures": "int32",
        "weight": "int64",
        "input": "string",
        "start": "int64",
        "end": "int64",
        "unit": "string",
        "inputs": "int32",
    },
    "claims": {
        "run": "string",
        "stage": "int32",
        "item": "int64",
        "epoch": "int32",
        "worker": "string",
        "host": "string",
        "pid": "int64",
        "nonce": "string",
        "started": "double",
        "renewed_at": "double",
    },
    "attempts": {
        "run": "string",
        "stage": "int32",
        "item": "int64",
        "epoch": "int32",
        "outcome": "string",
        "worker": "string",
        "host": "string",
        "pid": "int64",
        "nonce": "string",
        "started": "double",
        "ended": "double",
        "seconds": "double",
        "rows_in": "int64",
        "rows_out": "int64",
        "error_type": "string",
        "message": "string",
    },
    "commits": {
        "run": "string",
        "stage": "int32",
        "item": "int64",
        "epoch": "int32",
        "nonce": "string",
        "worker": "string",
        "host": "string",
        "started": "double",
        "finished": "double",
        "seconds": "double",
        **_COUNTS,
        "parts": "int32",
        "bytes": "int64",
        "quarantine_key": "string",
        "cpu_seconds": "double",
        "bytes_read": "int64",
        "peak_memory_bytes": "int64",
        "input_tokens": "int64",
        "output_tokens": "int64",
        "gpu_util_mean": "double",
    },
    "failures": {
        "run": "string",
        "stage": "int32",
        "item": "int64",
        "epoch": "int32",
        "kind": "string",
        "error_type": "string",
        "message": "string",
        "step": "string",
        "place": "string",
        "traceback": "string",
        "worker": "string",
        "host": "string",
        "started": "double",
        "finished": "double",
        "revived": "bool",
        "dead": "bool",
    },
    "workers": {
        "run": "string",
        "worker": "string",
        "host": "string",
        "pid": "int64",
        "processes": "int32",
        "state": "string",
        "exit_code": "int32",
        "started": "double",
        "seen_at": "double",
        "items_committed": "int64",
        "items_failed": "int64",
        "lost_races": "int64",
        "packages": "string",
    },
    "outputs": {
        "run": "string",
        "stage": "int32",
        "item": "int64",
        "part": "int32",
        "key": "string",
        "url": "string",
        "rows": "int64",
        "bytes": "int64",
        "checksum": "string",
        "final": "bool",
    },
    "requests": {
        "run": "string",
        "worker": "string",
        "verb": "string",
        "requests": "int64",
    },
}


def schema(table: str) -> pa.Schema:
    """Arrow schema of one view."""
    import pyarrow as pa

    types: dict[str, Any] = {
        "string": pa.string(),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "list<string>": pa.list_(pa.string()),
    }
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS[table].items()])


def build(table: str, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Rows (values in column order) as the view's Arrow table."""
    import pyarrow as pa

    wanted = schema(table)
    columns = list(zip(*rows, strict=True)) or [()] * len(wanted)
    return pa.Table.from_arrays([pa.array(values, kind) for values, kind in zip(columns, wanted.types, strict=True)], schema=wanted)
