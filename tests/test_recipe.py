"""YAML recipes: safe loading, parameters, messages with the line, building, targets, and the recipes in configs/."""

from __future__ import annotations

import io
import json
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from cloudshard.errors import RecipeError
from cloudshard.ledger.records import RunSettings
from cloudshard.plan.logical import Checkpoint, Pipeline
from cloudshard.recipe import load_recipe, resolve_target
from cloudshard.recipe.json_schema import json_schema
from cloudshard.recipe.types import parse_schema, parse_type

CONFIGS = Path(__file__).parent.parent / "configs"

RECIPE = """\
name: words
parameters:
  min_words: 50
  language: it's
  kinds: {type: list, default: [a, b]}
  ratio: 0.5
  strict: true
source:
  read_jsonl:
    urls: data/*.jsonl
    bad_rows: quarantine
    schema: {text: string, n: int64}
shards: {num_shards: 4}
steps:
  - map: pkg.mod:clean
  - map: {function: pkg.mod:score, into: score, arguments: {cut: "${ratio}"}, on_error: "null"}
  - filter: n >= ${min_words} AND lang = ${language} AND kind IN ${kinds}
  - filter: pkg.mod:keep
  - map_batches: {function: "pkg.mod:Model", as: pandas, batch_rows: 64, span_shards: true}
  - sql: SELECT * FROM batch
  - select: [a, b]
  - drop: a
  - rename: {a: b}
  - with_columns: {c: "a + ${min_words}"}
  - sample: 0.5
  - row_number: at
  - map_async: {function: "pkg.mod:ask", concurrency: 8}
  - checkpoint
  - limit: ${min_words}
sink:
  write_parquet: {url: "out/${min_words}-$${x}", mode: overwrite, target_part_bytes: 1.5 GiB}
summary: SELECT count(*) FROM output
settings: {lease_seconds: 30, max_retries: 1, processes: 2, error_budget_rows: 9}
"""


def load(text=RECIPE, **parameters):
    return load_recipe(text, parameters, environment={})


def test_a_whole_recipe_becomes_a_pipeline():
    recipe = load()
    pipeline = recipe.pipeline
    assert isinstance(pipeline, Pipeline)
    assert (pipeline.name, pipeline.num_shards, pipeline.target_shard_bytes) == ("words", 4, None)
    assert (pipeline.source.format, pipeline.source.urls, pipeline.source.bad_rows) == ("jsonl", ("data/*.jsonl",), "quarantine")
    assert pipeline.source.schema == pa.schema({"text": pa.large_string(), "n": pa.int64()})
    kinds = ["checkpoint" if isinstance(step, Checkpoint) else step.kind for step in pipeline.steps]
    assert kinds == [
        *("map", "map", "sql", "filter", "map_batches", "sql", "sql", "sql", "sql", "sql", "sample", "row_number", "map_async"),
        *("checkpoint", "limit"),
    ]
    assert pipeline.steps[1].arguments == {"cut": 0.5}
    assert (pipeline.steps[1].on_error, pipeline.steps[1].params) == ("null", {"into": "score"})
    assert "n >= 50 AND lang = 'it''s' AND kind IN ('a', 'b')" in pipeline.steps[2].params["query"]
    assert pipeline.steps[4].params["as"] == "pandas"
    assert pipeline.steps[-1].params == {"rows": 50}
    assert (pipeline.sink.url, pipeline.sink.mode, pipeline.sink.target_part_bytes) == ("out/50-${x}", "overwrite", 3 << 29)
    assert recipe.settings == RunSettings(lease_seconds=30.0, max_retries=1, error_budget_rows=9)
    assert (recipe.processes, recipe.summary.sql, pipeline.error_budget_rows) == (2, "SELECT count(*) FROM output", 9)
    assert pipeline.parameters == {"min_words": 50, "language": "it's", "kinds": ["a", "b"], "ratio": 0.5, "strict": True}


