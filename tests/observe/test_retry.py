"""Retry: append-only, all or nothing, never under a live claim."""

from __future__ import annotations

import pytest

from cloudshard.errors import RecipeError
from cloudshard.observe.retry import parse_item, revive
from cloudshard.observe.status import read_status
from tests.observe.builder import BuiltRun


def keys_of(run: BuiltRun) -> set[str]:
    return {info.key for page in run.store.list() for info in page.objects}


def test_all_failed_revives_the_dead_and_only_adds_records() -> None:
    run = BuiltRun()
    run.die(1)
    run.die(3)
    run.fail(0)
    before = keys_of(run)
    report = revive(run.store, None, by="me")
    assert [(r.stage, r.item, r.epoch, r.failures) for r in report.revived] == [(0, 1, 2, 2), (0, 3, 2, 2)]
    assert before < keys_of(run)
    assert read_status(run.store).exit_code == 1


def test_reviving_twice_finds_nothing_more() -> None:
    run = BuiltRun()
    run.die(1)
    assert revive(run.store, None, by="me").revived
    again = revive(run.store, [(0, 1)], by="me")
    assert (again.revived, again.untouched) == ([], ["0/1"])


def test_a_failed_but_not_dead_item_may_be_revived_by_name() -> None:
    run = BuiltRun()
    run.fail(2)
    assert [r.failures for r in revive(run.store, [(0, 2)], by="me").revived] == [1]


def test_an_item_that_spent_its_budget_without_a_dead_record_yet_is_revived() -> None:
    run = BuiltRun()
    run.fail(2, epoch=1)
    run.fail(2, epoch=2)
    assert [r.item for r in revive(run.store, None, by="me").revived] == [2]


def test_a_live_claim_refuses_everything() -> None:
    run = BuiltRun()
    run.die(1)
    run.fail(2)
    run.claim(2, epoch=2, worker="busy-worker")
    before = keys_of(run)
    with pytest.raises(RecipeError, match=r"item 0/2 is being worked on by busy-worker; its lease runs for another 60 s"):
        revive(run.store, [(0, 1), (0, 2)], by="me")
    assert keys_of(run) == before


@pytest.mark.parametrize("end", ["old", "released"])
def test_a_claim_that_is_over_does_not_refuse(end: str) -> None:
    run = BuiltRun()
    run.fail(2)
    run.claim(2, epoch=2, state="released" if end == "released" else "held")
    run.clock.now += 61 if end == "old" else 0
    assert [r.epoch for r in revive(run.store, [(0, 2)], by="me").revived] == [2]


@pytest.mark.parametrize(("item", "words"), [((0, 4), "no item 4"), ((1, 0), "no stage 1"), ((0, 0), "committed")])
def test_what_cannot_be_retried_is_said(item: tuple[int, int], words: str) -> None:
    run = BuiltRun()
    run.commit(0)
    with pytest.raises(RecipeError, match=words):
        revive(run.store, [item], by="me")


@pytest.mark.parametrize("text", ["7", "a/1", "1/", "-1/2", "1/2/3", ""])
def test_items_are_spelt_stage_slash_index(text: str) -> None:
    with pytest.raises(RecipeError, match="names no work item"):
        parse_item(text)
    assert parse_item("2/17") == (2, 17)
