"""SQL over the ledger: one read-only statement, in a DuckDB that can reach neither files nor the network."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudshard.errors import RecipeError
from cloudshard.observe.load import OpenStore
from cloudshard.observe.tables import COLUMNS, build
from cloudshard.observe.views import ledger_tables

if TYPE_CHECKING:
    import pyarrow as pa

_READING = ("SELECT", "EXPLAIN")


def query_ledger(sql: str, urls: Sequence[str], *, open_store: OpenStore) -> pa.Table:
    """The answer of ``sql`` over the views of the runs at ``urls``; fetches only the views that the statement names.

    Raises RecipeError for anything but one reading statement, for a statement that DuckDB refuses, and for URLs without runs.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        connection.execute("SET enable_external_access=false")
        connection.execute("SET TimeZone='UTC'")
        connection.execute("SET lock_configuration=true")
        try:
            statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise RecipeError(f"the SQL cannot be read: {_first_line(error)}", mend="One DuckDB SELECT is expected.") from error
        if len(statements) != 1 or statements[0].type.name not in _READING:
            raise RecipeError("only one reading statement is allowed", mend="Write one SELECT (or DESCRIBE, SUMMARIZE, EXPLAIN).")
        named = views_named(sql)
        for name in COLUMNS.keys() - named:
            connection.register(name, build(name, ()))  # so that SHOW TABLES tells them, at no request
        for name, table in ledger_tables(urls, open_store=open_store, only=sorted(named)).items():
            connection.register(name, table)
        try:
            answer = whole_numbers(connection.sql(sql).to_arrow_table())
        except duckdb.Error as error:
            mend = f"Views: {', '.join(COLUMNS)}; their columns: docs/ledger-sql.md or DESCRIBE <view>."
            raise RecipeError(f"the SQL failed: {_message(error)}", mend=mend) from error
        return answer
    finally:
        connection.close()


def whole_numbers(answer: pa.Table) -> pa.Table:
    """DuckDB's sums of integers are 128 bits wide, which Arrow takes for decimals: as int64 where they fit."""
    import pyarrow as pa

    for at, column in enumerate(answer.schema):
        if pa.types.is_decimal(column.type) and column.type.scale == 0:
            with contextlib.suppress(pa.ArrowInvalid):  # too large: stays a decimal
                answer = answer.set_column(at, column.name, answer.column(at).cast(pa.int64()))
    return answer


def views_named(sql: str) -> set[str]:
    """The views whose name occurs in the statement as a word: never fewer than it reads."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    return {name for name in COLUMNS if name in words}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _message(error: Exception) -> str:
    """DuckDB's message without its drawing of the statement."""
    return " ".join(line.strip() for line in str(error).split("\n\nLINE ")[0].splitlines() if line.strip())
