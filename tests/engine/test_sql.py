"""SQL steps: conditions leave rows as they are, errors follow the policy row by row, and the query sees nothing but the batch."""

from __future__ import annotations

import pytest

from cloudshard.engine.sql import mask_query
from cloudshard.plan.steps import filter_step
from tests.engine.harness import AttemptFailure, AttemptResult, Bench, step

ROWS = [{"n": n, "text": str(n)} for n in range(10)]


def condition(text: str) -> str:
    return str(filter_step(text).params["query"])


def test_a_condition_leaves_rows_as_they_are() -> None:
    # absent stays absent, and a value that Arrow has no type for stays what it was
    rows = [{"n": 1, "tags": ["a"]}, {"n": 5}, {"n": 7, "big": 2**40, "tags": []}]
    bench = Bench([step("sql", query=condition("n > 2"))], [rows])
    bench.run()
    assert bench.out.rows[0] == rows[1:]


def test_a_null_condition_is_not_true() -> None:
    bench = Bench([step("sql", query=condition("m > 2"))], [[{"m": 3}, {"m": None}, {}]])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert bench.out.rows[0] == [{"m": 3}]
    assert result.counts.filtered == 2


def test_a_condition_over_several_columns_needs_all() -> None:
    bench = Bench([step("sql", query=condition("COLUMNS(*) > 3"))], [[{"a": 4, "b": 4}, {"a": 4, "b": 1}, {"a": 1, "b": 4}]])
    bench.run()
    assert bench.out.rows[0] == [{"a": 4, "b": 4}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM batch WHERE (n > 3) ORDER BY n DESC LIMIT 2",  # looks like a condition, is more
        "SELECT * FROM batch WHERE (\nn > 3\n) ORDER BY (\nn\n)",
        "SELECT n FROM batch WHERE (\nn > 3\n)",
        "SELECT * FROM batch WHERE (\nn > 3\n) AND (\nn < 8\n) UNION ALL SELECT * FROM batch WHERE (\nn = 9\n)",
    ],
)
def test_a_query_that_only_looks_like_a_condition_runs_as_it_is(query: str) -> None:
    assert mask_query(query) is None
    result = Bench([step("sql", query=query)], [ROWS]).run()[0]
    assert isinstance(result, AttemptResult), result


def test_an_aggregate_is_no_condition() -> None:
    result = Bench([step("sql", query=condition("count(*) > 3"))], [ROWS]).run()[0]
    assert isinstance(result, AttemptFailure)
    assert "condition" in str(result.error) or "aggregate" in str(result.error).lower()


def test_a_window_is_no_condition() -> None:
    # it would be true of other rows in batches of another size
    result = Bench([step("sql", query=condition("row_number() OVER () < 3"))], [ROWS]).run()[0]
    assert isinstance(result, AttemptFailure)
    assert "window" in str(result.error).lower()


@pytest.mark.parametrize("query", [condition("CAST(text AS INTEGER) >= 0"), "SELECT n, CAST(text AS INTEGER) AS m FROM batch"])
def test_one_row_that_sql_cannot_compute_is_found(query: str) -> None:
    rows = [*ROWS[:6], {"n": 6, "text": "six"}, *ROWS[7:]]
    place = sum(len(f'{{"n":{row["n"]},"text":"{row["text"]}"}}\n') for row in rows[:6])
    strict = Bench([step("sql", query=query, name="03-sql")], [rows]).run()[0]
    assert isinstance(strict, AttemptFailure)
    assert f"byte {place}" in str(strict.error)
    assert "six" in str(strict.error)
    bench = Bench([step("sql", query=query, on_error="quarantine")], [rows])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert [row["n"] for row in bench.out.rows[0]] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert bench.out.quarantine[0][0]["row"] == '{"n":6,"text":"six"}'


def test_an_error_of_the_query_itself_is_no_rows_fault() -> None:
    bench = Bench([step("sql", query="SELECT nothing FROM batch", on_error="drop")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert result.counts.dropped == 10  # at once: it is not asked for each row again


def test_rows_of_many_objects_keep_their_places_through_a_query() -> None:
    from cloudshard.engine.attempt import AttemptContext
    from cloudshard.engine.block import Block, Origin
    from cloudshard.ledger.records import WorkItem

    bench = Bench([step("sql", query="SELECT *, n * 2 AS m FROM batch"), step("row_number", into="at")], [])
    blocks = [Block(Origin(0, f"file:///{n}", "row"), [n * 10], rows=[{"n": n}]) for n in range(5)]
    bench.driver.run_blocks(WorkItem(0, "shard", ()), AttemptContext(0, 0, 1, "n", "t"), blocks)
    assert [block.origin.object for block in bench.out.blocks] == [f"file:///{n}" for n in range(5)]
    assert [row["at"] for row in bench.out.rows[0]] == [0, 10, 20, 30, 40]
    bench.driver.close()


def test_a_condition_that_closes_its_bracket_is_no_condition() -> None:
    assert mask_query("SELECT * FROM batch WHERE (\nn > 3\n) AS keep FROM batch; SELECT (\nn\n)") is None
