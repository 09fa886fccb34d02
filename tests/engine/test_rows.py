"""Row steps: what they do, what happens to rows that fail, and that every row is accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from cloudshard.errors import InputError, StepError
from cloudshard.plan.values import SourceSpec
from tests.engine.harness import AttemptFailure, AttemptResult, Bench, step

ROWS = [{"n": n, "text": "x" * n} for n in range(10)]


def one(bench: Bench, **attempt: Any) -> AttemptResult:
    result = bench.run(**attempt)[0]
    assert isinstance(result, AttemptResult), result
    return result


def failed(bench: Bench) -> AttemptFailure:
    result = bench.run()[0]
    assert isinstance(result, AttemptFailure), result
    return result


def test_map_changes_and_removes_rows() -> None:
    bench = Bench([step("map", lambda row: {"m": row["n"] * 2} if row["n"] % 2 else None)], [ROWS])
    result = one(bench)
    assert bench.out.rows[0] == [{"m": n * 2} for n in range(1, 10, 2)]
    assert (result.counts.rows_in, result.counts.rows_out, result.counts.filtered) == (10, 5, 5)


def test_map_into_a_column_keeps_the_row() -> None:
    bench = Bench([step("map", lambda row: row["n"] ** 2, into="square")], [ROWS])
    one(bench)
    assert bench.out.rows[0][3] == {"n": 3, "text": "xxx", "square": 9}


def test_flat_map_makes_rows_and_counts_what_it_added() -> None:
    bench = Bench([step("flat_map", lambda row: ({"n": row["n"], "k": k} for k in range(row["n"])))], [ROWS])
    result = one(bench)
    assert len(bench.out.rows[0]) == 45
    assert result.counts.rows_in + result.counts.added == result.counts.rows_out + result.counts.filtered


def test_filter_takes_functions() -> None:
    bench = Bench([step("filter", lambda row: row["n"] > 6)], [ROWS])
    one(bench)
    assert [row["n"] for row in bench.out.rows[0]] == [7, 8, 9]


def test_steps_in_a_chain_hand_on_what_they_leave() -> None:
    steps = [step("filter", lambda row: row["n"] % 2 == 0, name="a"), step("map", lambda row: row if row["n"] > 2 else None, name="b")]
    result = one(Bench(steps, [ROWS]))
    counts = {counts.step: (counts.rows_in, counts.rows_out) for counts in result.steps}
    assert counts == {"read": (10, 10), "a": (10, 5), "b": (5, 3), "write": (3, 3)}


def boom(row: dict[str, Any]) -> dict[str, Any]:
    row["touched"] = True
    if row["n"] in (3, 7):
        raise ValueError(f"no {row['n']}")
    return row


def test_on_error_raise_names_step_object_and_byte_offset() -> None:
    failure = failed(Bench([step("map", boom, name="02-map-boom")], [ROWS]))
    assert isinstance(failure.error, StepError)
    assert "02-map-boom" in str(failure.error)
    assert "ValueError: no 3" in str(failure.error)
    offset = len(b"".join(b'{"n":%d,"text":"%s"}\n' % (n, b"x" * n) for n in range(3)))
    assert f"0.jsonl, byte {offset}" in str(failure.error)
    assert "in boom" in failure.error.traceback


def test_on_error_drop_loses_only_the_failing_rows_and_counts_them() -> None:
    bench = Bench([step("map", boom, on_error="drop")], [ROWS])
    result = one(bench)
    assert [row["n"] for row in bench.out.rows[0]] == [0, 1, 2, 4, 5, 6, 8, 9]
    assert result.counts.dropped == 2
    assert result.counts.filtered == 0


def test_on_error_null_keeps_the_row_with_null() -> None:
    bench = Bench([step("map", lambda row: 1 // row["n"], into="inverse", on_error="null")], [ROWS])
    result = one(bench)
    assert bench.out.rows[0][0] == {"n": 0, "text": "", "inverse": None}
    assert result.counts.nulled == 1


def test_on_error_quarantine_keeps_the_row_as_it_was_with_its_place() -> None:
    bench = Bench([step("map", boom, on_error="quarantine")], [ROWS])
    result = one(bench)
    assert result.counts.quarantined == 2
    first = bench.out.quarantine[0][0]
    assert first["row"] == '{"n":3,"text":"xxx"}'  # not what the step had made of it before it failed
    assert (first["error_type"], first["message"], first["step"]) == ("ValueError", "no 3", "map")
    assert first["object"].endswith("/0.jsonl")
    assert first["unit"] == "byte"
    assert "in boom" in first["traceback"]


@pytest.mark.parametrize(
    ("kind", "function", "said"),
    [
        ("map", lambda row: [1], "returned list, expected a row"),
        ("filter", lambda row: "yes", "returned str, expected True or False"),
        ("flat_map", lambda row: {"a": 1}, "returned dict, expected an iterable"),
        ("flat_map", lambda row: [1], "yielded int, expected rows"),
        ("flat_map", lambda row: 5, "not iterable"),
    ],
)
def test_a_wrong_kind_of_result_is_said_clearly(kind: str, function: Any, said: str) -> None:
    assert said in str(failed(Bench([step(kind, function)], [ROWS])).error)
    bench = Bench([step(kind, function, on_error="drop")], [ROWS])
    assert one(bench).counts.dropped == 10


def test_a_bad_line_raises_with_its_place_or_is_quarantined_alone() -> None:
    body = b'{"n":1}\n{"n":\n{"n":3}\n'
    failure = failed(Bench([], [body]))
    assert isinstance(failure.error, InputError)
    assert "byte 8" in str(failure.error)
    bench = Bench([], [body], source=SourceSpec(format="jsonl", bad_rows="quarantine"))
    result = one(bench)
    assert [row["n"] for row in bench.out.rows[0]] == [1, 3]
    assert (result.counts.rows_in, result.counts.quarantined) == (3, 1)
    assert bench.out.quarantine[0][0]["position"] == 8


def test_poison_rows_are_quarantined_untouched() -> None:
    seen: list[int] = []
    bench = Bench([step("map", lambda row: seen.append(row["n"]) or row)], [[{"n": n} for n in range(4)]])
    place = ("memory://engine/0.jsonl", 8)
    result = one(bench, skip=frozenset({place}), skip_reasons={place: "signal 11"})
    assert seen == [0, 2, 3]
    assert result.counts.quarantined == 1
    assert bench.out.quarantine[0][0]["message"] == "signal 11"


def test_careful_mode_tells_each_row_before_it_is_touched() -> None:
    told: list[tuple[int, str]] = []
    touched: list[int] = []

    def touch(row: dict[str, Any]) -> dict[str, Any]:
        assert len(told) == len(touched) + 1
        touched.append(row["n"])
        return row

    bench = Bench([step("map", touch)], [[{"n": n} for n in range(5)]], careful=True, before_row=lambda o, p, s: told.append((p, s)))
    one(bench)
    assert told == [(8 * n, "map") for n in range(5)]


def test_limit_counts_per_item_and_stops_reading() -> None:
    many = [{"n": n} for n in range(5000)]
    bench = Bench([step("limit", rows=3)], [many, many])
    results = bench.run()
    assert [len(rows) for rows in bench.out.rows.values()] == [3, 3]
    assert all(isinstance(result, AttemptResult) and result.counts.rows_in < 5000 for result in results.values())


class Counting:
    """A class step: made, set up and torn down once per process."""

    events: list[str] = []

    def setup(self) -> None:
        self.events.append("setup")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "seen": True}

    def teardown(self) -> None:
        self.events.append("teardown")


def test_class_steps_are_set_up_once_and_torn_down() -> None:
    Counting.events.clear()
    bench = Bench([step("map", Counting)], [ROWS, ROWS])
    bench.run()
    assert Counting.events == ["setup", "teardown"]
    assert bench.out.rows[1][0]["seen"]


class Broken:
    """Its setup fails."""

    def setup(self) -> None:
        raise OSError("no model")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def test_a_setup_that_fails_is_a_step_error() -> None:
    with pytest.raises(StepError, match="cannot be set up: OSError: no model"):
        Bench([step("map", Broken)], [ROWS])


def test_one_items_failure_leaves_the_others_alone() -> None:
    bench = Bench([step("map", boom)], [[{"n": 1}], [{"n": 3}], [{"n": 5}]])
    results = bench.run()
    assert [type(results[item]).__name__ for item in range(3)] == ["AttemptResult", "AttemptFailure", "AttemptResult"]
    assert set(bench.out.rows) == {0, 2}


def test_what_the_reader_counts_comes_with_the_result() -> None:
    body = b'{"n":1}\n\n{"n":3}\n'
    result = one(Bench([], [body]))
    assert (result.reader["bytes_read"], result.reader["blank_lines"]) == (len(body), 1)
    assert result.stats.bytes_read == len(body)
