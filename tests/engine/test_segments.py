"""What steps do to rows that are not quite their own, and to more rows than fit into memory at once."""

from __future__ import annotations

from typing import Any

import pytest

from cloudshard.engine.segments import MOST_ROWS
from cloudshard.errors import ErrorBudgetExceeded, StepError
from tests.engine.harness import AttemptFailure, AttemptResult, Bench, step

ROWS = [{"n": n} for n in range(10)]


def test_one_dict_given_twice_is_two_rows() -> None:
    def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row, row]

    def count(row: dict[str, Any]) -> dict[str, Any]:
        row["n"] += 1
        return row

    bench = Bench([step("flat_map", twice), step("map", count)], [[{"n": 1}, {"n": 5}]])
    bench.run()
    assert [row["n"] for row in bench.out.rows[0]] == [2, 2, 6, 6]


def test_a_column_is_put_into_a_row_of_its_own() -> None:
    shared = {"n": 0}
    numbers = iter(range(10))
    bench = Bench(
        [step("map", lambda row: shared), step("map", lambda row: next(numbers), into="x"), step("row_number", into="at")], [ROWS]
    )
    bench.run()
    assert shared == {"n": 0}
    assert bench.out.rows[0] == [{"n": 0, "x": n, "at": 8 * n} for n in range(10)]


def test_null_keeps_the_row_as_it_was() -> None:
    def spoil(row: dict[str, Any]) -> int:
        row["spoilt"] = True
        raise ValueError("no")

    bench = Bench([step("map", spoil, into="x", on_error="null")], [[{"n": 1}]])
    bench.run()
    assert bench.out.rows[0] == [{"n": 1, "x": None}]


def test_flat_map_counts_rows_added_and_rows_without_any() -> None:
    bench = Bench([step("flat_map", lambda row: [{"k": k} for k in range(row["n"])])], [[{"n": 0}, {"n": 1}, {"n": 4}]])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    (counts,) = (counts for counts in result.steps if counts.step == "flat_map")
    assert (counts.rows_in, counts.rows_out, counts.added, counts.filtered) == (3, 5, 3, 1)


def test_a_row_with_very_many_children_goes_on_in_blocks() -> None:
    bench = Bench([step("flat_map", lambda row: ({"k": k} for k in range(1000))), step("map", lambda row: row, name="m")], [ROWS * 20])
    bench.run()
    assert len(bench.out.rows[0]) == 200_000
    assert max(len(block) for block in bench.out.blocks) <= MOST_ROWS


def test_the_children_of_a_parent_that_fails_late_are_not_rows() -> None:
    def late(row: dict[str, Any]) -> Any:
        yield {"k": 1}
        if row["n"] == 3:
            raise ValueError("late")

    bench = Bench([step("flat_map", late, on_error="quarantine")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert len(bench.out.rows[0]) == 9
    assert bench.out.quarantine[0][0]["row"] == '{"n":3}'


@pytest.mark.parametrize("policy", ["drop", "quarantine"])
@pytest.mark.parametrize("kind", ["map", "map_batches"])
def test_running_out_of_memory_is_no_rows_fault(kind: str, policy: str) -> None:
    calls: list[int] = []

    def greedy(_: Any) -> Any:
        calls.append(1)
        raise MemoryError

    result = Bench([step(kind, greedy, on_error=policy)], [ROWS]).run()[0]
    assert len(calls) == 1
    assert isinstance(result, AttemptFailure)
    assert isinstance(result.error, StepError)
    assert isinstance(result.error.__cause__, MemoryError)  # what tells the worker to try with more memory


def test_an_item_that_spends_the_error_budget_alone_ends_at_once() -> None:
    calls: list[int] = []

    def never(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        raise ValueError("never")

    bench = Bench([step("map", never, on_error="drop")], [[{"n": n} for n in range(1000)]], error_budget=20)
    result = bench.run()[0]
    assert isinstance(result, AttemptFailure)
    assert isinstance(result.error, ErrorBudgetExceeded)
    assert len(calls) == 21


class Noting:
    """Class steps that note their teardown; the second one's fails."""

    ended: list[str] = []

    def __init__(self, name: str = "a") -> None:
        self.name = name

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row

    def teardown(self) -> None:
        self.ended.append(self.name)
        if self.name == "b":
            raise OSError("still busy")


def test_every_step_is_torn_down_and_a_failure_is_told() -> None:
    Noting.ended.clear()
    steps = [
        step("map", type(name, (Noting,), {"__init__": lambda self, name=name: setattr(self, "name", name)}), name=name) for name in "abc"
    ]
    bench = Bench(steps, [ROWS])
    bench.run_item(0)
    with pytest.raises(StepError, match=r"b.*still busy"):
        bench.driver.close()
    assert Noting.ended == ["c", "b", "a"]


def test_what_failed_together_and_not_alone_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def small_only(table: Any) -> Any:
        if table.num_rows > 3:
            raise RuntimeError("device full")
        return table

    bench = Bench([step("map_batches", small_only, batch_rows=10, name="04-embed")], [ROWS])
    bench.run()
    assert len(bench.out.rows[0]) == 10
    assert "04-embed failed on 10 rows together" in caplog.text


@pytest.mark.parametrize(("kind", "kept"), [("map", 9), ("filter", 9), ("flat_map", 9)])
def test_a_stop_iteration_ends_the_row_and_not_the_loop(kind: str, kept: int) -> None:
    def bare_next(row: dict[str, Any]) -> Any:
        if row["n"] == 4:
            next(iter(()))
        return {"map": row, "filter": True, "flat_map": [row]}[kind]

    bench = Bench([step(kind, bare_next, on_error="drop")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert (result.counts.dropped, len(bench.out.rows[0])) == (1, kept)
    strict = Bench([step(kind, bare_next)], [ROWS]).run()[0]
    assert isinstance(strict, AttemptFailure)
    assert "raised StopIteration" in str(strict.error)


def test_an_async_function_in_map_says_where_it_belongs() -> None:
    async def wait(row: dict[str, Any]) -> dict[str, Any]:
        return row

    result = Bench([step("map", wait)], [ROWS]).run()[0]
    assert isinstance(result, AttemptFailure)
    assert "map_async" in str(result.error)
