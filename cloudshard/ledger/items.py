"""A stage's list of work items: inline in the record when few, a Parquet object when many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import msgspec

from cloudshard.ledger.records import InputRange, WorkItem

if TYPE_CHECKING:
    import pyarrow as pa

#: Up to here the list is JSON inside stage.json (about 250 bytes an item): one read of less than 1 MB.
INLINE_ITEMS = 2000


def encode_items(items: Sequence[WorkItem]) -> tuple[bytes, str]:
    """The items as one object: (bytes, suffix)."""
    if len(items) <= INLINE_ITEMS:
        return msgspec.json.encode(list(items)), ".json"
    return _to_parquet(items), ".parquet"


def decode_items(body: bytes, key: str) -> Sequence[WorkItem]:
    """What :func:`encode_items` made; a Parquet list stays columnar and makes its items when asked for them."""
    if key.endswith(".json"):
        return tuple(msgspec.json.decode(body, type=list[WorkItem]))
    return ItemTable(body)


def _to_parquet(items: Sequence[WorkItem]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    piece = pa.struct(
        [
            ("url", pa.string()),
            ("size", pa.int64()),
            ("etag", pa.string()),
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("unit", pa.string()),
            ("checksum", pa.string()),
        ]
    )
    table = pa.table(
        {
            "index": pa.array([item.index for item in items], pa.int64()),
            "kind": pa.array([item.kind for item in items]).dictionary_encode(),
            "inputs": pa.array([[msgspec.to_builtins(piece) for piece in item.inputs] for item in items], pa.list_(piece)),
            "weight": pa.array([item.weight for item in items], pa.int64()),
        }
    )
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="zstd")
    return bytes(out.getvalue())


class ItemTable(Sequence[WorkItem]):
    """Work items in an Arrow table: a million of them cost about a hundred megabytes, not several gigabytes."""

    def __init__(self, body: bytes) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._table: pa.Table = pq.read_table(pa.BufferReader(body)).combine_chunks()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, at: int) -> WorkItem: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[WorkItem]: ...
    def __getitem__(self, at: int | slice) -> WorkItem | Sequence[WorkItem]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        row = self._table.slice(at % len(self), 1).to_pylist()[0]
        return WorkItem(row["index"], row["kind"], tuple(InputRange(**piece) for piece in row["inputs"]), row["weight"])
