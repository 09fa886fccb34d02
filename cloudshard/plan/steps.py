"""Building logical steps: the one place that checks their arguments, for the Python API and for recipes alike.

``select``, ``drop``, ``rename``, ``with_columns`` and a ``filter`` given as text are thin SQL over the batch, so that they fuse with
other SQL.
"""

# ruff: noqa: S608 - building SQL is this module's job: names are quoted, and the rest is the user's own SQL, run in their own process

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from cloudshard.errors import RecipeError
from cloudshard.plan.logical import Step
from cloudshard.plan.values import OnError

Function = Callable[..., Any] | type | str

#: What ``map_batches`` may hand to the function.
BATCH_FORMS = ("arrow", "pandas", "polars", "rows")

#: Rows per call of ``map_batches`` when nothing is wished: enough to amortise a conversion, small enough to stay in the cache.
DEFAULT_BATCH_ROWS = 1024
#: Bytes per call at most.
DEFAULT_BATCH_BYTES = 64 << 20
#: Calls in flight of ``map_async``.
DEFAULT_CONCURRENCY = 64


def map_step(
    function: Function,
    *,
    into: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    on_error: OnError = "raise",
    label: str | None = None,
    long_call_seconds: float | None = None,
) -> Step:
    """``function(row)`` → row or None (which removes it); with ``into`` the result is put in that column of the row."""
    params = {} if into is None else {"into": _name(into, "into")}
    if on_error == "null" and into is None:
        raise RecipeError('on_error="null" needs into=: without a column there is nothing to set to null', where="map")
    return _function_step("map", function, arguments, params, on_error, label, long_call_seconds)


def flat_map_step(
    function: Function,
    *,
    arguments: Mapping[str, Any] | None = None,
    on_error: OnError = "raise",
    label: str | None = None,
    long_call_seconds: float | None = None,
) -> Step:
    """``function(row)`` → any number of rows."""
    _no_null(on_error, "flat_map")
    return _function_step("flat_map", function, arguments, {}, on_error, label, long_call_seconds)


def filter_step(
    condition: Function,
    *,
    arguments: Mapping[str, Any] | None = None,
    on_error: OnError = "raise",
    label: str | None = None,
    long_call_seconds: float | None = None,
) -> Step:
    """Keeps the rows for which ``condition`` is true: a function of the row, ``"module:function"``, or an SQL condition."""
    _no_null(on_error, "filter")
    if isinstance(condition, str) and not looks_like_function(condition):
        return sql_step(f"SELECT * FROM batch WHERE (\n{condition}\n)", on_error=on_error, label=label or "filter")
    return _function_step("filter", condition, arguments, {}, on_error, label, long_call_seconds)


def map_batches_step(
    function: Function,
    *,
    as_: str = "arrow",
    batch_rows: int | None = None,
    batch_bytes: int | None = None,
    span_shards: bool = False,
    arguments: Mapping[str, Any] | None = None,
    on_error: OnError = "raise",
    label: str | None = None,
    long_call_seconds: float | None = None,
) -> Step:
    """``function(batch)`` → batch; the batch is an Arrow table, a pandas or polars frame or a list of rows.

    A batch has ``batch_rows`` rows (the last one fewer), or as many as fit ``batch_bytes``. ``span_shards``: batches may mix rows of
    several work items, to fill a model; each still commits alone.
    """
    _no_null(on_error, "map_batches")
    if as_ not in BATCH_FORMS:
        raise RecipeError(f"map_batches cannot hand out {as_!r}", mend=f"Choose one of {', '.join(BATCH_FORMS)}")
    rows = batch_rows if batch_rows is not None else (None if batch_bytes is not None else DEFAULT_BATCH_ROWS)
    params = {
        "as": as_,
        "batch_rows": None if rows is None else _at_least_one(rows, "batch_rows"),
        "batch_bytes": _at_least_one(batch_bytes or DEFAULT_BATCH_BYTES, "batch_bytes"),
        "span_shards": bool(span_shards),
    }
    return _function_step("map_batches", function, arguments, params, on_error, label, long_call_seconds)


def map_async_step(
    function: Function,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    ordered: bool = False,
    into: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    on_error: OnError = "raise",
    label: str | None = None,
    long_call_seconds: float | None = None,
) -> Step:
    """``await function(row)`` with up to ``concurrency`` calls in flight per process. Results as for ``map``."""
    params: dict[str, Any] = {"concurrency": _at_least_one(concurrency, "concurrency"), "ordered": bool(ordered)}
    if into is not None:
        params["into"] = _name(into, "into")
    elif on_error == "null":
        raise RecipeError('on_error="null" needs into=: without a column there is nothing to set to null', where="map_async")
    return _function_step("map_async", function, arguments, params, on_error, label, long_call_seconds)


def sql_step(query: str, *, on_error: OnError = "raise", label: str | None = None) -> Step:
    """One DuckDB SELECT over the table ``batch`` (some rows of one shard: aggregates are per batch, not global)."""
    _no_null(on_error, "sql")
    check_sql(query)
    return Step(kind="sql", params={"query": query.strip().rstrip(";").strip()}, on_error=_on_error(on_error), label=label)


