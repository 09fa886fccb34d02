"""The quarantine's rows as JSON: whatever the row held, something readable and parseable is kept."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cloudshard.engine.block import Origin
from cloudshard.engine.quarantine import SCHEMA, Quarantine, row_text
from cloudshard.errors import RowError

ORIGIN = Origin(3, "s3://bucket/a.jsonl", "byte")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"a": 1, "b": [1.5, None, True]}, {"a": 1, "b": [1.5, None, True]}),
        (b'{"broken": ', {"$line": '{"broken": '}),
        (b"\xff\xfe", {"$base64": "//4="}),
        ({"a": b"\x00\x01"}, {"a": {"$base64": "AAE="}}),
        ({"a": float("nan"), "b": np.int32(5), "c": np.array([1, 2])}, {"a": None, "b": 5, "c": [1, 2]}),
        ({"a": 2**80}, {"a": {"$repr": str(2**80)}}),
        ({"a": "\ud800x", "b": 1}, {"a": "\\ud800x", "b": 1}),
        ({1: "int key"}, {"1": "int key"}),
        ({"a": (1, 2), "b": {3}}, {"a": [1, 2], "b": [3]}),
        ({"a": dt.date(2026, 1, 2)}, {"a": "2026-01-02"}),
        ({"a": Decimal("1.50")}, {"a": {"$repr": "Decimal('1.50')"}}),
        ({"a": object}, {"a": {"$repr": "<class 'object'>"}}),
    ],
)
def test_a_row_of_anything_is_json(row: Any, expected: Any) -> None:
    assert json.loads(row_text(row)) == expected


def test_a_bottomless_row_is_json() -> None:
    row: dict[str, Any] = {}
    row["self"] = row
    assert "$repr" in row_text(row)


def test_a_huge_row_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudshard.engine.quarantine._MAX_ROW_TEXT", 100)
    cut = json.loads(row_text({"text": "x" * 1000}))
    assert len(cut["$cut"]) == 100
    assert cut["$length"] == 1011


def test_the_columns_are_the_same_whatever_is_in_them() -> None:
    def fails() -> None:
        raise KeyError("text")

    quarantine = Quarantine(item=3, epoch=2)
    try:
        fails()
    except KeyError as error:
        quarantine.add({"n": 1}, ORIGIN, 17, error, "02-map-clean")
    quarantine.add(b"{", ORIGIN, 40, RowError("not JSON", object=ORIGIN.object, position=40), "read")
    kept = quarantine.finish()
    assert kept is not None
    table = pq.read_table(kept[0])
    quarantine.close()
    assert table.schema.remove_metadata().equals(SCHEMA)
    first, second = table.to_pylist()
    assert "in fails" in first.pop("traceback")
    assert first == {
        "row": '{"n":1}',
        "error_type": "KeyError",
        "message": "'text'",
        "step": "02-map-clean",
        "object": "s3://bucket/a.jsonl",
        "position": 17,
        "unit": "byte",
        "item": 3,
        "epoch": 2,
    }
    assert (second["error_type"], second["message"], second["traceback"], second["step"]) == ("RowError", "not JSON", "", "read")


def test_many_rows_are_written_down_as_they_come(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSHARD_SCRATCH", str(tmp_path))
    quarantine = Quarantine(item=0, epoch=1)
    for n in range(5000):
        quarantine.add({"n": n, "text": "x" * 500}, ORIGIN, n, ValueError("no"), "m")
        assert len(quarantine._held) <= 1000
    kept = quarantine.finish()
    assert kept is not None
    assert pq.read_table(kept[0]).num_rows == quarantine.rows == 5000
    quarantine.close()


def test_nothing_costs_nothing() -> None:
    quarantine = Quarantine(item=0, epoch=1)
    assert quarantine.finish() is None
    quarantine.close()
