"""The ladder of an attempt whose process died, as pure decisions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cloudshard.ledger.claims import Claim
from cloudshard.ledger.records import ClaimRecord, RunSettings, WorkItem
from cloudshard.worker.pulse import RowPlace
from cloudshard.worker.task import Task, after_death


def claim_of(**changes: Any) -> Claim:
    record = ClaimRecord(stage=0, item=7, epoch=3, worker="w", nonce="abcd", host="h", pid=1, started=0.0)
    return Claim(record, WorkItem(7, "shard", ()), RunSettings(), 60.0, **changes)


def task_of(**changes: Any) -> Task:
    return Task.of(claim_of(**changes), cast("Any", None), 0.0)


ROW = RowPlace("s3://b/x", 120, "02-map-clean")


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_crash_or_hang_is_run_again_carefully(kind: Any) -> None:
    task = task_of()
    assert after_death(task, kind, "killed", None).failure is None
    assert task.careful
    assert task.single
    assert not task.alone


def test_lack_of_memory_gets_the_machine_alone_first_and_is_looked_into_afterwards() -> None:
    task = task_of()
    assert after_death(task, "oom", "2 GiB", None).failure is None
    assert (task.alone, task.careful) == (True, False)
    assert after_death(task, "oom", "9 GiB", None).failure is None
    assert (task.alone, task.careful) == (True, True)


def test_lack_of_memory_is_looked_into_at_once_when_there_is_no_more() -> None:
    task = task_of()
    after_death(task, "oom", "2 GiB", None, may_grow=False)
    assert (task.alone, task.careful) == (False, True)


def test_the_row_in_hand_of_a_careful_run_is_poison_and_the_run_goes_on_without_it() -> None:
    task = task_of()
    after_death(task, "crash", "killed", None)
    assert after_death(task, "crash", "signal 11", ROW).failure is None
    (row,) = task.found
    assert (row.object, row.position, row.step) == ("s3://b/x", 120, "02-map-clean")
    assert "signal 11" in row.reason
    assert task.assignment(5).poison == (row,)


def test_a_careful_run_that_dies_outside_any_row_fails() -> None:
    task = task_of()
    after_death(task, "crash", "killed", None)
    failure = after_death(task, "crash", "signal 6", None, output="last words").failure
    assert failure is not None
    assert (failure.kind, failure.error_type, failure.traceback) == ("crash", "ProcessCrashed", "last words")
    assert "outside any row" in failure.message


def test_a_row_that_was_to_be_skipped_and_kills_again_fails_the_attempt() -> None:
    task = task_of()
    after_death(task, "crash", "killed", None)
    after_death(task, "crash", "signal 11", ROW)
    assert after_death(task, "crash", "signal 11", ROW).failure is not None


def test_more_poison_rows_than_allowed_fail_the_attempt_and_all_are_remembered() -> None:
    task = task_of()
    after_death(task, "crash", "killed", None)
    for position in range(3):
        assert after_death(task, "crash", "x", RowPlace("o", position), max_poison_rows=3).failure is None
    failure = after_death(task, "crash", "x", RowPlace("o", 3), max_poison_rows=3).failure
    assert failure is not None
    assert failure.where == "o, position 3"
    assert len(task.found) == 4


def test_an_item_that_made_several_holders_vanish_starts_alone_and_carefully() -> None:
    task = task_of(isolate=True)
    assert task.alone
    assert task.careful


def test_rows_known_from_earlier_attempts_are_skipped_with_their_reasons() -> None:
    place = ("o", 4)
    task = task_of(poison=frozenset([place]), poison_reasons={place: "it hung"})
    (row,) = task.assignment(1).poison
    assert (row.object, row.position, row.reason) == ("o", 4, "it hung")


def test_no_two_runs_under_one_claim_share_a_nonce() -> None:
    task = task_of()
    nonces = [task.assignment(ticket).nonce for ticket in range(1, 60)]
    assert nonces[0] == "abcd", "the first run's objects carry the claim's nonce"
    assert len(set(nonces)) == len(nonces)
