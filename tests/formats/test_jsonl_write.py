"""Writing JSON lines: what goes in comes out, and what JSON cannot hold follows a documented policy."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloudshard.errors import RecipeError, RowError
from cloudshard.formats.jsonl_write import JsonlWriteOptions, JsonlWriter
from cloudshard.formats.registry import get_format
from tests.formats.helpers import block_of, read, table_block, write

ROWS: list[dict[str, Any]] = [{"a": 1, "b": {"c": [1, None, "x"]}}, {"a": None}, {}, {"late": "\u2028\U0001f600"}]


@pytest.mark.parametrize(("codec", "suffix"), [("none", ".jsonl"), ("gzip", ".jsonl.gz"), ("zstd", ".jsonl.zst")])
def test_round_trip(codec: str, suffix: str) -> None:
    options = {"compression": codec}
    body, rows = write("jsonl", [block_of(ROWS), block_of(ROWS)], None, options)
    assert rows == 8
    assert get_format("jsonl").suffix_for(options) == suffix
    assert read("jsonl", body, "a" + suffix).rows == ROWS + ROWS, "absent stays absent, null stays null"


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_large_output_is_compressed_in_pieces_and_is_deterministic(codec: str) -> None:
    blocks = [block_of([{"id": number, "text": "some text " * 50} for number in range(3000)]) for _ in range(5)]
    body, _ = write("jsonl", blocks, None, {"compression": codec})
    again, _ = write("jsonl", blocks, None, {"compression": codec, "compression_level": None})
    assert body == again
    assert len(body) < 1_000_000
    assert len(read("jsonl", body, "x", options={"compression": codec}).rows) == 15_000


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_no_rows_is_a_legal_file(codec: str) -> None:
    body, rows = write("jsonl", [], None, {"compression": codec})
    assert rows == 0
    assert read("jsonl", body, "x", options={"compression": codec}).rows == []


def test_tables_give_every_column() -> None:
    table = pa.table({"a": [1, None], "b": pa.array([{"c": 1}, None])})
    assert read("jsonl", write("jsonl", [table_block(table)])[0]).rows == [{"a": 1, "b": {"c": 1}}, {"a": None, "b": None}]
    assert read("jsonl", write("jsonl", [table_block(table)], None, {"nulls": "omit"})[0]).rows == [{"a": 1, "b": {"c": 1}}, {}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC), "2024-01-02T03:04:05.000006+00:00"),
        (dt.date(2024, 1, 2), "2024-01-02"),
        (dt.timedelta(seconds=1.5), 1.5),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (2**64, "18446744073709551616"),
        ([1, {"n": -(2**70)}], [1, {"n": "-1180591620717411303424"}]),
        ((1, 2), [1, 2]),
        ({3, 1}, [1, 3]),
        (np.int32(7), 7),
        (np.array([1.5, 2.5]), [1.5, 2.5]),
    ],
)
def test_what_json_lacks(value: Any, expected: Any) -> None:
    body, _ = write("jsonl", [block_of([{"v": value}])])
    assert json.loads(body) == {"v": expected}


@pytest.mark.parametrize(
    ("row", "reason"),
    [({"v": b"x"}, 'bytes="base64"'), ({"v": object()}, "type object has no form"), ({"v": "\ud800"}, "UTF-8"), ({1: 2}, "str")],
)
def test_what_cannot_be_written_names_the_row(row: dict[Any, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason) as caught:
        write("jsonl", [block_of([{"ok": 1}, row])])
    assert caught.value.position == 1


def test_a_bad_row_can_be_taken_by_the_caller_and_costs_only_itself() -> None:
    import io

    sink = io.BytesIO()
    writer = JsonlWriter(sink, JsonlWriteOptions.of({}))
    taken: list[Any] = []
    writer.bad_row = lambda error, row: taken.append((error.position, row))
    writer.write(block_of([{"a": 1}, {"a": b"x"}, {"a": 2**64}, {"a": 3}]))
    writer.finish()
    assert [json.loads(line) for line in sink.getvalue().splitlines()] == [{"a": 1}, {"a": str(2**64)}, {"a": 3}]
    assert writer.rows == 3
    assert taken == [(1, {"a": b"x"})]


def test_base64_and_strict_nan() -> None:
    assert json.loads(write("jsonl", [block_of([{"v": b"\x00\xff"}])], None, {"bytes": "base64"})[0]) == {"v": "AP8="}
    with pytest.raises(RowError, match="nan has no form in JSON"):
        write("jsonl", [block_of([{"v": [{"w": float("nan")}]}])], None, {"nan": "error"})


def test_wrong_options() -> None:
    with pytest.raises(RecipeError, match="Did you mean 'compression'"):
        write("jsonl", [], None, {"compresion": "zstd"})
