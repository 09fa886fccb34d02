"""The public face: what is listed exists, is documented, and importing it costs next to nothing."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import cloudshard

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", cloudshard.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(cloudshard, name)
    if name == "__version__":
        assert value.count(".") == 2
        return
    assert inspect.getdoc(value), f"{name} has no docstring"
    assert f"`{name}" in (ROOT / "docs" / "python.md").read_text(), f"docs/python.md does not speak of {name}"


def test_every_method_of_dataset_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    for name, method in inspect.getmembers(cloudshard.Dataset, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(method), f"Dataset.{name} has no docstring"
            assert f"`{name}(" in page, f"docs/python.md does not speak of Dataset.{name}"


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        _ = cloudshard.frobnicate


def test_importing_loads_nothing_heavy() -> None:
    program = """
import sys, time, json
begun = time.perf_counter()
import cloudshard
seconds = time.perf_counter() - begun
print(json.dumps([seconds, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
    done = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(3)]
    runs = list(map(json.loads, done))
    assert min(seconds for seconds, _ in runs) < 0.150
    loaded = set(runs[0][1])
    assert not loaded & {"pyarrow", "duckdb", "boto3", "botocore", "numpy", "pandas", "pydantic", "rich", "click", "fsspec"}