def test_sql_made_by_thin_steps_runs():
    import duckdb

    queries = {
        step.label: step.params["query"] for step in load().pipeline.steps if not isinstance(step, Checkpoint) and step.kind == "sql"
    }
    for batch, label, columns in [
        ({"a": 1, "b": 2, "z": 3}, "select", ["a", "b"]),
        ({"a": 1, "z": 3}, "drop", ["z"]),
        ({"a": 1, "z": 3}, "rename", ["b", "z"]),
        ({"a": 1, "z": 3}, "with_columns", ["a", "z", "c"]),
        ({"a": 1, "C": 3}, "with_columns", ["a", "c"]),
        ({"a": 1}, "with_columns", ["a", "c"]),
    ]:
        connection = duckdb.connect()
        connection.register("batch", pa.table({name: [value] for name, value in batch.items()}))
        assert connection.sql(queries[label]).columns == columns, label


def replacing_all_columns():
    from cloudshard.plan.steps import with_columns_step

    return with_columns_step({"a": "a + 1"}).params["query"]


def test_all_columns_may_be_replaced():
    import duckdb

    connection = duckdb.connect()
    connection.register("batch", pa.table({"a": [1]}))
    assert connection.sql(replacing_all_columns()).fetchall() == [(2,)]


# ---------------------------------------------------------------- parameters


def test_command_line_before_environment_before_default():
    environment = {"CLOUDSHARD_PARAM_MIN_WORDS": "60", "CLOUDSHARD_PARAM_RATIO": "0.25"}
    parameters = load_recipe(RECIPE, {"min_words": "70", "strict": "no", "kinds": "[c]"}, environment=environment).pipeline.parameters
    assert parameters == {"min_words": 70, "language": "it's", "kinds": ["c"], "ratio": 0.25, "strict": False}
    assert load(ratio=1).pipeline.parameters["ratio"] == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_word": 1}, "unknown parameter 'min_word' .*line 2.*Did you mean 'min_words'"),
        ({"min_words": "many"}, "min_words.*must be int, not 'many'"),
        ({"min_words": 1.5}, "must be int, not 1.5"),
        ({"min_words": True}, "must be int, not True"),
        ({"strict": "maybe"}, "must be true or false"),
        ({"kinds": "a"}, r"must be a list such as \[a, b\]"),
        ({"language": 3}, "must be str, not 3"),
    ],
)
def test_a_parameter_of_another_type_is_refused(given, message):
    with pytest.raises(RecipeError, match=message):
        load(**given)


def test_a_parameter_without_default_must_be_given_and_choices_bind():
    text = RECIPE.replace("  min_words: 50\n", "  min_words: {type: int, help: Words}\n  mode: {default: a, choices: [a, b]}\n")
    with pytest.raises(RecipeError, match=r"min_words: must be given \(recipe, line 3\).*-p min_words=… or set CLOUDSHARD_PARAM_MIN_WORDS"):
        load(text)
    assert load(text, min_words="3").pipeline.parameters["min_words"] == 3
    with pytest.raises(RecipeError, match="must be one of a, b, not 'c'"):
        load(text, min_words=3, mode="c")


