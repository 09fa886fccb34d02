"""Group-by: an SQL aggregate per output column, in two halves where that is possible, so that mappers send groups instead of rows.

An expression can be halved when all its aggregates are of a kind whose partial results can be combined (``_COMBINE``; avg is a sum and a
count). Expressions around aggregates, FILTER clauses and uses of the keys are fine; DISTINCT, ORDER BY, subqueries and windows are not.
One expression that cannot be halved makes the whole group-by move rows. With halves, a hot key is one row per attempt.

DuckDB parses and binds the expressions; its parse tree is rewritten, never the text. A result of type HUGEINT (the sum of integers) is a
BIGINT, because no file format has 128-bit integers; where it overflows, the error says so: sum(x::DOUBLE) or sum(x::DECIMAL(38, 0)) do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from cloudshard.errors import RecipeError, SchemaError
from cloudshard.reduce.database import Budget, Feed, query, quoted

#: Aggregate -> what combines its partial results.
_COMBINE = {
    "count_star": "sum",
    "count": "sum",
    "count_if": "sum",
    "countif": "sum",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "bool_and": "bool_and",
    "bool_or": "bool_or",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
    "product": "product",
    "any_value": "any_value",
    "arbitrary": "any_value",
}
_AVERAGE = ("avg", "mean")
_ROWS = "rows"


class AggregatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A group-by as SQL over one relation ``rows``.

    ``full``: rows to results. When ``partial`` is not None: rows to partial results (what mappers send), ``merge``: partial results to
    partial results (several levels, divided partitions), ``final``: partial results to results. ``whole_because``: why there is no partial.
    """

    keys: tuple[str, ...]
    full: str
    partial: str | None = None
    merge: str | None = None
    final: str | None = None
    whole_because: str = ""


def plan_aggregates(keys: Sequence[str], aggregates: Mapping[str, str], schema: pa.Schema) -> AggregatePlan:
    """How to compute ``aggregates`` (output column -> SQL expression) per group of ``keys`` (columns of ``schema``).

    Raises SchemaError for a key that is not there, RecipeError for an expression that does not parse or bind.
    """
    for key in keys:
        if schema.get_field_index(key) < 0:
            what = f"the group-by column {key!r} is not in the rows (columns: {', '.join(schema.names)})"
            raise SchemaError(what, mend="Name a column of the rows that reach the group-by.")
    if not keys:
        raise RecipeError("a group-by needs at least one key column", mend="Name it.")
    twice = [name for name in aggregates if name in keys]
    if twice:
        raise RecipeError(f"the aggregate {twice[0]!r} has the name of a key", mend="Give it another name.")
    return _Planner(keys, aggregates, schema).plan()


