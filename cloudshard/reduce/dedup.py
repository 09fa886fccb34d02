"""Dedup of one partition: one row per key, chosen by input order or by a column.

Only the keys, the column that decides and a row number go through DuckDB; the rows are then taken in Arrow. What is larger than the budget
goes through DuckDB as a whole, which spills. Rows of equal keys are told apart by two hidden columns, (item, position): the row's place in
the input, so that the result does not depend on workers or on the order in which runs are read. It comes out in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from cloudshard.errors import RecipeError, SchemaError
from cloudshard.reduce.database import Budget, Feed, query, quoted
from cloudshard.reduce.hashing import U64
from cloudshard.reduce.ordering import Indices, plain
from cloudshard.reduce.sorting import conformed, taken

ITEM = "__cloudshard_item"
POSITION = "__cloudshard_position"
_ROW = "__cloudshard_row"


class Keep(msgspec.Struct, frozen=True):
    """Which row of a key stays: the ``first`` or ``last`` in input order, or that with the least or greatest ``column``.

    Ties of a column go to the first in input order; a null is worse than any value, NaN is the greatest value.
    """

    kind: str
    column: str | None = None

    @classmethod
    def of(cls, text: str) -> Keep:
        """``first``, ``last``, ``any`` (the first, so that every run agrees), ``min:column``, ``max:column``. Raises RecipeError."""
        kind, _, column = text.partition(":")
        if kind in ("first", "last", "any") and not column:
            return cls("first" if kind == "any" else kind)
        if kind in ("min", "max") and column:
            return cls(kind, column)
        raise RecipeError(f"dedup(keep={text!r}) is unknown", mend="Use first, last, any, min:column or max:column.")


def with_place(table: pa.Table, item: int, positions: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    """The table with the hidden columns. Raises SchemaError when it has columns of those names."""
    for name in (ITEM, POSITION):
        if name in table.schema.names:
            raise SchemaError(f"a column may not have the name {name}", mend="Rename it.")
    items = pa.array(np.full(table.num_rows, item, np.int64))
    return table.append_column(ITEM, items).append_column(POSITION, pa.array(np.asarray(positions, np.int64)))


def dedup(
    tables: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str], keep: Keep, budget: Budget, *, where: str = "", places: bool = False
) -> Iterator[pa.Table]:
    """One row per key, in input order. ``schema`` has the hidden columns; they stay only when ``places`` (what mappers
    and divided partitions send on).

    Raises SchemaError for a missing column, else as :func:`cloudshard.reduce.database.query` does.
    """
    for name in (*keys, ITEM, POSITION, *([keep.column] if keep.column else [])):
        if schema.get_field_index(name) < 0:
            raise SchemaError(f"the column {name!r} is not in the rows (columns: {', '.join(schema.names)})", mend="Name one of them.")
    held: list[pa.Table] = []
    size = 0
    rest = iter(tables)
    for table in rest:
        held.append(table)
        size += table.nbytes
        if size > budget.memory_bytes // 2:
            results: Iterator[pa.Table] = _spilling(_chain(held, rest), schema, keys, keep, budget, where)
            break
    else:
        results = _in_memory(pa.concat_tables(held), keys, keep, budget, where) if held else iter([schema.empty_table()])
        held = []
    for result in results:
        yield result if places else result.drop_columns([ITEM, POSITION])


def _chain(held: list[pa.Table], rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    while held:
        yield held.pop(0)
    yield from rest


def _in_memory(table: pa.Table, keys: Sequence[str], keep: Keep, budget: Budget, where: str) -> Iterator[pa.Table]:
    order = place_order(table)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    narrow = table.select(list(dict.fromkeys([*keys, *([keep.column] if keep.column else [])]))).append_column(_ROW, pa.array(ranks))
    by = ", ".join(quoted(key) for key in keys)
    if keep.column is None:
        sql = f"SELECT {'min' if keep.kind == 'first' else 'max'}({_ROW}) AS row FROM rows GROUP BY {by}"  # noqa: S608 - names are quoted
    else:
        sql = f"SELECT {_ROW} AS row FROM rows QUALIFY {_is_best(by, keep, _ROW)}"  # noqa: S608 - names are quoted
    found = [batch.column("row").to_numpy() for batch in query(sql, {"rows": narrow}, budget, where=where, step="dedup")]
    yield from taken(table, order[np.sort(np.concatenate(found)).astype(np.int64)])


def place_order(table: pa.Table) -> Indices:
    """Row numbers in input order."""
    items, positions = (plain(table.column(name)).to_numpy() for name in (ITEM, POSITION))
    later = (items[1:] > items[:-1]) | ((items[1:] == items[:-1]) & (positions[1:] >= positions[:-1]))
    return np.arange(table.num_rows) if bool(later.all()) else np.lexsort((positions, items))


def _is_best(by: str, keep: Keep, place: str) -> str:
    if keep.column is None:
        order = ", ".join(f"{name} {'DESC' if keep.kind == 'last' else 'ASC'}" for name in place.split(", "))
    else:
        order = f"{quoted(keep.column)} {'ASC' if keep.kind == 'min' else 'DESC'} NULLS LAST, {place}"
    return f"row_number() OVER (PARTITION BY {by} ORDER BY {order}) = 1"


def _spilling(
    tables: Iterator[pa.Table], schema: pa.Schema, keys: Sequence[str], keep: Keep, budget: Budget, where: str
) -> Iterator[pa.Table]:
    by = ", ".join(quoted(key) for key in keys)
    best = _is_best(by, keep, f"{ITEM}, {POSITION}")
    sql = f"SELECT * FROM (SELECT * FROM rows QUALIFY {best}) ORDER BY {ITEM}, {POSITION}"  # noqa: S608 - names are quoted
    for table in query(sql, {"rows": Feed(schema, tables)}, budget, where=where, step="dedup"):
        yield conformed(table, schema)


def first_of_each(hashes: Sequence[U64]) -> Indices:
    """Rows that are the first of their hash (of 64 bits, or of 128 as two arrays), in row order: dedup by hash alone.

    With n keys of 64 bits the chance of any false match is about n * n / 2**65 (n = 10**9: 3 %), of 128 bits none to speak of.
    """
    order = np.lexsort((np.arange(len(hashes[0])), *hashes[::-1])) if len(hashes) > 1 else _by_hash(hashes[0])
    fresh = np.zeros(len(order), bool)
    fresh[:1] = True
    for values in hashes:
        ranked = values[order]
        fresh[1:] |= ranked[1:] != ranked[:-1]
    return np.sort(order[fresh])


def _by_hash(values: U64) -> Indices:
    from cloudshard.reduce.ordering import argsort_stable

    return argsort_stable(values)
