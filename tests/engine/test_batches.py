"""Batch, SQL and async segments: queues, spanning shards, bisection, windows."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cloudshard.errors import StepError
from tests.engine.harness import AttemptFailure, AttemptResult, Bench, step

ROWS = [{"n": n} for n in range(25)]


def double(table: pa.Table) -> pa.Table:
    return table.append_column("m", pc.multiply(table["n"], 2))


def test_batches_fire_when_full_and_are_flushed_at_the_end() -> None:
    sizes: list[int] = []

    def watch(table: pa.Table) -> pa.Table:
        sizes.append(table.num_rows)
        return double(table)

    bench = Bench([step("map_batches", watch, batch_rows=10)], [ROWS, ROWS])
    bench.run()
    assert sizes == [10, 10, 5, 10, 10, 5]  # shards are not mixed
    assert bench.out.rows[1][24] == {"n": 24, "m": 48}


def test_spanning_batches_mix_shards_and_each_commits_alone() -> None:
    sizes: list[int] = []

    def watch(table: pa.Table) -> pa.Table:
        sizes.append(table.num_rows)
        return double(table)

    bench = Bench([step("map_batches", watch, batch_rows=40, span_shards=True)], [ROWS, ROWS, ROWS])
    bench.run_item(0)
    assert not bench.driver.finished  # its rows wait for others
    bench.run_item(1)
    assert [result.item for result in bench.driver.finished] == [0]  # 40 of 50 rows have gone through: all of item 0
    bench.run_item(2)
    bench.driver.drain()
    assert sizes == [40, 35]
    assert sorted(result.item for result in bench.driver.finished) == [0, 1, 2]
    assert all(bench.out.rows[item] == [{"n": n, "m": 2 * n} for n in range(25)] for item in range(3))
    bench.driver.close()


def test_a_spanning_step_must_keep_its_rows() -> None:
    bench = Bench([step("map_batches", lambda table: table.slice(1), batch_rows=10, span_shards=True)], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptFailure)
    assert "spans shards" in str(result.error)


def picky(table: pa.Table) -> pa.Table:
    if 13 in table["n"].to_pylist():
        raise ValueError("unlucky")
    return double(table)


def test_a_failing_batch_is_bisected_to_the_row() -> None:
    bench = Bench([step("map_batches", picky, batch_rows=10, on_error="quarantine")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert [row["n"] for row in bench.out.rows[0]] == [n for n in range(25) if n != 13]
    assert bench.out.quarantine[0][0]["row"] == '{"n":13}'
    strict = Bench([step("map_batches", picky, batch_rows=10, name="03-picky")], [ROWS]).run()[0]
    assert isinstance(strict, AttemptFailure)
    assert "03-picky" in str(strict.error)
    assert f"byte {sum(len(str({'n': n}).replace(chr(32), '')) + 1 for n in range(13))}" in str(strict.error)


def test_a_failing_row_of_one_shard_in_a_spanning_batch_costs_that_shard_only() -> None:
    items = [[{"n": n} for n in range(5)], [{"n": 13}], [{"n": n} for n in range(20, 25)]]
    bench = Bench([step("map_batches", picky, batch_rows=100, span_shards=True)], items)
    results = bench.run()
    assert [type(results[item]).__name__ for item in range(3)] == ["AttemptResult", "AttemptFailure", "AttemptResult"]
    assert bench.out.rows[2] == [{"n": n, "m": 2 * n} for n in range(20, 25)]


@pytest.mark.parametrize("form", ["arrow", "pandas", "polars", "rows"])
def test_batches_come_in_the_form_that_is_asked_for(form: str) -> None:
    kinds: set[str] = set()

    def same(batch: Any) -> Any:
        kinds.add(type(batch).__module__.partition(".")[0])
        return batch

    bench = Bench([step("map_batches", same, **{"as": form, "batch_rows": 10})], [ROWS])
    bench.run()
    assert kinds == {{"arrow": "pyarrow", "rows": "builtins"}.get(form, form)}
    assert [row["n"] for row in bench.out.rows[0]] == list(range(25))


def test_a_batch_function_may_change_the_number_of_rows() -> None:
    bench = Bench([step("map_batches", lambda table: table.slice(0, 1), batch_rows=10)], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert (result.counts.rows_out, result.counts.filtered) == (3, 22)


def test_a_batch_function_must_return_a_batch() -> None:
    result = Bench([step("map_batches", lambda table: 7)], [ROWS]).run()[0]
    assert isinstance(result, AttemptFailure)
    assert "returned int" in str(result.error)


def test_sql_over_the_batch() -> None:
    bench = Bench([step("sql", query="SELECT n, n * 2 AS m FROM batch WHERE n % 2 = 0")], [ROWS])
    bench.run()
    assert bench.out.rows[0] == [{"n": n, "m": 2 * n} for n in range(0, 25, 2)]


def test_sql_filters_keep_each_rows_place() -> None:
    query = "SELECT * FROM batch WHERE (\nn > 20\n)"
    bench = Bench([step("sql", query=query), step("map", lambda row: 1 // 0 if row["n"] == 22 else row, name="m")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptFailure)
    assert f"byte {10 * 8 + 12 * 9}" in str(result.error)


@pytest.mark.parametrize("query", ["SELECT nothing FROM batch", "SELECT * FROM batch WHERE (\nnothing > 1\n)"])
def test_sql_errors_are_duckdbs_own_words(query: str) -> None:
    result = Bench([step("sql", query=query, name="04-sql")], [ROWS]).run()[0]
    assert isinstance(result, AttemptFailure)
    assert isinstance(result.error, StepError)
    assert "nothing" in str(result.error)
    assert "04-sql" in str(result.error)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT getenv('HOME') AS h FROM batch",
        "SELECT * FROM table_in_python",
    ],
)
def test_sql_sees_the_batch_and_nothing_else(query: str) -> None:
    table_in_python = pa.table({"secret": [1]})
    result = Bench([step("sql", query=query)], [ROWS]).run()[0]
    assert table_in_python.num_rows == 1
    assert isinstance(result, AttemptFailure), result


def test_async_calls_overlap_across_blocks_and_shards() -> None:
    lock = threading.Lock()
    now = most = 0

    async def slow(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        await asyncio.sleep(0.01)
        with lock:
            now -= 1
        return {**row, "done": True}

    bench = Bench([step("map_async", slow, concurrency=16)], [ROWS[:10]] * 6)
    results = bench.run()
    assert len(results) == 6
    assert most == 16  # more than one shard of ten rows was in flight
    assert sorted(row["n"] for row in bench.out.rows[3]) == list(range(10))


def test_async_in_order_when_asked_for() -> None:
    async def slow(row: dict[str, Any]) -> int:
        await asyncio.sleep(0.02 if row["n"] % 3 == 0 else 0.0)
        return int(row["n"])

    bench = Bench([step("map_async", slow, concurrency=8, ordered=True, into="m")], [ROWS])
    bench.run()
    assert [row["m"] for row in bench.out.rows[0]] == list(range(25))


def test_async_errors_follow_the_policy() -> None:
    async def boom(row: dict[str, Any]) -> dict[str, Any] | None:
        if row["n"] == 4:
            raise TimeoutError("late")
        return row if row["n"] % 2 == 0 else None

    bench = Bench([step("map_async", boom, on_error="quarantine")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert (result.counts.quarantined, result.counts.filtered, result.counts.rows_out) == (1, 12, 12)
    strict = Bench([step("map_async", boom)], [ROWS, [{"n": 2}]]).run()
    assert isinstance(strict[0], AttemptFailure)
    assert isinstance(strict[1], AttemptResult)
