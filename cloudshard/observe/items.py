"""A stage's work items as a table, and their weights: what the ETA, the SQL view `items` and `explain` count with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudshard.ledger.items import decode_items
from cloudshard.observe.load import OpenRun, read_stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from cloudshard.ledger.records import WorkItem


def item_count(run: OpenRun, stage: int) -> int | None:
    """How many items the stage has; None while it has not begun (the first stage is known from run.json)."""
    if stage == 0:
        return run.record.item_count
    record = read_stage(run.store, stage)
    return None if record is None else record.item_count


def read_item_table(run: OpenRun, stage: int) -> pa.Table | None:
    """The stage's items, one a row; None before the stage begins.

    Columns: ``index``, ``kind``, ``weight`` (estimated bytes), ``inputs`` (number of input ranges), and of the first of these
    ranges ``input`` (URL), ``start``, ``end``, ``unit``.
    """
    record = read_stage(run.store, stage)
    if record is not None and record.items is not None:
        return _from_items(record.items)
    key = record.items_key if record is not None else (run.record.items_key if stage == 0 else None)
    if key is None:
        return None
    body = run.store.get(key)
    if not key.endswith(".parquet"):
        return _from_items(decode_items(body, key))
    return _from_parquet(body)


def _from_parquet(body: bytes) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(body)).combine_chunks()
    inputs = table["inputs"].combine_chunks()
    counts = pc.list_value_length(inputs)
    first = pc.list_element(inputs, 0) if table.num_rows and pc.min(counts).as_py() else None

    def piece(name: str, kind: pa.DataType) -> Any:
        if first is None:
            return pa.array([None if not row else row[0][name] for row in inputs.to_pylist()], kind)
        return pc.struct_field(first, name).cast(kind)

    columns: dict[str, Any] = {
        "index": table["index"],
        "kind": table["kind"].cast(pa.string()),
        "weight": table["weight"],
        "input": piece("url", pa.string()),
        "start": piece("start", pa.int64()),
        "end": piece("end", pa.int64()),
        "unit": piece("unit", pa.string()),
        "inputs": counts.cast(pa.int32()),
    }
    return pa.table(columns)


def _from_items(items: Sequence[WorkItem]) -> pa.Table:
    import pyarrow as pa

    firsts = [item.inputs[0] if item.inputs else None for item in items]
    return pa.table(
        {
            "index": pa.array([item.index for item in items], pa.int64()),
            "kind": pa.array([item.kind for item in items], pa.string()),
            "weight": pa.array([item.weight for item in items], pa.int64()),
            "input": pa.array([first and first.url for first in firsts], pa.string()),
            "start": pa.array([first and first.start for first in firsts], pa.int64()),
            "end": pa.array([first and first.end for first in firsts], pa.int64()),
            "unit": pa.array([first and first.unit for first in firsts], pa.string()),
            "inputs": pa.array([len(item.inputs) for item in items], pa.int32()),
        }
    )


def read_weights(run: OpenRun, stage: int) -> list[int]:
    """Estimated bytes of every item, by index; empty before the stage begins."""
    table = read_item_table(run, stage)
    if table is None:
        return []
    indices: Any = table["index"].to_pylist()
    values: Any = table["weight"].to_pylist()
    pairs: list[tuple[int, int]] = list(zip(indices, values, strict=True))
    weights = [0] * (max((index for index, _ in pairs), default=-1) + 1)
    for index, weight in pairs:
        weights[index] = weight
    return weights