def test_built_in_values():
    recipe = load_recipe(RECIPE.replace("data/*.jsonl", "${python:stdlib}/**/*.py"), environment={})
    assert recipe.pipeline.source.urls == (sysconfig.get_paths()["stdlib"] + "/**/*.py",)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bad_rows:", "bad_row:", r"source.read_jsonl.bad_row: unknown key \(recipe, line 11\). Did you mean 'bad_rows'"),
        ("  - filter: n", "  - filtre: n", r"steps\[2\].filtre: .*line 17"),
        ("sink:\n", "sinks:\n", r"sinks: unknown key \(recipe, line 30\). Did you mean 'sink'\?.*sink: is missing"),
        ("write_parquet:", "write_parqet:", "unknown key .*line 31.*Did you mean 'write_parquet'"),
        ("num_shards: 4", "num_shards: 0", r"shards.num_shards: should be greater than or equal to 1, not 0 \(recipe, line 13\)"),
        ("num_shards: 4", "num_shards: four", "should be a whole number, not 'four'"),
        ("1.5 GiB", "1.5 GaB", "'1.5 GaB' is no size; .*for example 128MiB"),
        ("sample: 0.5", "sample: 2", "should be less than or equal to 1, not 2"),
        ("pkg.mod:clean", "pkg.mod", "'pkg.mod' names no function .*line 15"),
        ("- sql: SELECT", "- sql: SELCT", "SQL cannot be parsed: .*line 20"),
        ("- sql: SELECT * FROM batch", "- sql: COPY batch TO 'x'", "must be one SELECT"),
        ("- sql: SELECT * FROM batch", "- sql: SELECT 1; SELECT 2", "must be one SELECT"),
        ("name: words", "name: words\nname: again", r"'name' stands twice \(first in line 1\) \(recipe, line 2\)"),
        ("name: words", "name: [words", "not valid YAML.*line"),
        ("name: words", "name: !!python/object/apply:os.system [ls]", "name: the tag .*os.system is not allowed"),
        ("name: words", "name: bad name", "should match pattern"),
        ("${language}", "${langage}", r"unknown parameter \$\{langage\} .*line 17.*Did you mean 'language'"),
        ("out/${min_words}", "out/${kinds}", "a list can only stand for a whole value"),
        ("- checkpoint", "- chekpoint", "must be a mapping, not 'chekpoint'"),
        ("- checkpoint", "- checkpoint: false", "checkpoint: false does nothing"),
        ("- drop: a", "- drop:", "drop needs a value"),
        ("- drop: a", "- {drop: a, select: b}", "must have exactly one verb, has drop, select"),
        ('on_error: "null"', "on_error: nul", "on_error: should be 'raise', 'null', 'drop' or 'quarantine', not 'nul'"),
        ("into: score, ", "", 'on_error="null" needs into='),
        ("text: string", "text: strin", "the type 'strin' cannot be understood: 'strin' is unknown"),
        ("lease_seconds: 30", "lease_seconds: 3", "lease_margin_seconds must be shorter"),
        ("processes: 2", "processes: some", "processes: .*not 'some'"),
        ("summary: SELECT", "summary: SELCT", "summary.sql: SQL cannot be parsed.*line 32"),
        ("min_words: 50", "min_words: {typ: int}", "parameters.min_words.typ: unknown key .*line 3.*Did you mean 'type'"),
        ("min_words: 50", "min_words: 2020-01-01", "a parameter cannot be a date.*quotes"),
        ("min_words: 50", "1st: 50", "a parameter's name is a letter"),
    ],
)
def test_each_error_names_line_field_and_mend(old, new, message):
    assert old in RECIPE
    with pytest.raises(RecipeError, match=message):
        load(RECIPE.replace(old, new, 1))


def test_several_errors_are_told_at_once():
    with pytest.raises(RecipeError) as caught:
        load(RECIPE.replace("num_shards: 4", "num_shards: 0").replace("sample: 0.5", "sample: 2"))
    assert "line 13" in str(caught.value)
    assert "Also: line 25" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no recipe is given"),
        ("\n", "the recipe is empty"),
        ("- a\n- b\n", "a recipe is a mapping"),
        (
            "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
            "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
            "more than 20,000 values",
        ),
        ("a: &a\n  b: *a\n", "more than 32 levels"),
        ("a: " + "[" * 5000 + "\n", "not valid YAML|levels"),
        ("a: " + "x" * (1 << 20) + "\n", "larger than 1,048,576"),
        ("? [a, b]\n: c\n", "a key must be a plain word"),
        ("a: 1\n---\nb: 2\n", "not valid YAML: but found another document"),
        ("a: \x00\n", "not valid YAML"),
    ],
)
def test_hostile_and_empty_documents(text, message):
    with pytest.raises(RecipeError, match=message):
        load(text)


