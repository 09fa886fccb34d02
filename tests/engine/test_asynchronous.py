"""The async segment: hooks in the loop, order where it matters, calls that do not end as they should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cloudshard.errors import StepError
from cloudshard.plan.values import SinkSpec
from tests.engine.harness import AttemptFailure, AttemptResult, Bench, step

ROWS = [{"n": n} for n in range(40)]


async def backwards(row: dict[str, Any]) -> dict[str, Any]:
    """Later rows end earlier."""
    await asyncio.sleep(0.004 * (8 - row["n"] % 8))
    return row


def test_a_limit_behind_it_takes_the_first_rows() -> None:
    steps = [step("map_async", backwards, concurrency=8), step("limit", rows=5)]
    bench = Bench(steps, [ROWS], sink=SinkSpec(format="jsonl", url="memory://out"))
    bench.run()
    assert [row["n"] for row in bench.out.rows[0]] == [0, 1, 2, 3, 4]


def test_runs_for_a_later_stage_are_in_input_order() -> None:
    # a sample there chooses rows by their number in the run
    bench = Bench([step("map_async", backwards, concurrency=8)], [ROWS], sink=SinkSpec(format="runs"))
    bench.run()
    assert [row["n"] for row in bench.out.rows[0]] == list(range(40))


def test_a_slow_first_call_does_not_empty_the_window() -> None:
    ended = before = 0

    async def one(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal ended, before
        await asyncio.sleep(0.15 if row["n"] == 0 else 0.001)
        if row["n"] == 0:
            before = ended
        ended += 1
        return row

    bench = Bench([step("map_async", one, concurrency=4, ordered=True)], [ROWS])
    bench.run()
    assert before > 20  # far more than a window of four had ended behind it
    assert [row["n"] for row in bench.out.rows[0]] == list(range(40))


class Client:
    """Its hooks and its calls must share one event loop, as HTTP clients demand."""

    loops: list[Any] = []

    async def setup(self) -> None:
        self.lock = asyncio.Lock()
        self.loops.append(asyncio.get_running_loop())

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        async with self.lock:
            self.loops.append(asyncio.get_running_loop())
        return row

    async def teardown(self) -> None:
        self.loops.append(asyncio.get_running_loop())


def test_async_setup_and_teardown_run_in_the_calls_loop() -> None:
    Client.loops.clear()
    Bench([step("map_async", Client)], [ROWS[:3]]).run()
    assert len(Client.loops) == 5
    assert len(set(map(id, Client.loops))) == 1


class HalfAsync:
    """An async setup in a step that is not."""

    async def setup(self) -> None: ...

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def test_an_async_setup_of_another_step_is_refused() -> None:
    with pytest.raises(StepError, match=r"setup\(\) is async"):
        Bench([step("map", HalfAsync, name="02-map")], [ROWS])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda row: row, "nothing to await"),
        (lambda row: asyncio.sleep(0, 3), "returned int, expected a row"),
    ],
)
def test_wrong_functions_are_said_clearly(function: Any, said: str) -> None:
    result = Bench([step("map_async", function)], [ROWS]).run()[0]
    assert isinstance(result, AttemptFailure)
    assert said in str(result.error)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_a_call_that_ends_itself_ends_nothing_else(kind: type[BaseException]) -> None:
    async def fickle(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        if row["n"] == 7:
            raise kind
        return row

    bench = Bench([step("map_async", fickle, on_error="quarantine")], [ROWS])
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert result.counts.quarantined == 1
    assert len(bench.out.rows[0]) == 39


def test_careful_mode_has_one_call_in_flight_and_tells_of_it() -> None:
    told: list[int] = []
    running = 0

    async def watched(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal running
        running += 1
        assert running == 1
        assert told[-1] == row["n"]
        await asyncio.sleep(0)
        running -= 1
        return row

    bench = Bench(
        [step("map_async", watched, concurrency=32)],
        [[{"n": n} for n in range(9)]],
        careful=True,
        before_row=lambda object, position, step: told.append(position // 8),
    )
    result = bench.run()[0]
    assert isinstance(result, AttemptResult), result
    assert told == list(range(9))


def test_null_puts_null_and_keeps_the_row() -> None:
    async def fails(row: dict[str, Any]) -> int:
        row["spoilt"] = 1
        if row["n"] == 1:
            raise TimeoutError
        return 5

    bench = Bench([step("map_async", fails, into="x", on_error="null", ordered=True)], [ROWS[:2]])
    bench.run()
    assert bench.out.rows[0] == [{"n": 0, "x": 5}, {"n": 1, "x": None}]
