"""Planning as a whole, on real files: stages, work items, fingerprint, schemas, secrets."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloudshard.errors import RecipeError, SchemaError, StepError
from cloudshard.formats.schema import decode_schema
from cloudshard.plan import steps
from cloudshard.plan.build import build, survey
from cloudshard.plan.explain import S3_PRICES, explain
from cloudshard.plan.logical import Checkpoint, Pipeline, Sink, Source
from cloudshard.plan.values import Plan

CALLS: list[dict] = []


def double(row):
    CALLS.append(row)
    return {"id": row["id"], "double": row["id"] * 2}


def fails_on_seven(row):
    if row["id"] == 7:
        raise ValueError("seven")
    return row


def nothing(row):
    return None


def write_jsonl(folder, files):
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.fixture
def corpus(tmp_path):
    """Four files of 100 rows."""
    return write_jsonl(tmp_path / "in", {f"{n}.jsonl": [{"id": n * 100 + i, "text": "x" * 20} for i in range(100)] for n in range(4)})


def pipeline(urls, *chain, sink=None, format="jsonl", **more):
    made = Source(format, (urls,) if isinstance(urls, str) else tuple(urls), **more.pop("source", {}))
    return Pipeline(name="test", source=made, steps=chain, sink=sink or Sink("parquet", "memory://build-out"), **more)


def columns(encoded):
    return {field.name: str(field.type) for field in decode_schema(encoded)}


def test_one_stage_with_the_schema_that_the_function_makes(corpus):
    planned = build(pipeline(corpus, steps.map_step(double), steps.filter_step("double > 3"), num_shards=6))
    assert len(planned.items) == 6
    (stage,) = planned.plan.stages
    assert [step.name for step in stage.steps] == ["01-map-double", "02-sql-filter"]
    assert columns(stage.sink.schema) == {"id": "int64", "double": "int64"}
    assert stage.source.schema is None
    assert stage.boundary is None
    assert planned.plan.sharding == {"num_shards": 6, "target_bytes": None}
    assert planned.pickles == {}
    assert msgspec.json.decode(msgspec.json.encode(planned.plan), type=Plan) == planned.plan


def test_json_lines_need_no_schema_and_no_user_code_while_planning(corpus):
    CALLS.clear()
    planned = build(pipeline(corpus, steps.map_step(double), sink=Sink("jsonl", "memory://o")))
    assert planned.plan.stages[0].sink.schema is None
    declared = Sink("parquet", "memory://o", schema=pa.schema({"id": pa.int64(), "double": pa.int64()}))
    planned = build(pipeline(corpus, steps.map_step(double), sink=declared))
    assert columns(planned.plan.stages[0].sink.schema) == {"id": "int64", "double": "int64"}
    assert CALLS == []


def test_survey_runs_no_user_code_and_takes_the_same_fingerprint(corpus):
    CALLS.clear()
    made = pipeline(corpus, steps.map_step(double))
    surveyed = survey(made)
    assert CALLS == []
    planned = build(made, surveyed=surveyed)
    assert CALLS
    assert (planned.fingerprint, planned.fields, planned.items) == (surveyed.fingerprint, surveyed.fields, surveyed.items)


def test_inv8_planning_again_gives_the_same(corpus):
    made = pipeline(
        corpus, steps.map_step(lambda row: row), steps.limit_step(5), steps.map_step(fails_on_seven, on_error="drop"), num_shards=9
    )
    assert build(made) == build(made)


def test_the_fingerprint_follows_code_input_and_parameters(corpus, tmp_path):
    base = survey(pipeline(corpus, steps.map_step(lambda row: row), parameters={"a": 1})).fingerprint
    assert survey(pipeline(corpus, steps.map_step(lambda row: row), parameters={"a": 1})).fingerprint == base
    assert survey(pipeline(corpus, steps.map_step(lambda row: dict(row)), parameters={"a": 1})).fingerprint != base
    assert survey(pipeline(corpus, steps.map_step(lambda row: row), parameters={"a": 2})).fingerprint != base
    assert survey(pipeline(corpus, steps.map_step(lambda row: row), parameters={"a": 1}, num_shards=3)).fingerprint != base
    renamed = dataclasses.replace(pipeline(corpus, steps.map_step(lambda row: row), parameters={"a": 1}), name="other")
    assert survey(renamed).fingerprint == base
    (tmp_path / "in" / "9.jsonl").write_text('{"id": 1}\n')
    assert survey(pipeline(corpus, steps.map_step(lambda row: row), parameters={"a": 1})).fingerprint != base


def test_boundaries_have_runs_with_schemas_and_reasons(corpus):
    chain = (steps.map_step(double), Checkpoint(), steps.limit_step(7), steps.with_columns_step({"more": "double + 1"}))
    planned = build(pipeline(corpus, *chain, sink=Sink("jsonl", "memory://o"), num_shards=3))
    first, second, third = planned.plan.stages
    assert [stage.boundary for stage in planned.plan.stages] == ["checkpoint", "limit", None]
    assert second.boundary_params["rows"] == 7
    assert all(stage.reason for stage in (first, second))
    assert (first.sink.format, first.sink.url, second.source.format) == ("runs", None, "runs")
    assert columns(first.sink.schema) == columns(second.source.schema) == columns(third.source.schema) == {"id": "int64", "double": "int64"}
    assert (third.sink.format, third.sink.schema) == ("jsonl", None)


def test_lambdas_travel_as_pickles(corpus):
    planned = build(pipeline(corpus, steps.map_step(lambda row: row)))
    (key,) = planned.pickles
    assert planned.plan.stages[0].steps[0].function.key == key
    assert key.startswith("plan/functions/")
    assert planned.plan.uses_pickles


def test_secrets_stay_in_this_process(corpus):
    from cloudshard.store.options import options_for

    secret = {"key": "AKIA", "secret": "hush", "endpoint_url": "http://127.0.0.1:9"}
    sink = Sink("jsonl", "s3://bucket-of-test-build/out", storage_options=secret)
    planned = build(pipeline(corpus, sink=sink))
    assert planned.plan.stages[0].sink.store_options == {"endpoint_url": "http://127.0.0.1:9"}
    assert b"hush" not in msgspec.json.encode(planned.plan) + msgspec.json.encode(planned.fields)
    assert options_for("s3://bucket-of-test-build/out/part-1") == secret


# ---------------------------------------------------------------- schemas that differ


def test_null_only_in_one_file_and_a_key_that_appears_late_are_widened(tmp_path):
    files = {"0.jsonl": [{"a": None}] * 5, "1.jsonl": [{"a": 1}] * 5, "2.jsonl": [{"a": 1.5, "late": ["x"]}] * 5}
    planned = build(pipeline(write_jsonl(tmp_path / "in", files)))
    assert columns(planned.plan.stages[0].sink.schema) == {"a": "double", "late": "list<item: large_string>"}


def test_types_that_cannot_be_widened_name_both_files(tmp_path):
    folder = write_jsonl(tmp_path / "in", {"0.jsonl": [{"a": 1}], "1.jsonl": [{"a": {"b": 1}}]})
    with pytest.raises(SchemaError, match=r"column 'a' is int64 in file://.*/0\.jsonl and .* in file://.*/1\.jsonl"):
        build(pipeline(folder))


def test_rows_that_become_tables_at_once_get_one_input_schema(tmp_path):
    folder = write_jsonl(tmp_path / "in", {"0.jsonl": [{"a": 1}] * 3, "1.jsonl": [{"a": 1, "n": 5}] * 3})
    planned = build(pipeline(folder, steps.sample_step(1.0), steps.sql_step("select a, n from batch"), sink=Sink("jsonl", "memory://o")))
    assert columns(planned.plan.stages[0].source.schema) == {"a": "int64", "n": "int64"}
    untouched = build(pipeline(folder, steps.map_step(nothing), steps.sql_step("select a from batch"), sink=Sink("jsonl", "memory://o")))
    assert untouched.plan.stages[0].source.schema is None


def test_parquet_files_that_differ_get_one_input_schema(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "in" / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([1], pa.int64()), "b": ["x"]}), tmp_path / "in" / "1.parquet")
    (stage,) = build(pipeline(str(tmp_path / "in"), format="parquet")).plan.stages
    assert columns(stage.source.schema)["a"] == "int64"
    assert list(columns(stage.sink.schema)) == ["a", "b"]


def test_a_column_of_nulls_alone_is_warned_about(tmp_path):
    planned = build(pipeline(write_jsonl(tmp_path / "in", {"0.jsonl": [{"a": None}] * 5})))
    assert any("column a is null in all sampled rows" in warning for warning in planned.plan.warnings)


def test_an_empty_input_is_legal(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.jsonl").write_text("")
    planned = build(pipeline(str(tmp_path / "in"), steps.map_step(double), steps.filter_step("double > 1"), num_shards=4))
    assert planned.items == ()
    assert planned.plan.stages[0].sink.schema is not None


def test_when_all_rows_are_filtered_the_schema_must_be_declared(corpus):
    with pytest.raises(RecipeError, match=r"none of the 400 sampled rows comes through 01-map-nothing.*Declare them"):
        build(pipeline(corpus, steps.map_step(nothing)))


def test_a_wider_sample_finds_rare_rows(tmp_path):
    files = {f"{n:03d}.jsonl": [{"id": i, "rare": n == 30 and i == 150} for i in range(200)] for n in range(60)}
    folder = write_jsonl(tmp_path / "in", files)
    assert build(pipeline(folder, steps.filter_step("rare"))).plan.stages[0].sink.schema is not None


def test_steps_that_only_choose_rows_do_not_starve_the_sample(corpus):
    planned = build(pipeline(corpus, steps.sample_step(0.0), steps.limit_step(0), steps.map_step(double)))
    assert columns(planned.plan.stages[-1].sink.schema) == {"id": "int64", "double": "int64"}


def test_errors_of_user_code_appear_while_planning_unless_suppressed(corpus):
    with pytest.raises(StepError, match=r"seven"):
        build(pipeline(corpus, steps.map_step(fails_on_seven)))
    for policy in ("drop", "quarantine"):
        planned = build(pipeline(corpus, steps.map_step(fails_on_seven, on_error=policy)))
        assert columns(planned.plan.stages[0].sink.schema) == {"id": "int64", "text": "large_string"}


async def ask(row):
    return row


@pytest.mark.parametrize("step", [steps.map_async_step(ask), steps.map_step(double, long_call_seconds=600)])
def test_expensive_steps_do_not_run_while_planning(corpus, step):
    with pytest.raises(RecipeError, match=r"which is expensive.*Declare them"):
        build(pipeline(corpus, step))
    build(pipeline(corpus, step, sink=Sink("jsonl", "memory://o")))
    build(pipeline(corpus, step, sink=Sink("parquet", "memory://o", schema=pa.schema({"id": pa.int64()}))))


# ---------------------------------------------------------------- refusals


def test_wrong_options_are_refused_before_anything_runs(corpus):
    with pytest.raises(RecipeError, match=r"unknown option 'max_row_byte'.*Did you mean 'max_row_bytes'"):
        survey(pipeline(corpus, source={"options": {"max_row_byte": 1}}))
    with pytest.raises(RecipeError, match=r"unknown option 'row_group_byte'.*Did you mean 'row_group_bytes'"):
        survey(pipeline(corpus, sink=Sink("parquet", "memory://o", {"row_group_byte": 1})))
    with pytest.raises(RecipeError, match="unknown format 'parket'"):
        survey(pipeline(corpus, sink=Sink("parket", "memory://o")))
    with pytest.raises(RecipeError, match="there is no module 'no_such_module'"):
        survey(pipeline(corpus, steps.map_step("no_such_module:f")))
    with pytest.raises(RecipeError, match="no sink"):
        survey(dataclasses.replace(pipeline(corpus), sink=None))


def test_listing_options_do_not_reach_the_format(corpus):
    surveyed = survey(pipeline(corpus, source={"options": {"exclude": "3.jsonl", "include_hidden": True}}))
    assert len(surveyed.objects) == 3
    assert surveyed.source.options == {}


# ---------------------------------------------------------------- explain


def test_explain_tells_stages_items_requests_and_cost(corpus):
    chain = (steps.map_step(double), steps.filter_step("double > 3"), Checkpoint(), steps.map_step(lambda row: row))
    explanation = explain(build(pipeline(corpus, *chain, num_shards=8)))
    first, second = explanation.stages
    assert [(segment.form, segment.steps) for segment in first.segments] == [("rows", ("01-map-double",)), ("sql", ("02-sql-filter",))]
    assert (first.items.count, first.items.inputs) == (8, 10)  # two of the cuts do not fall on the edge of a file
    assert first.items.min_bytes <= first.items.median_bytes <= first.items.max_bytes
    assert second.items is None
    assert explanation.requests["create"] == 2 * 8 * 2 + 2 * 2 + 2
    assert explanation.requests["get"] >= 8
    assert explanation.cost_dollars == pytest.approx(sum(S3_PRICES[verb] * n for verb, n in explanation.requests.items()))
    text = explanation.render_text()
    for part in (
        "stage 0",
        "01-map-double",
        "checkpoint: an explicit checkpoint",
        "8 of",
        "work items follow from stage 0",
        "pickles",
        "$0.00",
    ):
        assert part in text
    assert json.loads(json.dumps(explanation.to_dict()))["stages"][1]["items"] is None
    assert explain(build(pipeline(corpus)), prices={}).cost_dollars == 0


def test_explain_counts_the_request_for_the_time_of_a_file(corpus):
    for options, heads in (({}, 4), ({"modified": False}, 0)):
        planned = build(pipeline(corpus, format="files", source={"options": options}, sink=Sink("jsonl", "memory://o")))
        assert explain(planned).requests.get("head", 0) == heads


def test_explain_an_empty_input(tmp_path):
    (tmp_path / "0.jsonl").write_text("")
    assert "none: the input is empty" in explain(build(pipeline(str(tmp_path / "0.jsonl")))).render_text()


def test_inv9_explained_requests_grow_by_two_creates_per_item(corpus):
    few, many = (explain(build(pipeline(corpus, num_shards=n))).requests for n in (10, 110))
    assert many["create"] - few["create"] == 200
    assert many["list"] == few["list"]
