"""Any chain of steps over any items gives what plain loops give, item by item, and accounts for every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings

from cloudshard.plan.values import SinkSpec
from tests.engine.harness import AttemptResult, Bench, step

Row = dict[str, Any]
Loop = Callable[[list[Row]], list[Row]]


def fails_at_five(row: Row) -> Row:
    if row["n"] % 10 == 5:
        raise ValueError("five")
    return row


def twice(table: pa.Table) -> pa.Table:
    return table.set_column(0, "n", pc.multiply(table["n"], 2))


def rows_plus_one(rows: list[Row]) -> list[Row]:
    return [{**row, "n": row["n"] + 1} for row in rows]


def picky(table: pa.Table) -> pa.Table:
    if pc.any(pc.equal(table["n"], 7)).as_py():
        raise ValueError("seven")
    return table


async def plus_three(row: Row) -> Row | None:
    return None if row["n"] % 7 == 0 else {**row, "n": row["n"] + 3}


def steps(size: int, span: bool) -> dict[str, tuple[Any, Loop]]:
    """Each kind of step, with what a plain loop does instead."""
    return {
        "map": (step("map", lambda row: None if row["n"] % 3 == 0 else row), lambda rows: [row for row in rows if row["n"] % 3]),
        "drop": (step("map", fails_at_five, on_error="drop"), lambda rows: [row for row in rows if row["n"] % 10 != 5]),
        "quarantine": (step("map", fails_at_five, on_error="quarantine"), lambda rows: [row for row in rows if row["n"] % 10 != 5]),
        "flat_map": (
            step("flat_map", lambda row: ({**row, "k": k} for k in range(row["n"] % 3))),
            lambda rows: [{**row, "k": k} for row in rows for k in range(row["n"] % 3)],
        ),
        "into": (step("map", lambda row: row["n"] % 2, into="odd"), lambda rows: [{**row, "odd": row["n"] % 2} for row in rows]),
        "filter": (step("filter", lambda row: row["n"] % 2 == 0), lambda rows: [row for row in rows if row["n"] % 2 == 0]),
        "condition": (step("sql", query="SELECT * FROM batch WHERE (\nn > 4\n)"), lambda rows: [row for row in rows if row["n"] > 4]),
        "sql": (step("sql", query="SELECT * REPLACE (n + 10 AS n) FROM batch"), lambda rows: [{**row, "n": row["n"] + 10} for row in rows]),
        "arrow": (
            step("map_batches", twice, batch_rows=size, span_shards=span),
            lambda rows: [{**row, "n": row["n"] * 2} for row in rows],
        ),
        "rows": (
            step("map_batches", rows_plus_one, batch_rows=size, span_shards=span, **{"as": "rows"}),
            lambda rows: [{**row, "n": row["n"] + 1} for row in rows],
        ),
        "picky": (
            step("map_batches", picky, on_error="quarantine", batch_rows=size, span_shards=span),
            lambda rows: [row for row in rows if row["n"] != 7],
        ),
        "async": (
            step("map_async", plus_three, concurrency=size),
            lambda rows: [{**row, "n": row["n"] + 3} for row in rows if row["n"] % 7],
        ),
        "limit": (step("limit", rows=size), lambda rows: rows[:size]),
    }


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(st.lists(st.integers(0, 30), max_size=40), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(sorted(steps(1, False))), max_size=5),
    size=st.integers(1, 25),
    span=st.booleans(),
    careful=st.booleans(),
)
def test_any_chain_equals_plain_loops(items: list[list[int]], kinds: list[str], size: int, span: bool, careful: bool) -> None:
    known = steps(size, span)
    chain = [known[kind] for kind in kinds]
    rows = [[{"n": n} for n in numbers] for numbers in items]
    # a later stage reads this one's output: async results are in order
    named = [(msgspec.structs.replace(spec, name=f"{at:02d}"), function) for at, ((spec, function), _) in enumerate(chain)]
    bench = Bench(named, rows, sink=SinkSpec(format="runs"), careful=careful)
    results = bench.run()
    for item, expected in enumerate(rows):
        for _, loop in chain:
            expected = loop(expected)
        result = results[item]
        assert isinstance(result, AttemptResult), result
        found = bench.out.rows.get(item, [])
        assert [_filled(row) for row in found] == [_filled(row) for row in expected]
        assert result.counts.rows_in >= result.counts.quarantined + result.counts.dropped
        assert len(bench.out.quarantine.get(item, [])) == result.counts.quarantined


def _filled(row: Row) -> Row:
    """A table has every column for every row."""
    return {"k": None, "odd": None, **row}
