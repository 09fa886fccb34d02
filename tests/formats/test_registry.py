"""Formats by name, by suffix, and from outside packages."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from cloudshard.errors import RecipeError
from cloudshard.formats import registry
from cloudshard.formats.registry import format_for, format_name_for, format_names, get_format


@pytest.mark.parametrize("name", [*registry._BUILT_IN])
def test_the_table_agrees_with_the_classes(name: str) -> None:
    found = get_format(name)
    assert found.name == name
    assert found.suffixes == registry._BUILT_IN[name][2]
    assert found.position_unit in ("byte", "row")
    assert isinstance(found.row_oriented, bool)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b/a.jsonl", "jsonl"),
        ("s3://b/a.JSONL.GZ", "jsonl"),
        ("a.ndjson.zst", "jsonl"),
        ("a.json", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.csv.gz", "csv"),
        ("a.tsv", "csv"),
        ("a.arrow", "arrow"),
        ("a.feather", "arrow"),
        ("a.txt", "files"),
        ("https://host/a.parquet?version=2", "parquet"),
    ],
)
def test_by_suffix(url: str, name: str) -> None:
    assert format_name_for(url) == name
    assert format_for(url).name == name


def test_unknown_names_and_suffixes_list_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"unknown format 'orc'.*arrow, csv, files, jsonl, parquet.*cloudshard.formats"):
        get_format("orc")
    with pytest.raises(RecipeError, match=r"cannot be told from the name \(s3://b/data\).*\.jsonl, \.ndjson.*\.gz"):
        format_name_for("s3://b/data")
    assert "runs" not in format_names()


def test_outside_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "tests.formats.test_registry:Outside", registry.GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: {"mine": point})
    get_format.cache_clear()
    try:
        assert get_format("mine").name == "mine"
        assert format_name_for("a.mine.gz") == "mine"
        assert "mine" in format_names()
    finally:
        get_format.cache_clear()


class Outside:
    """What another package would bring."""

    name = "mine"
    suffixes = (".mine",)


def test_looking_up_a_suffix_imports_no_reader() -> None:
    code = (
        "import sys; from cloudshard.formats.registry import format_name_for as f; f('a.parquet'); print('pyarrow.parquet' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
