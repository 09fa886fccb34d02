"""Whole files as rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from cloudshard.errors import InputChanged, RecipeError, RowError
from cloudshard.formats.registry import get_format
from cloudshard.formats.schema import Conformer
from cloudshard.store.memory import MemoryStore
from tests.formats.helpers import block_of, context_for, read, rows_of, stored


def clocked() -> MemoryStore:
    return MemoryStore("t", clock=lambda: 1_700_000_000.25)


def test_a_file_is_a_row() -> None:
    found = read("files", "héllo\n".encode(), "dir/a.txt", store=clocked())
    modified = dt.datetime.fromtimestamp(1_700_000_000.25, dt.UTC)
    assert found.rows == [{"path": "memory://t/dir/a.txt", "content": "héllo\n", "size": 7, "modified": modified}]
    assert found.positions == [0]
    assert found.counts["bytes_read"] == 7


@pytest.mark.parametrize("content", ["text", "bytes", "none"])
def test_the_declared_schema_holds_the_rows(content: str) -> None:
    for modified in (True, False):
        options = {"content": content, "modified": modified}
        schema = get_format("files").schema(options)
        rows = read("files", b"x", "a.bin", options=options).rows
        assert list(rows[0]) == schema.names
        assert Conformer(schema).conform(block_of(rows), lambda *what: pytest.fail(str(what))).table.num_rows == 1


def test_bytes_and_none() -> None:
    assert read("files", b"\xff\x00", "a.bin", options={"content": "bytes", "modified": False}).rows[0]["content"] == b"\xff\x00"
    found = read("files", b"\xff\x00", "a.bin", options={"content": "none", "modified": False})
    assert found.rows == [{"path": "memory://t/a.bin", "size": 2}]
    assert "bytes_read" not in found.counts


def test_an_empty_file_is_a_row_too() -> None:
    assert read("files", b"", "a.txt").rows[0]["content"] == ""


def test_text_that_cannot_be_decoded() -> None:
    with pytest.raises(RowError, match=r"not utf-8: invalid start byte at byte 2.*errors=\"replace\""):
        read("files", b"ab\xff", "a.txt")
    found = read("files", b"ab\xff", "a.txt", lenient=True)
    assert found.rows == []
    assert found.bad[0].row == b"ab\xff"
    assert read("files", b"ab\xff", "a.txt", options={"errors": "replace"}).rows[0]["content"] == "ab\ufffd"
    assert read("files", b"ab\xff", "a.txt", options={"errors": "ignore"}).rows[0]["content"] == "ab"
    assert read("files", b"ab\xff", "a.txt", options={"encoding": "latin-1"}).rows[0]["content"] == "abÿ"
    assert read("files", "\ufeffx".encode(), "a.txt").rows[0]["content"] == "x"


def test_too_large_is_not_read() -> None:
    options = {"max_row_bytes": 10}
    with pytest.raises(RowError, match="the file has 11 bytes, max_row_bytes allows 10"):
        read("files", b"x" * 11, "a.txt", options=options)
    found = read("files", b"x" * 11, "a.txt", options=options, lenient=True)
    assert "bytes_read" not in found.counts
    assert read("files", b"x" * 10, "a.txt", options=options).rows


def test_changed_since_planning() -> None:
    store, info, url = stored(b"one", "a.txt")
    (piece,) = get_format("files").split(store, info, url, 1, {})
    store.put("a.txt", b"two")
    with pytest.raises(InputChanged):
        list(get_format("files").read(piece, context_for(store, "a.txt", url)))


def test_sample() -> None:
    store, info, url = stored(b"one", "a.txt")
    assert rows_of(get_format("files").sample(store, info, url, {}, rows=5))[0]["content"] == "one"


@pytest.mark.parametrize("options", [{"encoding": "klingon"}, {"content": "json"}, {"errors": "panic"}, {"contents": "text"}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        read("files", b"x", "a.txt", options=options)


def test_files_are_not_written() -> None:
    with pytest.raises(RecipeError, match="can only be read"):
        get_format("files").open_writer(None, pa.schema([]), {})  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="can only be read"):
        get_format("files").suffix_for({})
