"""Mappers, runs on a memory store, partitions and reducers in one process: what the ledger and the workers do around the room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from cloudshard.reduce.database import Budget
from cloudshard.reduce.gather import Run, inputs, sorted_pieces
from cloudshard.reduce.ordering import SortKey
from cloudshard.reduce.partition import Partitioner
from cloudshard.reduce.plan import Decision, Partition, range_partitions
from cloudshard.reduce.read import read_slices
from cloudshard.reduce.runs import RunWriter, SortedRunWriter
from cloudshard.reduce.sorting import sort_pieces
from cloudshard.store.memory import MemoryStore


class Sink:
    """A byte sink that keeps what is written."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes | memoryview) -> int:
        self.parts.append(bytes(data))
        return len(data)

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


class CountingStore(MemoryStore):
    """Counts ranged reads."""

    gets = 0

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        self.gets += 1
        return super().get(key, start=start, end=end, if_etag=if_etag)


class Exchange:
    """A store with runs, and a budget for reducers."""

    def __init__(self, scratch: str, *, memory_bytes: int = 64 << 20, writer_bytes: int = 1 << 20) -> None:
        self.store = CountingStore("runs")
        self.budget = Budget(memory_bytes=memory_bytes, temp_directory=scratch)
        self.scratch = scratch
        self.writer_bytes = writer_bytes

    def open(self, url: str) -> tuple[MemoryStore, str]:
        return self.store, url.removeprefix("memory://runs/")

    def _committed(self, name: str, sink: Sink, index: Any) -> Run:
        self.store.put(name, sink.body)
        assert index.size == len(sink.body)
        return Run(f"memory://runs/{name}", "", index)

    def map(self, shards: Sequence[pa.Table], partitioner: Callable[[int], Partitioner], name: str = "a") -> list[Run]:
        """One run by bucket per shard."""
        runs = []
        for item, shard in enumerate(shards):
            sink = Sink()
            with RunWriter(sink, shard.schema, partitioner(item), memory_bytes=self.writer_bytes, spill_dir=self.scratch) as writer:
                for begin in range(0, shard.num_rows, 7):
                    writer.write(shard.slice(begin, 7))
                runs.append(self._committed(f"{name}{item}", sink, writer.finish()))
        return runs

    def map_sorted(self, shards: Sequence[pa.Table], keys: Sequence[SortKey], slice_bytes: int = 256) -> list[Run]:
        """One run by key per shard."""
        runs = []
        for item, shard in enumerate(shards):
            sink = Sink()
            with SortedRunWriter(
                sink, shard.schema, keys, memory_bytes=self.writer_bytes, spill_dir=self.scratch, slice_bytes=slice_bytes
            ) as writer:
                for begin in range(0, shard.num_rows, 7):
                    writer.write(shard.slice(begin, 7))
                runs.append(self._committed(f"s{item}", sink, writer.finish()))
        return runs

    def rows(self, runs: Sequence[Run], partition: Partition, side: int = 0) -> Iterator[pa.Table]:
        """The rows that a partition reads of one side."""
        return read_slices(self.open, [source.wanted for source in inputs(runs, partition, side=side)])

    def sort(self, runs: Sequence[Run], schema: pa.Schema, keys: Sequence[SortKey], decision: Decision) -> Iterator[pa.Table]:
        """All parts of a global sort, one after another."""
        for partition in decision.partitions:
            pieces = sorted_pieces(self.open, inputs(runs, partition, by_key=True), keys, partition)
            yield from sort_pieces(pieces, schema, keys, self.budget)


def each_bucket(runs: Sequence[Run]) -> list[Partition]:
    """One partition per bucket that has rows."""
    return [Partition(first=bucket, end=bucket + 1) for bucket in sorted({one.bucket for run in runs for one in run.index.slices})]


def ranges(runs: Sequence[Run], count: int) -> Decision:
    """A sort's partitions, about ``count`` of them."""
    total = sum(one.nbytes for run in runs for one in run.index.slices)
    return range_partitions([run.index for run in runs], target_bytes=max(1, total // count))


@cache
def _database() -> Any:
    made = duckdb.connect(":memory:")
    made.execute("SET threads=1")
    return made


def sql(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of one DuckDB query over the whole input."""
    connection = _database()
    for name, table in tables.items():
        connection.register(name, table)
    return [tuple(map(canonical, row)) for row in connection.execute(query).fetchall()]


def rows_of(tables: Iterator[pa.Table] | Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    """Rows of tables as DuckDB would give them (its conversion to Python, so that both sides are alike)."""
    found: list[tuple[Any, ...]] = []
    connection = _database()
    for table in tables:
        if table.num_rows:
            connection.register("t", table)
            found += [tuple(map(canonical, row)) for row in connection.execute("SELECT * FROM t").fetchall()]
    return found


def canonical(value: Any) -> Any:
    """NaN equal to itself, zeros alike, containers hashable."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return round(value, 9) + 0.0 if math.isfinite(value) else value
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    if isinstance(value, list):
        return tuple(map(canonical, value))
    if isinstance(value, dict):
        return tuple((name, canonical(one)) for name, one in value.items())
    return value


def multiset(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows in a comparable order."""
    return sorted(map(repr, rows))