def select_step(columns: Sequence[str]) -> Step:
    """Only these columns, in this order."""
    return sql_step(f"SELECT {', '.join(map(quote, _names(columns, 'select')))} FROM batch", label="select")


def drop_step(columns: Sequence[str]) -> Step:
    """All but these columns; a column that is not there is an error."""
    return sql_step(f"SELECT * EXCLUDE ({', '.join(map(quote, _names(columns, 'drop')))}) FROM batch", label="drop")


def rename_step(names: Mapping[str, str]) -> Step:
    """Old name → new name."""
    _names(list(names), "rename")
    pairs = ", ".join(f"{quote(old)} AS {quote(_name(new, 'rename'))}" for old, new in names.items())
    return sql_step(f"SELECT * RENAME ({pairs}) FROM batch", label="rename")


def with_columns_step(expressions: Mapping[str, str]) -> Step:
    """Adds or replaces columns: name → SQL expression over the batch's columns. New columns stand last."""
    names = _names(list(expressions), "with_columns")
    given = ", ".join(f"({expression}) AS {quote(name)}" for name, expression in expressions.items())
    replaced = ", ".join(literal(name.lower()) for name in names)
    # The marker column keeps COLUMNS() from being empty when all columns are replaced.
    query = (
        f'SELECT * EXCLUDE ("__marker") FROM (SELECT COLUMNS(LAMBDA c: lower(c) NOT IN ({replaced})), {given} '
        f'FROM (SELECT *, true AS "__marker" FROM batch))'
    )
    return sql_step(query, label="with_columns")


def sample_step(fraction: float, *, seed: int = 0) -> Step:
    """Keeps about ``fraction`` of the rows, chosen by row identity: the same rows whatever the number of workers."""
    if not 0 <= fraction <= 1:
        raise RecipeError(f"sample: the fraction must lie between 0 and 1, not {fraction}")
    return Step(kind="sample", params={"fraction": float(fraction), "seed": int(seed)})


def limit_step(rows: int) -> Step:
    """The first ``rows`` rows in input order."""
    if rows < 0:
        raise RecipeError(f"limit: the number of rows must not be negative, not {rows}")
    return Step(kind="limit", params={"rows": int(rows)})


def row_number_step(into: str) -> Step:
    """Adds the row's position in its object (byte offset of its line, or row index) as column ``into``."""
    return Step(kind="row_number", params={"into": _name(into, "row_number")})


def looks_like_function(text: str) -> bool:
    """Whether ``text`` has the form ``module.name:qualified.name`` (an SQL condition never has)."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def check_sql(query: str) -> None:
    """Raises RecipeError unless ``query`` is one SELECT in DuckDB's grammar. Columns and types are not looked at."""
    import duckdb

    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise RecipeError(f"SQL cannot be parsed: {' '.join(str(error).split())}", where=_excerpt(query)) from None
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise RecipeError(
            f"a sql step must be one SELECT, this is {len(statements) or 'no'} statement(s) of another kind", where=_excerpt(query)
        )


def quote(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | float | bool | None) -> str:
    """A value in SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    return "'" + value.replace("'", "''") + "'"


def _function_step(
    kind: Any,
    function: Function,
    arguments: Mapping[str, Any] | None,
    params: dict[str, Any],
    on_error: OnError,
    label: str | None,
    long_call_seconds: float | None,
) -> Step:
    if isinstance(function, str) and not looks_like_function(function):
        raise RecipeError(f"{function!r} names no function", where=str(kind), mend='Write "module:function"')
    if not isinstance(function, str) and not callable(function):
        raise RecipeError(f"{kind} needs a function, a class or 'module:function', not {type(function).__name__}")
    if long_call_seconds is not None and long_call_seconds <= 0:
        raise RecipeError(f"long_call_seconds must be positive, not {long_call_seconds}", where=str(kind))
    return Step(
        kind=kind,
        function=function,
        arguments=dict(arguments or {}),
        params=params,
        on_error=_on_error(on_error),
        long_call_seconds=long_call_seconds,
        label=label,
    )


def _on_error(on_error: OnError) -> OnError:
    if on_error not in get_args(OnError):
        raise RecipeError(f"on_error={on_error!r} is unknown", mend=f"Choose one of {', '.join(get_args(OnError))}")
    return on_error


def _no_null(on_error: OnError, kind: str) -> None:
    if on_error == "null":
        raise RecipeError(f'on_error="null" is for map and map_async with into=, not for {kind}', mend='Use "drop" or "quarantine"')


def _name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not name:
        raise RecipeError(f"{where} needs a column name, not {name!r}")
    return name


def _names(names: Sequence[str], where: str) -> Sequence[str]:
    if not names:
        raise RecipeError(f"{where} needs at least one column")
    for name in names:
        _name(name, where)
    if len({name.lower() for name in names}) < len(names):
        raise RecipeError(f"{where} names a column twice: {', '.join(names)}")
    return names


def _at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise RecipeError(f"{name} must be at least 1, not {value}")
    return int(value)


def _excerpt(query: str) -> str:
    text = " ".join(query.split())
    return text if len(text) <= 80 else text[:77] + "..."