def test_anchors_and_merges_work_within_bounds():
    text = RECIPE.replace("  - drop: a\n", "  - map: &x {function: 'm:f', on_error: drop}\n  - map: {<<: *x, on_error: quarantine}\n")
    steps = load(text).pipeline.steps
    assert [step.on_error for step in steps if not isinstance(step, Checkpoint) and step.function == "m:f"] == ["drop", "quarantine"]


def test_keys_that_yaml_takes_for_booleans_are_words():
    with pytest.raises(RecipeError, match=r"source.read_jsonl.on: unknown key"):
        load(RECIPE.replace("bad_rows:", "on:"))


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(RecipeError, match="a recipe is UTF-8 text; byte 6 is not"):
        load_recipe(path)
    path.write_bytes("﻿".encode() + RECIPE.replace("name: words\n", "").encode())
    assert load_recipe(path, environment={}).pipeline.name == "r"
    with pytest.raises(RecipeError, match="there is no such recipe"):
        load_recipe(tmp_path / "none.yaml")


# ---------------------------------------------------------------- options of formats


def options_that_a_format_knows(call):
    """From its own error for an option that it does not know."""
    with pytest.raises(RecipeError) as caught:
        call({"zzzz": 1})
    return set(caught.value.mend.removeprefix("Known options: ").removesuffix(".").split(", "))


@pytest.mark.parametrize("name", ["jsonl", "parquet", "csv", "arrow", "files"])
def test_a_recipe_knows_exactly_the_options_of_each_reader_and_writer(name):
    from cloudshard.formats.registry import get_format
    from cloudshard.recipe import models
    from cloudshard.recipe.compile import _READ_COMMON, _WRITE_COMMON
    from cloudshard.store.memory import MemoryStore
    from cloudshard.store.port import ObjectInfo

    kind, info = get_format(name), ObjectInfo("x", 3, "e", 0.0)
    read = options_that_a_format_knows(lambda options: kind.split(MemoryStore("m"), info, "memory://m/x", None, options))
    reader = models.SourceModel.model_fields[f"read_{name}"].annotation.__args__[0]
    known_when_given = {"null_values"} if name == "csv" else set()
    assert set(reader.model_fields) - _READ_COMMON - {"exclude", "include_hidden"} == read | known_when_given
    if name != "files":
        writer = models.SinkModel.model_fields[f"write_{name}"].annotation.__args__[0]
        assert set(writer.model_fields) - _WRITE_COMMON == options_that_a_format_knows(
            lambda options: kind.open_writer(io.BytesIO(), None, options)
        )


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("string", pa.large_string()),
        ("int64", pa.int64()),
        ("list<string>", pa.list_(pa.large_string())),
        ("struct<a: int8, b: list<double>>", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.float64()))])),
        ("map<string, int32>", pa.map_(pa.large_string(), pa.int32())),
        ("timestamp[ms, UTC]", pa.timestamp("ms", "UTC")),
        ("timestamp[us, tz=Europe/Berlin]", pa.timestamp("us", "Europe/Berlin")),
        ("timestamp[s, +02:00]", pa.timestamp("s", "+02:00")),
        ("timestamp[ns]", pa.timestamp("ns")),
        ("duration[s]", pa.duration("s")),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("date", pa.date32()),
    ],
)
def test_types(text, expected):
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "strin",
        "list<",
        "list<int64",
        "list<int64>>",
        "struct<a>",
        "decimal(40, 2)",
        "decimal(x, 2)",
        "timestamp[h]",
        "int64 int64",
        "a$",
    ],
)
def test_types_that_are_none(text):
    with pytest.raises(RecipeError, match="cannot be understood"):
        parse_type(text)


def test_not_null():
    assert parse_schema({"a": "int64 not null"}) == pa.schema([pa.field("a", pa.int64(), nullable=False)])


# ---------------------------------------------------------------- targets

MODULE = """\
from cloudshard.plan.logical import Pipeline, Sink, Source

def double(row):
    return {"n": row["n"] * 2}

def pipeline(limit: int = 3, strict: bool = False, name="x"):
    return Pipeline(name=f"{name}-{limit!r}-{strict!r}", source=Source("jsonl", ("a",)), sink=Sink("jsonl", "o"))

ready = pipeline(1)
unfinished = Pipeline(name="u", source=Source("jsonl", ("a",)))
number = 3
"""


