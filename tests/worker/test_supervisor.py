"""A whole worker on a local folder: supervisor and children are real, faults are real (signals, memory, hangs)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cloudshard.errors import ChildCrashed, ErrorBudgetExceeded, RunFailed, StepError
from cloudshard.ledger.records import RunSettings
from tests.worker.harness import Run


def test_every_row_is_there_once_and_the_stage_is_sealed(tmp_path: Path) -> None:
    run = Run(tmp_path, items=20, rows=5)
    assert run.work() == 0
    assert run.missing() == []
    assert run.last.seal is not None
    assert run.last.seal.counts.rows_out == 100


def test_invariant_9_a_short_item_costs_two_ledger_writes_and_no_head(tmp_path: Path) -> None:
    run = Run(tmp_path, items=300, rows=2)
    assert run.work() == 0
    requests = run.last.roster.requests()
    assert requests["create"] <= 2.05 * 300
    assert requests.get("list", 0) <= 0.05 * 300
    assert "head" not in requests


def test_a_row_that_segfaults_is_found_and_quarantined_and_all_others_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, items=6, rows=10, crash_at=[23])
    assert run.work() == 0
    assert run.missing() == [23]
    assert run.last.seal is not None
    assert run.last.seal.counts.quarantined == 1
    assert run.failures() == [], "a crash whose row was found is no failed attempt"
    assert "SIGSEGV" in run.notes()


def test_items_queued_behind_the_one_that_crashes_are_run_by_others_under_the_same_claims(tmp_path: Path) -> None:
    run = Run(tmp_path, items=80, rows=1, exit_at=[40])
    assert run.work(processes=1) == 0
    assert run.missing() == [40]
    assert len(run.keys("stages/00/claims/")) == 80
    assert run.failures() == []


def test_several_poison_rows_in_one_item_are_found_one_after_the_other(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3, rows=10, exit_at=[11, 13, 18])
    assert run.work() == 0
    assert run.missing() == [11, 13, 18]


@pytest.mark.slow
def test_too_many_poison_rows_fail_the_attempt_and_the_next_attempt_knows_them(tmp_path: Path) -> None:
    run = Run(tmp_path, items=2, rows=10, exit_at=[1, 2, 3, 4])
    assert run.work(max_poison_rows_per_item=2) == 0
    assert run.missing() == [1, 2, 3, 4]
    (failure,) = run.failures()
    assert failure.kind == "crash"
    assert [row.position for row in failure.poison] == [1, 2, 3]
    assert "exit status 7" in failure.message
    assert "about to leave" in failure.traceback


@pytest.mark.slow
def test_batches_that_span_items_make_all_open_items_suspect_and_the_innocent_pass(tmp_path: Path) -> None:
    run = Run(tmp_path, items=8, rows=5, exit_at=[12], spans=True)
    assert run.work(processes=1) == 0
    assert run.missing() == [12]
    assert run.failures() == []


def test_a_hang_is_found_killed_and_its_row_quarantined(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3, rows=4, hang_at=[5])
    assert run.work(hang_seconds=0.8) == 0
    assert run.missing() == [5]
    assert "no row has moved for" in run.notes()


@pytest.mark.slow
def test_a_declared_long_call_is_no_hang(tmp_path: Path) -> None:
    run = Run(tmp_path, items=2, rows=1, row_seconds=1.2, long_call_seconds=30)
    assert run.work(hang_seconds=0.4) == 0
    assert run.missing() == []


@pytest.mark.slow
def test_invariant_6_a_long_call_keeps_its_lease(tmp_path: Path) -> None:
    settings = RunSettings(lease_seconds=3.0, lease_margin_seconds=0.5)
    run = Run(tmp_path, items=2, rows=1, row_seconds=4.5, settings=settings)
    assert run.work() == 0
    assert run.missing() == []
    assert len(run.keys("stages/00/claims/")) == 2, "one epoch each: the lease was renewed"
    assert run.last.roster.requests()["put"] >= 4


@pytest.mark.slow
def test_an_item_that_outgrows_its_memory_is_run_again_alone(tmp_path: Path) -> None:
    run = Run(tmp_path, items=4, rows=5, hoard_at=[7], hoard_mib=300)
    assert run.work(child_bytes=256 << 20, budget_bytes=2 << 30) == 0
    assert run.missing() == []
    assert run.failures() == []
    assert "alone, with all of the memory" in run.notes()


@pytest.mark.slow
def test_a_row_that_needs_more_than_all_memory_is_quarantined(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3, rows=5, hoard_at=[7], hoard_mib=500)
    assert run.work(child_bytes=200 << 20, budget_bytes=350 << 20) == 0
    assert run.missing() == [7]
    assert "oom" in run.notes()


def test_an_exception_fails_four_attempts_and_the_item_is_dead(tmp_path: Path) -> None:
    run = Run(tmp_path, items=4, rows=5, raise_at=[7])
    assert run.work() == 2
    assert isinstance(run.last.error, RunFailed)
    assert "row 7 is wrong" in str(run.last.error)
    failures = run.failures()
    assert [failure.epoch for failure in failures] == [1, 2, 3, 4]
    assert {failure.error_type for failure in failures} == {"ValueError"}
    assert run.missing() == [5, 6, 7, 8, 9]


def test_invariant_7_the_stores_failures_are_not_charged_to_the_item(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3, rows=3, store_fails_at=[4], once=str(tmp_path / "failed"))
    assert run.work() == 0
    assert run.failures() == []
    assert run.missing() == []


def test_a_setup_that_raises_ends_the_worker_with_one_sentence(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3, setup="raise")
    assert run.work() == 2
    assert isinstance(run.last.error, StepError)
    assert "no module named wrong" in str(run.last.error)
    assert run.failures() == []


@pytest.mark.slow
def test_a_setup_that_crashes_ends_the_worker_after_three_times(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3, setup="crash")
    assert run.work() == 2
    assert isinstance(run.last.error, ChildCrashed)
    assert run.failures() == []


def test_max_shards_stops_after_so_many_attempts_and_another_run_finishes(tmp_path: Path) -> None:
    run = Run(tmp_path, items=10, rows=3)
    assert run.work(max_shards=4) == 0
    assert len(run.keys("stages/00/commits/")) == 4
    assert run.last.seal is None
    assert run.work() == 0
    assert run.missing() == []


def test_a_complete_run_is_recognised(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3)
    assert run.work() == 0
    assert run.work() == 0
    assert run.last.seal is not None
    assert run.last.desk.totals.committed == 0


def test_the_error_budget_stops_the_run_before_it_is_sealed(tmp_path: Path) -> None:
    run = Run(tmp_path, items=4, rows=5, exit_at=[1, 6], settings=RunSettings(error_budget_rows=1))
    assert run.work() == 2
    assert isinstance(run.last.error, ErrorBudgetExceeded)
    assert run.keys("stages/00/sealed.json") == []


def test_what_user_code_logs_is_kept_and_attempts_that_log_nothing_leave_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, items=4, rows=5, log_at=[7])
    assert run.work() == 0
    (key,) = run.keys("logs/")
    assert b"row 7 looks odd" in run.store.get(key)


def test_the_worker_leaves_its_record(tmp_path: Path) -> None:
    run = Run(tmp_path, items=3)
    run.work()
    body = run.store.get("workers/w-test.json")
    assert b'"state":"ended"' in body
    assert b'"items_committed":3' in body


@pytest.mark.slow
def test_a_teardown_that_never_ends_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudshard.worker.supervisor._LEAVE_SECONDS", 0.5)
    run = Run(tmp_path, items=2, teardown_seconds=60)
    began = time.monotonic()
    assert run.work() == 0
    assert time.monotonic() - began < 5
