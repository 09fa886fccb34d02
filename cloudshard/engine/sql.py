"""SQL steps: one DuckDB connection per process, that sees the batch and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from cloudshard.engine.tables import TableFunction
from cloudshard.errors import StepError

#: How :func:`cloudshard.plan.steps.filter_step` writes a condition: such a step keeps each row's place.
FILTER_HEAD = "SELECT * FROM batch WHERE ("

#: No files, no network, no extensions to download, no Python variables: SQL in a recipe is a function of the batch. Locked last.
_SETTINGS = (
    "SET threads=1",
    "SET arrow_large_buffer_size=true",
    "SET python_enable_replacements=false",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


@cache
def connection(_process: int) -> Any:
    """This process's connection (a fork must not use its parent's)."""
    import duckdb

    made = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        made.execute(setting)
    return made


def sql_function(query: str, step: str) -> TableFunction:
    """The query as a function from table to table. DuckDB's errors become StepErrors with its message."""

    def run(table: pa.Table) -> pa.Table:
        import os

        import duckdb

        database = connection(os.getpid())
        database.register("batch", table)
        try:
            return database.sql(query).to_arrow_table()
        except duckdb.Error as error:
            raise StepError(f"step {step}: {error}", step=step, mend="Mend the SQL, or give the column a type.") from error
        finally:
            database.unregister("batch")

    return run


def is_filter(query: str) -> bool:
    """Whether the step is a condition over the rows."""
    return query.startswith(FILTER_HEAD)


def mask_query(query: str) -> str:
    """The condition as one boolean column."""
    return f"SELECT ({query[len(FILTER_HEAD) :]} AS keep FROM batch"  # noqa: S608 - the user's own SQL, rearranged
