"""How many items a worker holds."""

from __future__ import annotations

import pytest

from cloudshard.worker.pacing import MAX_AHEAD, MAX_DEPTH, Pace


def pace_of(seconds: float | None, **options: bool) -> Pace:
    pace = Pace(60.0, **options)
    if seconds is not None:
        pace.learn(seconds)
    return pace


def test_at_first_one_item_per_child() -> None:
    assert pace_of(None).claims_wanted(children=4, held=0, idle=4, unclaimed=1000) == 4
    assert pace_of(None).claims_wanted(children=4, held=4, idle=0, unclaimed=1000) == 0


@pytest.mark.parametrize(("seconds", "ahead"), [(0.001, MAX_AHEAD), (0.1, 40), (0.5, 8), (3.0, 5)])
def test_about_a_second_of_work_ahead_and_at_least_one_more_than_children(seconds: float, ahead: int) -> None:
    assert pace_of(seconds).claims_wanted(children=4, held=0, idle=4, unclaimed=10_000) == 4 + ahead


def test_long_items_are_not_claimed_ahead() -> None:
    assert pace_of(30.0).claims_wanted(children=4, held=4, idle=0, unclaimed=1000) == 0
    assert pace_of(30.0).claims_wanted(children=4, held=3, idle=1, unclaimed=1000) == 1


def test_an_item_that_runs_for_long_counts_before_it_ends() -> None:
    pace = pace_of(0.1)
    pace.learn_at_least(40.0)
    assert pace.claims_wanted(children=2, held=2, idle=0, unclaimed=1000) == 0
    pace.learn_at_least(1.0)
    assert pace.item_seconds == 40.0


def test_near_the_end_one_item_per_idle_child() -> None:
    pace = pace_of(0.001)
    assert pace.claims_wanted(children=4, held=4, idle=0, unclaimed=7) == 0
    assert pace.claims_wanted(children=4, held=2, idle=2, unclaimed=7) == 2
    assert pace.claims_wanted(children=4, held=3, idle=3, unclaimed=7) == 1, "two of the held ones wait already"
    assert pace.claims_wanted(children=4, held=0, idle=4, unclaimed=2) == 2


def test_a_few_at_a_time_are_not_worth_a_look_into_the_ledger() -> None:
    pace = pace_of(0.001)
    assert pace.claims_wanted(children=2, held=2 + MAX_AHEAD - 3, idle=0, unclaimed=1000) == 0
    assert pace.claims_wanted(children=2, held=2 + MAX_AHEAD // 2, idle=0, unclaimed=1000) == MAX_AHEAD // 2


def test_no_more_is_wanted_than_there_is() -> None:
    assert pace_of(0.001).claims_wanted(children=2, held=0, idle=2, unclaimed=9) == 9


@pytest.mark.parametrize(("seconds", "depth"), [(None, 1), (10.0, 1), (0.05, 2), (0.01, 6), (0.001, MAX_DEPTH), (0.0, MAX_DEPTH)])
def test_tiny_items_are_queued_in_the_child(seconds: float | None, depth: int) -> None:
    assert pace_of(seconds).depth() == depth


def test_batches_that_span_items_get_the_next_items_rows_in_time() -> None:
    pace = pace_of(100.0, spans_items=True)
    assert pace.depth() == 3
    assert pace.claims_wanted(children=2, held=2, idle=0, unclaimed=1000) == 2