@pytest.fixture
def module_file(tmp_path, monkeypatch):
    path = tmp_path / "my_pipe.py"
    path.write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield path
    for name in [name for name in sys.modules if "my_pipe" in name]:
        del sys.modules[name]


def test_targets_of_all_kinds(module_file):
    assert resolve_target(str(module_file)).pipeline.name == "x-3-False"
    assert resolve_target(f"{module_file}:ready").pipeline.name == "x-1-False"
    assert resolve_target("my_pipe:ready").pipeline.name == "x-1-False"
    assert resolve_target("my_pipe:pipeline", {"limit": "7", "strict": "yes", "name": "9"}).pipeline.name == "9-7-True"
    assert resolve_target(str(CONFIGS / "quickstart.yaml")).pipeline.name == "quickstart"


@pytest.mark.parametrize(
    ("target", "parameters", "message"),
    [
        ("my_pipe:reddy", {}, "there is no 'reddy' in it.*Did you mean 'ready'"),
        ("my_pipe:number", {}, "neither a pipeline nor a function"),
        ("my_pipe:unfinished", {}, "the pipeline has no sink"),
        ("my_pipe:ready", {"a": "1"}, "takes no parameters"),
        ("my_pipe:pipeline", {"limt": "1"}, "unknown parameter 'limt'.*Did you mean 'limit'"),
        ("my_pipe:pipeline", {"limit": "x"}, "must be int"),
        ("my_pip:pipeline", {}, "there is no module 'my_pip'"),
        ("my_pipe", {}, "names no pipeline.*Give a recipe"),
        ("nothing.py", {}, "there is no such file"),
        ("nothing.yaml", {}, "there is no such recipe"),
    ],
)
def test_targets_that_are_none(module_file, target, parameters, message):
    with pytest.raises(RecipeError, match=message):
        resolve_target(target, parameters)


def test_a_file_that_raises_names_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\n\nraise ValueError('no')\n")
    with pytest.raises(RecipeError, match=r"raised ValueError: no .*broken.py, line 3"):
        resolve_target(str(path))
    path.write_text("x = (\n")
    with pytest.raises(RecipeError, match=r"raised SyntaxError.*line 1"):
        resolve_target(str(path))


def test_functions_of_a_file_travel_by_value(module_file):
    """Another machine does not have the file."""
    import subprocess

    import cloudpickle

    from cloudshard.recipe.target import load_file

    pickled = cloudpickle.dumps(load_file(str(module_file)).double)
    code = f"import pickle; print(pickle.loads({pickled!r})({{'n': 4}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/", env={"PATH": ""})
    assert done.stdout.strip() == "{'n': 8}"


# ---------------------------------------------------------------- configs/


def test_the_json_schema_in_configs_is_up_to_date():
    written = json.loads((CONFIGS / "pipeline.schema.json").read_text())
    code = "import json; from cloudshard.recipe.json_schema import json_schema; print(json.dumps(json_schema(), indent=2))"
    assert written == json_schema(), f'write it anew: python -c "{code}" > configs/pipeline.schema.json'


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_is_valid_by_model_and_by_json_schema(path):
    given = {"jsonl_clean.yaml": {"input": "in", "output": "out"}}.get(path.name, {})
    assert load_recipe(path, given, environment={}).pipeline.name
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(path.read_text()))
    assert path.name in (CONFIGS / "README.md").read_text()


def test_the_json_schema_refuses_what_the_model_refuses():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    good = yaml.safe_load(RECIPE)
    validator.validate(good)
    for change in ({"extra": 1}, {"steps": [{"mop": "a:b"}]}, {"steps": [{"limit": -1}]}, {"sink": {}}, {"shards": {"num_shards": "x"}}):
        assert not validator.is_valid({**good, **change}), change
