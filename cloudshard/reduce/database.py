"""DuckDB for one partition: a private in-memory database within a budget, Arrow in, Arrow out, its errors named.

The database sees the tables that are given to it and nothing else: no files, no network, no extensions, no Python variables. It spills into
a directory of its own under the budget's scratch directory, removed at the end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from cloudshard.errors import CloudshardError, DiskFull, StepError
from cloudshard.reduce.errors import CannotSpill, OutOfMemory
from cloudshard.reduce.pieces import scratch_error

#: Rows of a table that comes out: DuckDB's vectors (2,048) are too small for Arrow, and a table of long texts must stay bounded.
BATCH_ROWS = 16_384

#: DuckDB's operators allocate some MiB before the first row; less is not worth trying.
LEAST_BYTES = 32 << 20

_LOCKED = (
    "SET arrow_large_buffer_size=true",
    "SET python_enable_replacements=false",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET enable_progress_bar=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a reduce may use. ``memory_bytes``: for DuckDB and, apart from it, at most as much again for Arrow tables of the partition."""

    memory_bytes: int
    temp_directory: str
    threads: int = 1


_FED = "__cloudshard_fed_"


class Feed:
    """Tables as a stream for DuckDB. An error of the iterator comes out as itself, not as DuckDB's."""

    def __init__(self, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        self.schema = schema
        self.error: BaseException | None = None
        self._tables = tables

    def reader(self) -> pa.RecordBatchReader:
        """The stream; it can be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._tables:
                yield from table.to_batches()
        except Exception as error:  # DuckDB would replace it by its own: kept, and raised again by the caller
            self.error = error
            raise


def quoted(name: str) -> str:
    """A name as SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def query(
    sql: str,
    tables: Mapping[str, pa.Table | Feed],
    budget: Budget,
    *,
    where: str = "",
    step: str = "",
    batch_rows: int = BATCH_ROWS,
    stored: Collection[str] = (),
) -> Iterator[pa.Table]:
    """The result of ``sql`` over ``tables``, as tables of at most ``batch_rows`` rows; an empty result is one empty table.

    A :class:`Feed` may be named once in the SQL, unless it is ``stored``: copied into the database first, which can spill it.
    Raises OutOfMemory, CannotSpill, DiskFull; StepError for what is wrong with the SQL (``step``: whose it is); what a Feed's iterator
    raises. A database costs about 15 ms, so partitions should not be tiny.
    """
    import duckdb

    feeds = [given for given in tables.values() if isinstance(given, Feed)]
    with database(budget, where=where) as connection:
        try:
            for name, given in tables.items():
                connection.register(_FED + name if name in stored else name, given.reader() if isinstance(given, Feed) else given)
            for name in stored:
                connection.execute(f"CREATE TABLE {quoted(name)} AS FROM {quoted(_FED + name)}")
            reader = connection.sql(sql).to_arrow_reader(batch_rows)
            rows = 0
            for batch in reader:
                rows += batch.num_rows
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
            if not rows:
                yield reader.schema.empty_table()
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            for feed in feeds:
                if feed.error is not None:
                    raise feed.error from None
            raise named(error, budget, where=where, step=step) from error


@contextmanager
def database(budget: Budget, *, where: str = "") -> Iterator[Any]:
    """A connection within the budget. Raises CannotSpill when the scratch directory cannot be used, DiskFull when it has no room."""
    import duckdb

    try:
        Path(budget.temp_directory).mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="reduce-", dir=budget.temp_directory)
    except OSError as error:
        found = scratch_error(error, budget.temp_directory)
        if isinstance(found, DiskFull):
            raise found from error
        raise CannotSpill(found.what, where=found.where, mend=found.mend) from error
    connection = duckdb.connect(":memory:")
    try:
        connection.execute(f"SET threads={max(1, budget.threads)}")
        connection.execute(f"SET memory_limit='{max(budget.memory_bytes, LEAST_BYTES)}B'")
        connection.execute(f"SET temp_directory='{scratch.replace(chr(39), chr(39) * 2)}'")
        for setting in _LOCKED:
            connection.execute(setting)
        yield connection
    finally:
        connection.close()
        shutil.rmtree(scratch, ignore_errors=True)


def named(error: BaseException, budget: Budget, *, where: str, step: str = "") -> CloudshardError:
    """DuckDB's error as one of ours."""
    import duckdb

    text = str(error).strip().split("\n")[0]
    lowered = str(error).lower()
    scratch = budget.temp_directory
    if "no space left" in lowered or "max_temp_directory_size" in lowered or "disk quota" in lowered:
        return DiskFull(f"no room left for spilling: {text}", where=scratch, mend="Give the worker a larger scratch disk.")
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError | pa.ArrowMemoryError):
        what = f"the partition does not fit into {budget.memory_bytes >> 20} MiB with {budget.threads} threads: {text}"
        return OutOfMemory(what, where=where, mend="Use more partitions, fewer threads or more memory per worker.")
    if isinstance(error, duckdb.IOException | OSError):
        writable = os.access(scratch, os.W_OK)
        return CannotSpill(f"cannot spill: {text}", where=scratch, mend="Check the scratch disk." if writable else "It cannot be written.")
    return StepError(text, step=step, where=where, mend="Mend the SQL, or give the column a type that it can take.")
