"""Small parts of the worker: store calls beside the loop, logs, exceptions as data, the error budget."""

from __future__ import annotations

import logging
import select
import threading
import time
from typing import Any, cast

import msgspec
import pytest

from cloudshard.errors import DiskFull, ErrorBudgetExceeded, PermissionDenied, RowError, StepError, Throttled
from cloudshard.ledger.records import CommitRecord, RowCounts, RunSettings, WorkItem
from cloudshard.worker.attempt_log import MAX_RECORDS, AttemptLog
from cloudshard.worker.budget import ErrorBudget
from cloudshard.worker.calls import StoreCalls
from cloudshard.worker.execution import trouble_of


def fail(error: Exception) -> None:
    raise error


# ---------------------------------------------------------------- calls


def test_results_come_back_into_the_loops_thread() -> None:
    calls = StoreCalls(4)
    seen: list[Any] = []
    mine = threading.get_ident()
    calls.submit(threading.get_ident, lambda ident: seen.append((ident != mine, threading.get_ident() == mine)), fail)
    calls.submit(lambda: 1 // 0, fail, lambda error: seen.append(type(error)))
    assert calls.wait(5)
    assert sorted(map(str, seen)) == sorted(map(str, [(True, True), ZeroDivisionError]))
    calls.close()


def test_many_calls_run_at_once_but_no_more_than_the_limit() -> None:
    calls = StoreCalls(3)
    running, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    for _ in range(30):
        calls.submit(call, lambda _: None, fail)
    assert calls.wait(5)
    assert most == 3
    calls.close()


def test_no_wake_up_is_lost() -> None:
    calls = StoreCalls(8)
    poll = select.poll()
    poll.register(calls, select.POLLIN)
    done = 0

    def count(_: None) -> None:
        nonlocal done
        done += 1

    for _ in range(2000):
        calls.submit(lambda: None, count, fail)
        if done % 3 == 0:
            calls.deliver()
    while done < 2000:
        assert poll.poll(2000), f"{done} of 2000 results came, and nothing woke the loop"
        calls.deliver()
    calls.close()


# ---------------------------------------------------------------- logs and errors


def record_of(message: Any, *args: Any) -> logging.LogRecord:
    return logging.LogRecord("user", logging.WARNING, __file__, 1, message, args, None)


def test_an_attempt_log_is_bounded_and_survives_arguments_that_do_not_fit() -> None:
    log = AttemptLog()
    assert log.take() is None
    log.emit(record_of("%d rows", "three"))
    for _ in range(MAX_RECORDS + 10):
        log.emit(record_of("row %s", object))
    body = log.take()
    assert body is not None
    lines = [msgspec.json.decode(line) for line in body.splitlines()]
    assert len(lines) == MAX_RECORDS + 1
    assert "%d rows" in lines[0]["message"]
    assert "11 more records" in lines[-1]["message"]
    assert log.take() is None


def test_exceptions_as_data() -> None:
    cause = ValueError("bad")
    error = StepError("step x failed", step="x", where="o, byte 3", traceback="Traceback: user")
    error.__cause__ = cause
    trouble = trouble_of(error)
    assert (trouble.error_type, trouble.step, trouble.where, trouble.traceback) == ("ValueError", "x", "o, byte 3", "Traceback: user")
    assert trouble_of(RowError("no JSON", object="o", position=5)).where == "o, byte 5"
    assert trouble_of(RuntimeError()).message == "RuntimeError"


@pytest.mark.parametrize(("error", "kind"), [(MemoryError("x"), "oom"), (ValueError("x"), "error")])
def test_lack_of_memory_is_told_from_other_errors(error: Exception, kind: str) -> None:
    assert trouble_of(error).kind == kind
    wrapped = StepError("x", step="s")
    wrapped.__cause__ = error
    assert trouble_of(wrapped).kind == kind


@pytest.mark.parametrize("error", [Throttled("slow down"), PermissionDenied("no"), DiskFull("full")])
def test_invariant_7_whose_fault_it_is(error: Exception) -> None:
    assert trouble_of(error).infrastructure
    assert trouble_of(error).denied == isinstance(error, PermissionDenied)
    assert not trouble_of(KeyError("x")).infrastructure


# ---------------------------------------------------------------- budget


class FakeStage:
    number = 0

    def __init__(self, *counts: tuple[int, int]) -> None:
        self.items = [WorkItem(i, "shard", (), 100) for i in range(len(counts))]
        self.commits = [commit_of(i, *count) for i, count in enumerate(counts)]

    def records(self) -> list[CommitRecord]:
        return self.commits


def commit_of(item: int, rows: int, bad: int) -> CommitRecord:
    counts = RowCounts(rows_in=rows, rows_out=rows - bad, quarantined=bad)
    return CommitRecord(stage=0, item=item, epoch=1, nonce="n", worker="w", host="h", started=0.0, finished=1.0, parts=(), counts=counts)


def budget_of(stage: FakeStage, **limits: Any) -> ErrorBudget:
    budget = ErrorBudget(RunSettings(**limits))
    budget.begin(cast("Any", stage))
    return budget


def test_the_budget_of_rows_stops_at_once() -> None:
    stage = FakeStage((100, 3), (100, 3))
    budget = budget_of(stage, error_budget_rows=5)
    assert budget.add(stage.commits[0], 100) is None
    assert isinstance(budget.add(stage.commits[1], 100), ErrorBudgetExceeded)


def test_the_budget_of_a_fraction_waits_while_the_rest_may_be_good() -> None:
    stage = FakeStage(*[(1000, 30)] + [(1000, 0)] * 9)
    budget = budget_of(stage, error_budget_fraction=0.01)
    assert budget.add(stage.commits[0], 100) is None, "30 bad rows of about 10,000"
    budget.check_all(cast("Any", stage))


def test_the_budget_of_a_fraction_stops_when_the_rest_cannot_help() -> None:
    stage = FakeStage(*[(1000, 500)] * 10)
    budget = budget_of(stage, error_budget_fraction=0.01)
    assert isinstance(budget.add(stage.commits[0], 100), ErrorBudgetExceeded)
    with pytest.raises(ErrorBudgetExceeded, match="5000 of 10000 rows"):
        budget.check_all(cast("Any", stage))


def test_no_budget_no_counting() -> None:
    stage = FakeStage((10, 10))
    budget = budget_of(stage)
    assert budget.add(stage.commits[0], 100) is None
    budget.check_all(cast("Any", stage))
