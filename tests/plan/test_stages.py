"""Fusing steps into stages."""

from __future__ import annotations

from functools import partial

from cloudshard.plan.logical import Checkpoint, Step
from cloudshard.plan.stages import fuse, step_names
from cloudshard.plan.values import StepSpec


def spec(name, kind="map", **params):
    return StepSpec(kind=kind, name=name, params=params)


A, B, C = spec("01-map-a"), spec("02-map-b"), spec("03-map-c")
LIMIT = spec("02-limit", "limit", rows=10)


def shape(steps, item_count=5):
    chains, _ = fuse(steps, item_count=item_count)
    return [([s.name for s in chain.steps], chain.boundary, chain.rows) for chain in chains]


def test_all_steps_fuse_into_one_stage():
    assert shape([A, B, C]) == [(["01-map-a", "02-map-b", "03-map-c"], None, None)]
    assert shape([]) == [([], None, None)]


def test_a_checkpoint_ends_a_stage_and_says_why():
    assert shape([A, None, B]) == [(["01-map-a"], "checkpoint", None), (["02-map-b"], None, None)]
    assert shape([A, None, None, B]) == shape([A, None, B])
    assert shape([None, B]) == [([], "checkpoint", None), (["02-map-b"], None, None)]
    assert "checkpoint" in fuse([A, None, B], item_count=5)[0][0].reason


def test_a_checkpoint_right_before_the_sink_is_left_out_with_a_warning():
    chains, warnings = fuse([A, None], item_count=5)
    assert [chain.boundary for chain in chains] == [None]
    assert len(warnings) == 1


def test_a_limit_over_several_items_needs_a_boundary():
    assert shape([A, LIMIT, B]) == [(["01-map-a", "02-limit"], "limit", 10), (["02-map-b"], None, None)]
    assert shape([A, LIMIT]) == [(["01-map-a", "02-limit"], "limit", 10), ([], None, None)]
    assert "10 rows" in fuse([LIMIT], item_count=5)[0][0].reason
    assert shape([A, LIMIT, None, B]) == shape([A, LIMIT, B])  # the limit has written the rows down already


def test_a_limit_over_one_item_needs_none_unless_the_items_follow_from_a_stage_before():
    assert shape([A, LIMIT, B], item_count=1) == [(["01-map-a", "02-limit", "02-map-b"], None, None)]
    assert [boundary for _, boundary, _ in shape([A, None, LIMIT], item_count=1)] == ["checkpoint", "limit", None]


def test_names_have_number_kind_and_word():
    class Model:
        def run(self):
            pass

    steps = [
        Step(kind="map", function="pkg.mod:clean"),
        Checkpoint(),
        Step(kind="filter", function=lambda row: True),
        Step(kind="sql", params={"query": "select 1"}),
        Step(kind="map_batches", function=Model),
        Step(kind="map", function=partial(print)),
        Step(kind="sql", label="My columns!"),
        Step(kind="limit", params={"rows": 1}),
    ]
    names = step_names(steps)
    assert names[:4] == ["01-map-clean", "checkpoint", "02-filter-lambda", "03-sql"]
    assert names[4:] == ["04-map_batches-Model", "05-map-print", "06-sql-My-columns", "07-limit"]
    assert len(set(names)) == len(names)
