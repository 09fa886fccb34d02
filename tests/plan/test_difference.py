"""What a person is told when a run's prefix belongs to another plan."""

from __future__ import annotations

import copy

import pytest

from cloudshard.plan.difference import describe_differences
from cloudshard.plan.fingerprint import NAMED_INPUTS, fingerprint_fields, fingerprint_of, input_fields
from cloudshard.plan.values import FunctionRef, SinkSpec, SourceSpec, StepSpec


def step(name, kind="map", code="aaaa", arguments=None, **more):
    function = FunctionRef(kind="import", name=f"m:{name}", digest=code, arguments=arguments or {}) if kind == "map" else None
    return StepSpec(kind=kind, name=name, function=function, **more)


def fields(**changes):
    given = {
        "source": SourceSpec(format="jsonl", options={"max_row_bytes": 10}),
        "declared_schema": None,
        "steps": [step("01-map-clean"), step("02-map-score", arguments={"n": 1}), step("03-sql", "sql", params={"query": "select 1"})],
        "sink": SinkSpec(format="parquet", url="s3://b/out"),
        "sink_schema": None,
        "parameters": {"min_words": 50},
        "sharding": {"num_shards": None, "target_bytes": 128},
        "objects": [(f"s3://b/{n}", 10 * n, f"e{n}") for n in range(5)],
    }
    return fingerprint_fields(**{**given, **changes})


def words(**changes):
    return [f"{d.field}: {d.planned} -> {d.given}" for d in describe_differences(fields(), fields(**changes))]


def test_equal_plans_have_equal_fingerprints_and_no_difference():
    assert words() == []
    assert fingerprint_of(fields()) == fingerprint_of(fields())
    assert len(fingerprint_of(fields())) == 32


CHANGES = {
    "parameter": ({"parameters": {"min_words": 60}}, ["parameter min_words: 50 -> 60"]),
    "new parameter": ({"parameters": {"min_words": 50, "x": True}}, ["parameter x: absent -> true"]),
    "code": (
        {
            "steps": [
                step("01-map-clean", code="bbbb"),
                *[step("02-map-score", arguments={"n": 1}), step("03-sql", "sql", params={"query": "select 1"})],
            ]
        },
        ["step 01-map-clean: code changed: aaaa -> bbbb"],
    ),
    "argument": (
        {"steps": [step("01-map-clean"), step("02-map-score", arguments={"n": 2}), step("03-sql", "sql", params={"query": "select 1"})]},
        ["step 02-map-score: argument n: 1 -> 2"],
    ),
    "query": (
        {"steps": [step("01-map-clean"), step("02-map-score", arguments={"n": 1}), step("03-sql", "sql", params={"query": "select 2"})]},
        ["step 03-sql: query: select 1 -> select 2"],
    ),
    "on_error": (
        {
            "steps": [
                step("01-map-clean", on_error="drop"),
                step("02-map-score", arguments={"n": 1}),
                step("03-sql", "sql", params={"query": "select 1"}),
            ]
        },
        ["step 01-map-clean: on_error: raise -> drop"],
    ),
    "step added in front": (
        {
            "steps": [
                step("01-map-new"),
                step("02-map-clean"),
                step("03-map-score", arguments={"n": 1}),
                step("04-sql", "sql", params={"query": "select 1"}),
            ]
        },
        ["step 01-map-new: absent -> added", "step 02-map-clean: function: m:01-map-clean -> m:02-map-clean"],
    ),
    "step removed": ({"steps": [step("01-map-clean"), step("02-map-score", arguments={"n": 1})]}, ["step 03-sql: sql -> removed"]),
    "checkpoint": (
        {
            "steps": [
                step("01-map-clean"),
                None,
                step("02-map-score", arguments={"n": 1}),
                step("03-sql", "sql", params={"query": "select 1"}),
            ]
        },
        ["step checkpoint: absent -> added"],
    ),
    "format": ({"source": SourceSpec(format="csv", options={"max_row_bytes": 10})}, ["source format: jsonl -> csv"]),
    "option": ({"source": SourceSpec(format="jsonl", options={"max_row_bytes": 11})}, ["source option max_row_bytes: 10 -> 11"]),
    "output": ({"sink": SinkSpec(format="parquet", url="s3://b/other")}, ["sink url: s3://b/out -> s3://b/other"]),
    "sharding": (
        {"sharding": {"num_shards": 10, "target_bytes": None}},
        ["sharding num_shards: none -> 10", "sharding target_bytes: 128 -> none"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_named_in_words_and_changes_the_fingerprint(change):
    changes, expected = CHANGES[change]
    assert [found for found in words(**changes) if found in expected] == expected
    if change != "step added in front":
        assert words(**changes) == expected
    assert fingerprint_of(fields()) != fingerprint_of(fields(**changes))


def test_input_changes_name_the_objects():
    objects = [
        ("s3://b/0", 0, "e0"),
        ("s3://b/1", 10, "CHANGED"),
        ("s3://b/2", 20, "e2"),
        ("s3://b/3", 30, "e3"),
        *((f"s3://b/n{n}", 1, "e") for n in range(4)),
    ]
    (found,) = words(objects=objects)
    assert "4 objects added: s3://b/n0, s3://b/n1, s3://b/n2, …" in found
    assert "1 object removed: s3://b/4" in found
    assert "1 object changed: s3://b/1" in found
    assert "5 objects, 100 bytes" in found
    assert "8 objects, 64 bytes" in found


def test_many_inputs_are_a_digest_not_a_list():
    many = [(f"s3://b/{n:06d}", 1, "e") for n in range(NAMED_INPUTS + 1)]
    found = input_fields(many)
    assert "named" not in found
    assert found["objects"] == NAMED_INPUTS + 1
    assert found["digest"] != input_fields([*many[:-1], ("s3://b/x", 1, "e")])["digest"]
    assert len(input_fields(many[:-1])["named"]) == NAMED_INPUTS
    (difference,) = words(objects=many)
    assert difference.startswith("inputs: 5 objects")


def test_fields_survive_json_and_later_fields_are_compared_too():
    import json

    before = fields()
    after = json.loads(json.dumps(before))
    assert describe_differences(before, after) == ()
    newer = copy.deepcopy(after) | {"version": 2}
    assert [d.field for d in describe_differences(before, newer)] == ["plan version"]
    assert describe_differences({}, before)  # an empty record is different, not an error


def test_what_differs_between_workers_does_not_count():
    assert fingerprint_of(fields()) == fingerprint_of(
        fields(sink=SinkSpec(format="parquet", url="s3://b/out", store_options={"region": "x"}))
    )
