"""``map_groups`` and ``reduce_sql``: user code over whole groups, user SQL over a whole partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from cloudshard.errors import CloudshardError, StepError
from cloudshard.reduce.database import Budget, Feed, query, quoted
from cloudshard.reduce.errors import GroupTooLarge, OutOfMemory
from cloudshard.reduce.ordering import argsort_stable
from cloudshard.reduce.partition import take

#: How user SQL names the rows of its partition.
PARTITION = "partition"
_ROW = "__cloudshard_row"


def map_groups(
    tables: Iterable[pa.Table],
    keys: Sequence[str],
    function: Callable[[pa.Table], pa.Table],
    budget: Budget,
    *,
    step: str = "map_groups",
    where: str = "",
) -> Iterator[pa.Table]:
    """``function`` of each group's rows (one Arrow table, in the order given), groups in the order of their first rows.

    The partition must fit into the budget, together with a copy of its largest group: GroupTooLarge when one group is more than half of it,
    OutOfMemory when it is all of them together. What ``function`` raises becomes a StepError.
    """
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size > budget.memory_bytes:
            raise _too_much(held, keys, size, budget, where, step)
    if not held:
        return
    whole = pa.concat_tables(held)
    held.clear()
    if not whole.num_rows:
        return
    firsts = _first_rows(whole, keys, budget, where, step)
    order = argsort_stable(firsts.astype(np.uint64))
    ranked = firsts[order]
    begins = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    ends = np.append(begins[1:], len(order))
    whole = whole.combine_chunks()
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if (end - begin) * size > len(order) * budget.memory_bytes // 2:
            group = take(whole.select(list(keys)), order[begin : begin + 1]).to_pylist()[0]
            raise _group_error(f"{group}", end - begin, where, step)
        yield _called(function, take(whole, order[begin:end]), step, where)


def _called(function: Callable[[pa.Table], pa.Table], group: pa.Table, step: str, where: str) -> pa.Table:
    try:
        made = function(group)
    except CloudshardError:
        raise
    except Exception as error:  # user code may raise anything; it becomes one sentence with its cause kept
        what = f"step {step}: {type(error).__name__}: {error}"
        raise StepError(what, step=step, where=where, mend="The function must work for every group.") from error
    if not isinstance(made, pa.Table):
        what = f"step {step} returned {type(made).__name__} for a group"
        raise StepError(what, step=step, where=where, mend="Return an Arrow table.")
    return made


def _first_rows(table: pa.Table, keys: Sequence[str], budget: Budget, where: str, step: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row, the number of the first row of its group."""
    numbered = table.select(list(keys)).append_column(_ROW, pa.array(np.arange(table.num_rows)))
    by = ", ".join(quoted(key) for key in keys)
    sql = f"SELECT {_ROW} AS row, min({_ROW}) OVER (PARTITION BY {by}) AS first FROM rows"  # noqa: S608 - names are quoted
    result = np.empty(table.num_rows, np.int64)
    for batch in query(sql, {"rows": numbered}, budget, where=where, step=step):
        result[batch.column("row").to_numpy()] = batch.column("first").to_numpy()
    return result


def _too_much(held: Sequence[pa.Table], keys: Sequence[str], size: int, budget: Budget, where: str, step: str) -> OutOfMemory:
    """Which of the two it is, by the largest group of the rows so far."""
    so_far = pa.concat_tables([table.select(list(keys)) for table in held])
    by = ", ".join(quoted(key) for key in keys)
    sql = f"SELECT {by}, count(*) AS __n FROM rows GROUP BY {by} ORDER BY __n DESC LIMIT 1"  # noqa: S608 - names are quoted
    [largest] = next(iter(query(sql, {"rows": so_far}, budget, where=where, step=step))).to_pylist()
    number = largest.pop("__n")
    if number * 2 > so_far.num_rows:
        return _group_error(f"{largest}", number, where, step)
    what = f"the groups of the partition need more than {budget.memory_bytes >> 20} MiB"
    return OutOfMemory(what, where=where, mend="Use more partitions, or more memory per worker.")


def _group_error(group: str, rows: int, where: str, step: str) -> GroupTooLarge:
    what = f"step {step}: the group {group[:200]} with {rows} rows or more does not fit into memory as one table"
    return GroupTooLarge(what, where=where, mend="Use more memory per worker, drop columns before, or an aggregate instead of map_groups.")


def reduce_sql(
    sql: str, tables: Iterable[pa.Table], schema: pa.Schema, budget: Budget, *, step: str = "reduce_sql", where: str = ""
) -> Iterator[pa.Table]:
    """The user's query over one partition, which it names ``partition``, as often as it likes. One SELECT statement.

    A partition of more than a quarter of the budget is copied into the database first, which can spill it. Raises StepError for what is
    wrong with the SQL, else as :func:`cloudshard.reduce.database.query` does.
    """
    check_select(sql, step)
    held: list[pa.Table] = []
    size = 0
    rest = iter(tables)
    for table in rest:
        held.append(table)
        size += table.nbytes
        if size > budget.memory_bytes // 4:
            yield from query(sql, {PARTITION: Feed(schema, _chain(held, rest))}, budget, where=where, step=step, stored=(PARTITION,))
            return
    whole = pa.concat_tables(held) if held else schema.empty_table()
    yield from query(sql, {PARTITION: whole}, budget, where=where, step=step)


def _chain(held: list[pa.Table], rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    while held:
        yield held.pop(0)
    yield from rest


def check_select(sql: str, step: str) -> None:
    """Raises StepError unless it is one SELECT statement."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        try:
            statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise StepError(f"step {step}: {str(error).splitlines()[0]}", step=step, mend="Mend the SQL.") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise StepError(f"step {step}: the SQL is not one SELECT statement", step=step, mend="Write one query over `partition`.")
