"""Status: states from key names, ages by the store's clock, failures by cause, bounded reading."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest

from cloudshard.errors import RecipeError
from cloudshard.observe import status as status_module
from cloudshard.observe.status import RunStatus, read_status
from cloudshard.store.memory import MemoryStore
from tests.observe.builder import BuiltRun


def states(status: RunStatus, stage: int = 0) -> dict[str, int]:
    return {name: count for name, count in msgspec.to_builtins(status.stages[stage].items).items() if count}


def test_a_fresh_run_is_idle_and_pending() -> None:
    run = BuiltRun()
    status = read_status(run.store)
    assert (status.state, status.exit_code, states(status)) == ("idle", 1, {"pending": 4})


def test_every_state_is_told_from_key_names_and_the_stores_clock() -> None:
    run = BuiltRun(items=(8,))
    run.claim(0)  # will be stale
    run.claim(7, state="released")
    run.clock.now += 100
    run.claim(1)
    run.commit(2)
    run.die(3)
    run.fail(4)  # one failure of two: pending again
    run.die(5)
    run.revive(5)
    status = read_status(run.store, every_item=True)
    assert status.items is not None
    assert [item.state for item in status.items] == ["stale", "running", "done", "failed", "pending", "pending", "pending", "pending"]
    assert states(status) == {"stale": 1, "running": 1, "done": 1, "failed": 1, "pending": 4}
    assert status.exit_code == 2
    assert {(c.item, c.state, c.lease_age_seconds) for c in status.claims} == {
        (0, "stale", 100.0),
        (1, "held", 0.0),
        (7, "released", 100.0),
    }


def test_a_lease_of_another_length_than_usual_counts_as_it_says() -> None:
    run = BuiltRun()
    run.claim(0, lease=600.0)
    run.clock.now += 100
    status = read_status(run.store)
    assert states(status) == {"running": 1, "pending": 3}
    assert status.state == "running"


def test_a_commit_record_beats_a_dead_record() -> None:
    run = BuiltRun()
    run.die(0)
    run.commit(0, epoch=3)
    assert states(read_status(run.store)) == {"done": 1, "pending": 3}


def test_a_complete_run_counts_from_its_seals() -> None:
    run = BuiltRun(items=(3, 2)).complete()
    status = read_status(run.store)
    assert (status.state, status.exit_code) == ("complete", 0)
    assert [(stage.rows_in, stage.rows_out, stage.filtered, stage.parts) for stage in status.stages] == [(30, 24, 6, 3), (24, 20, 4, 2)]


def test_a_stage_that_waits_has_no_item_count() -> None:
    status = read_status(BuiltRun(items=(3, 2)).store)
    assert [(stage.started, stage.item_count) for stage in status.stages] == [(True, 3), (False, None)]


def test_failures_are_grouped_by_cause_without_their_variable_pieces() -> None:
    run = BuiltRun(items=(6,))
    for item in range(4):
        run.fail(item, message=f"bad value {item} in 'row {item}'\nTraceback …")
    run.fail(5, message="something else")
    groups = read_status(run.store).failures
    assert [(group.attempts, group.item_count, group.items) for group in groups] == [(4, 4, [0, 1, 2, 3]), (1, 1, [5])]
    assert groups[0].message.startswith("bad value")
    assert "\n" not in groups[0].message


def test_workers_are_as_old_as_the_store_says_and_a_renewed_lease_counts() -> None:
    run = BuiltRun()
    run.worker("w1", seen=5.0)  # a wrong wall clock on the worker does not matter
    run.worker("w2")
    run.clock.now += 30
    run.claim(0, worker="w2")
    run.clock.now += 10
    assert {w.worker: w.seen_seconds_ago for w in read_status(run.store).workers} == {"w1": 40.0, "w2": 10.0}


def test_the_eta_goes_by_bytes() -> None:
    run = BuiltRun()  # weights 100, 200, 300, 400
    run.claim(0)
    run.claim(1)
    run.clock.now += 10
    run.commit(0)
    run.commit(1)
    run.claim(2)
    status = read_status(run.store)
    assert status.bytes_per_second == pytest.approx(30.0)
    assert status.eta_seconds == pytest.approx(700 / 30)
    assert (status.stages[0].input_bytes, status.stages[0].input_bytes_done) == (1000, 300)


def test_single_commit_records_are_opened_up_to_a_bound_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = BuiltRun(items=(6,))
    for item in range(5):
        run.commit(item)
    monkeypatch.setattr(status_module, "COMMITS_OPENED", 2)
    stage = read_status(run.store).stages[0]
    assert (stage.commits_counted, stage.rows_exact, stage.rows_in, stage.items.done) == (2, False, 20, 5)


def test_block_summaries_spare_the_single_records() -> None:
    run = BuiltRun(items=(300,))
    for item in range(256):
        run.commit(item)
    run.summarise(0)
    with mock.patch.object(run.store, "get", wraps=run.store.get) as get:
        stage = read_status(run.store).stages[0]
    assert stage.rows_in == 2560
    assert not [call for call in get.call_args_list if "/commits/" in call.args[0]]


def test_no_run_is_one_clear_error() -> None:
    with pytest.raises(RecipeError, match="no run"):
        read_status(MemoryStore("empty"))
