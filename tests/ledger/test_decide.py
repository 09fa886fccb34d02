"""What to do about an item, as a table."""

from __future__ import annotations

import pytest

from cloudshard.ledger.decide import Decision, ItemSeen, LeaseSeen, State, decide, memory_class
from cloudshard.ledger.records import RunSettings

SETTINGS = RunSettings(lease_seconds=60.0, max_retries=3, max_takeovers=5)
NOW = 1000.0


def seen(**fields: object) -> ItemSeen:
    return ItemSeen(7, **fields)  # type: ignore[arg-type]


def test_untouched_is_free_at_epoch_one() -> None:
    assert decide(seen(), NOW, SETTINGS) == Decision(State.FREE, next_epoch=1)


def test_commit_beats_everything() -> None:
    item = seen(committed=True, claims={1: LeaseSeen(NOW)}, failures={1, 2, 3, 4}, dead={4})
    assert decide(item, NOW, SETTINGS).state is State.COMMITTED


@pytest.mark.parametrize(("age", "state"), [(0.0, State.BUSY), (60.0, State.BUSY), (60.1, State.FREE)])
def test_a_lease_ends_by_the_servers_clock(age: float, state: State) -> None:
    assert decide(seen(claims={1: LeaseSeen(NOW - age)}), NOW, SETTINGS).state is state


def test_a_longer_lease_of_its_own_is_respected() -> None:
    assert decide(seen(claims={1: LeaseSeen(NOW - 100, lease_seconds=300.0)}), NOW, SETTINGS).state is State.BUSY


def test_released_is_free_at_once_and_nobody_vanished() -> None:
    decision = decide(seen(claims={1: LeaseSeen(NOW, released=True)}), NOW, SETTINGS)
    assert (decision.state, decision.next_epoch, decision.vanished) == (State.FREE, 2, ())


def test_failed_is_free_at_the_next_epoch_though_its_lease_runs() -> None:
    decision = decide(seen(claims={1: LeaseSeen(NOW)}, failures={1}), NOW, SETTINGS)
    assert (decision.state, decision.next_epoch, decision.vanished) == (State.FREE, 2, ())


def test_only_the_newest_epoch_holds() -> None:
    claims = {1: LeaseSeen(NOW - 500), 2: LeaseSeen(NOW - 1)}
    assert decide(seen(claims=claims), NOW, SETTINGS).state is State.BUSY


@pytest.mark.parametrize(("failures", "state"), [(3, State.FREE), (4, State.EXHAUSTED)])
def test_invariant_7_three_retries_are_four_failed_attempts(failures: int, state: State) -> None:
    epochs = set(range(1, failures + 1))
    item = seen(claims={epoch: LeaseSeen(NOW - 500) for epoch in epochs}, failures=epochs)
    assert decide(item, NOW, SETTINGS).state is state


def test_invariant_7_vanished_holders_are_no_failures() -> None:
    item = seen(claims={epoch: LeaseSeen(NOW - 500) for epoch in range(1, 5)})
    decision = decide(item, NOW, SETTINGS)
    assert (decision.state, decision.next_epoch, decision.vanished, decision.isolate) == (State.FREE, 5, (1, 2, 3, 4), False)


def test_a_fifth_vanished_holder_isolates_the_item() -> None:
    item = seen(claims={epoch: LeaseSeen(NOW - 500) for epoch in range(1, 6)})
    assert decide(item, NOW, SETTINGS).isolate


def test_dead_until_revived_and_then_failures_start_anew() -> None:
    item = seen(claims={epoch: LeaseSeen(NOW - 500) for epoch in range(1, 5)}, failures={1, 2, 3, 4}, dead={4})
    assert decide(item, NOW, SETTINGS).state is State.DEAD
    item.revived = 4
    decision = decide(item, NOW, SETTINGS)
    assert (decision.state, decision.next_epoch) == (State.FREE, 5)
    assert item.counted_failures == 0


def test_the_same_memory_is_not_tried_twice() -> None:
    assert [memory_class(ooms) for ooms in (0, 1, 2, 9)] == [0, 1, 2, 2]