class _Planner:
    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, str], schema: pa.Schema) -> None:
        import duckdb

        self._database = duckdb.connect(":memory:")
        self._database.execute("SET python_enable_replacements=false")
        self._database.register(_ROWS, schema.empty_table())
        self._keys = keys
        self._by = ", ".join(quoted(key) for key in keys)
        self._aggregates = aggregates
        self._partials: dict[str, tuple[str, str]] = {}  # partial expression -> (its column, what combines it)
        self._merged: dict[str, str] = {}  # column of a whole aggregate -> expression over combined partials

    def plan(self) -> AggregatePlan:
        trees = {name: self._parsed(name, text) for name, text in self._aggregates.items()}
        texts = {name: self._text(tree) for name, tree in trees.items()}
        types = self._types(self._grouped([f"{text} AS {quoted(name)}" for name, text in texts.items()]))
        types = {name: "BIGINT" if kind == "HUGEINT" else kind for name, kind in types.items()}
        full = self._grouped([f"CAST({text} AS {types[name]}) AS {quoted(name)}" for name, text in texts.items()])
        known = {row[0] for row in self._all("SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'")}
        outer = []
        for name, tree in trees.items():
            try:
                rewritten = self._rewritten(tree, known)
            except _Whole as reason:
                return AggregatePlan(keys=tuple(self._keys), full=full, whole_because=f"{name}: {reason}")
            outer.append(f"CAST({self._text(rewritten)} AS {types[name]}) AS {quoted(name)}")
        partial = [f"{text} AS {quoted(column)}" for text, (column, _) in self._partials.items()]
        kinds = self._types(self._grouped(partial))
        merge = [f"CAST({how}({quoted(column)}) AS {kinds[column]}) AS {quoted(column)}" for column, how in self._partials.values()]
        inner = self._grouped([f"{text} AS {quoted(column)}" for column, text in self._merged.items()])
        return AggregatePlan(
            keys=tuple(self._keys),
            full=full,
            partial=self._grouped(partial),
            merge=self._grouped(merge),
            final=f"SELECT {', '.join([self._by, *outer])} FROM ({inner})",  # noqa: S608 - names are quoted, expressions are the user's
        )

    def _grouped(self, columns: Sequence[str]) -> str:
        return f"SELECT {', '.join([self._by, *columns])} FROM {_ROWS} GROUP BY {self._by}"  # noqa: S608 - as above

    # ------------------------------------------------------------ DuckDB's parser and binder

    def _all(self, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
        return list(self._database.execute(sql, list(parameters)).fetchall())

    def _parsed(self, name: str, text: str) -> dict[str, Any]:
        """The statement ``SELECT <text>``."""
        found = json.loads(self._all("SELECT json_serialize_sql(?)", f"SELECT {text}\n")[0][0])
        if found.get("error"):
            raise RecipeError(f"the aggregate {name!r} is not SQL: {found.get('error_message')}", where=text, mend="Mend the expression.")
        selected = found["statements"][0]["node"].get("select_list", []) if len(found["statements"]) == 1 else []
        if len(selected) != 1 or found["statements"][0]["node"].get("from_table", {}).get("type") != "EMPTY":
            raise RecipeError(f"the aggregate {name!r} is not one SQL expression", where=text, mend="Write one, such as sum(x) / count(*).")
        selected[0]["alias"] = ""
        return dict(found)

    def _text(self, statement: dict[str, Any]) -> str:
        return str(self._all("SELECT json_deserialize_sql(CAST(? AS JSON))", json.dumps(statement))[0][0])[len("SELECT ") :]

    def _types(self, sql: str) -> dict[str, str]:
        import duckdb

        try:
            return {row[0]: row[1] for row in self._all(f"DESCRIBE {sql}")}
        except duckdb.Error as error:
            text = str(error).split("\n")[0]
            raise RecipeError(f"the group-by is not valid: {text}", where=sql, mend="Mend the aggregate expressions.") from error

    # ------------------------------------------------------------ halving

    def _rewritten(self, statement: dict[str, Any], known: set[str]) -> dict[str, Any]:
        """The statement with each aggregate replaced by a column of combined results. Raises _Whole."""
        copy = json.loads(json.dumps(statement))
        selected = copy["statements"][0]["node"]["select_list"]
        selected[0] = self._node(selected[0], known)
        return dict(copy)

    def _node(self, node: Any, known: set[str]) -> Any:
        if isinstance(node, list):
            return [self._node(child, known) for child in node]
        if not isinstance(node, dict):
            return node
        kind = node.get("class")
        if kind in ("SUBQUERY", "WINDOW"):
            raise _Whole(f"has a {kind.lower()}")
        if kind == "FUNCTION" and str(node.get("function_name", "")).lower() in known and not node.get("is_operator"):
            return self._column(self._whole_column(node))
        return {name: self._node(child, known) for name, child in node.items()}

    def _whole_column(self, node: dict[str, Any]) -> str:
        function = str(node["function_name"]).lower()
        if node.get("distinct"):
            raise _Whole(f"{function} of distinct values")
        if (node.get("order_bys") or {}).get("orders"):
            raise _Whole(f"{function} in an order")
        arguments = node.get("arguments", node.get("children", []))
        if len(arguments) > 1 or not (function in _COMBINE or function in _AVERAGE):
            raise _Whole(f"{function} cannot be combined from parts")
        text = self._expression(node)
        kind = self._types(self._grouped([f"{text} AS x"]))["x"]
        if function in _AVERAGE:
            if kind != "DOUBLE":
                raise _Whole(f"{function} of {kind} cannot be combined from parts")
            total = self._partial(self._expression({**node, **_renamed(node, "sum")}), "sum")
            number = self._partial(self._expression({**node, **_renamed(node, "count")}), "sum")
            return self._whole(f"CAST(sum({quoted(total)}) AS DOUBLE) / sum({quoted(number)})")
        column = self._partial(text, _COMBINE[function])
        return self._whole(f"CAST({_COMBINE[function]}({quoted(column)}) AS {kind})")

    def _partial(self, text: str, combine: str) -> str:
        return self._partials.setdefault(text, (f"__p{len(self._partials)}", combine))[0]

    def _whole(self, text: str) -> str:
        for column, known in self._merged.items():
            if known == text:
                return column
        column = f"__v{len(self._merged)}"
        self._merged[column] = text
        return column

    def _expression(self, node: dict[str, Any]) -> str:
        statement = self._parsed("", "1")
        statement["statements"][0]["node"]["select_list"] = [{**node, "alias": ""}]
        return self._text(statement)

    def _column(self, name: str) -> dict[str, Any]:
        return dict(self._parsed("", quoted(name))["statements"][0]["node"]["select_list"][0])


class _Whole(Exception):
    """The aggregate needs all rows of its group."""


def _renamed(node: dict[str, Any], function: str) -> dict[str, Any]:
    """The fields that name the function; later versions of DuckDB have a second one."""
    return {"function_name": function} | ({"qualified_name": {"path": [function]}} if "qualified_name" in node else {})


def aggregate(
    sql: str, tables: Iterable[pa.Table], schema: pa.Schema, budget: Budget, *, where: str = "", step: str = "group_by"
) -> Iterator[pa.Table]:
    """One of the plan's statements over a partition's rows (or partial results).

    Raises as :func:`cloudshard.reduce.database.query` does.
    """
    yield from query(sql, {_ROWS: Feed(schema, tables)}, budget, where=where, step=step)
