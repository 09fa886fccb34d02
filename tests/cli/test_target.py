"""What a command line names, and where the run lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudshard.cli.options import pairs, parse_or_text, size
from cloudshard.cli.target import is_pipeline, resolve, run_url_of
from cloudshard.errors import RecipeError

RECIPE = """
parameters: {lines: 3, output: out/x}
source: {read_jsonl: in.jsonl}
sink: {write_jsonl: "${output}"}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(RECIPE)
    return "r.yaml"


@pytest.mark.parametrize("target", ["a.yaml", "jobs/a.yml", "a.py", "a.py:main", "/x/a.py:p", "jobs.clean:pipeline", "a:b.c"])
def test_pipelines(target: str) -> None:
    assert is_pipeline(target)


@pytest.mark.parametrize("target", ["s3://b/run.yaml", "file:///x/y", "out/quickstart.run", "/x/y", "memory://a", "out"])
def test_urls_and_folders(target: str) -> None:
    assert not is_pipeline(target)


def test_the_run_lies_beside_the_output_unless_told(recipe: str, tmp_path: Path) -> None:
    loaded = resolve(recipe, [])
    assert run_url_of(loaded, None) == f"file://{tmp_path}/out/x.run"
    assert run_url_of(loaded, "elsewhere") == f"file://{tmp_path}/elsewhere"
    assert run_url_of(resolve(recipe, [("output", "s3://b/x")]), None) == "s3://b/x.run"


def test_a_whole_bucket_as_output_has_no_place_beside_it(recipe: str) -> None:
    with pytest.raises(RecipeError, match="whole bucket"):
        run_url_of(resolve(recipe, [("output", "s3://b")]), None)


def test_overwrite_changes_the_sink_only(recipe: str) -> None:
    sink = resolve(recipe, [], overwrite=True).pipeline.sink
    assert sink is not None
    assert sink.mode == "overwrite"


def test_a_parameter_given_twice_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"-p a=… is given twice"):
        pairs([("a", "1"), ("a", "2")], "-p")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("17", 17), ("-3", -3), ("1.5", "1.5"), ("us-east-1", "us-east-1")]
)
def test_store_options_are_typed(text: str, value: object) -> None:
    assert parse_or_text(text) == value


def test_sizes_are_spelt_as_in_recipes() -> None:
    import click

    context, option = click.Context(click.Command("x")), click.Option(["--x"])
    assert size(context, option, "64MiB") == 64 << 20
    assert size(context, option, "2 GB") == 2 * 10**9
    assert size(context, option, "1000") == 1000
    assert size(context, option, None) is None
    with pytest.raises(click.BadParameter, match="no size"):
        size(context, option, "a lot")
