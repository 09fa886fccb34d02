"""SQL steps: one DuckDB connection per process, that sees the batch and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa

#: How :func:`cloudshard.plan.steps.filter_step` writes a condition.
_FILTER = re.compile(r"SELECT \* FROM batch WHERE \(\n(?P<condition>.*)\n\)\Z", re.DOTALL)

#: No files, no network, no extensions to download, no Python variables: SQL in a recipe is a function of the batch. Locked last.
#: A setting that a version does not know is one that it does not need.
_SETTINGS = (
    "SET threads=1",
    "SET TimeZone='UTC'",
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


def sql_function(query: str) -> Callable[[pa.Table], pa.Table]:
    """The query as a function from table to table. Raises DuckDB's own errors."""

    def run(table: pa.Table) -> pa.Table:
        database = connection(os.getpid())
        database.register("batch", table)
        try:
            return database.sql(query).to_arrow_table()
        finally:
            database.unregister("batch")

    return run


def hopeless_errors() -> tuple[type[BaseException], ...]:
    """DuckDB's errors about the query itself: no row's fault."""
    import duckdb

    return (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.PermissionException, duckdb.NotSupportedError)


def mask_query(query: str) -> str | None:
    """For a step that is only a condition over single rows: the condition as a column, which leaves the rows as they are. Else None.

    A query that merely looks like one (it goes on behind the condition, say) is refused by the parser in its new form.
    """
    found = _FILTER.match(query)
    if found is None:
        return None
    import duckdb

    made = f"SELECT (\n{found['condition']}\n) AS keep FROM batch"  # noqa: S608 - the user's own SQL, rearranged
    try:
        statements = duckdb.extract_statements(made)
    except duckdb.Error:
        return None
    return made if len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT else None
