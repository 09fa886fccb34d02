"""FIELD.md, "One bad row": each odd input, strict (object, offset, reason) and lenient (only that row is lost, counted, handed over)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudshard.errors import InputError, RowError
from tests.formats.helpers import read

GOOD = b'{"id": 1, "text": "before"}\n'
AFTER = b'{"id": 3, "text": "after"}\n'
DEEP = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"

BAD_LINES: dict[str, tuple[bytes, str]] = {
    "invalid-utf8": (b'{"id": 2, "text": "caf\xe9"}', r"invalid UTF-8.*0xe9.*byte 22 of the line"),
    "utf8-surrogate-bytes": (b'{"text": "\xed\xa0\x80"}', "invalid UTF-8"),
    "bom-inside": (b'\xef\xbb\xbf{"id": 2}', "byte order mark in the middle"),
    "nan": (b'{"x": NaN}', 'NaN is not JSON; the option nan="null"'),
    "infinity": (b'{"x": [1, -Infinity]}', "-Infinity is not JSON"),
    "float-overflow": (b'{"x": 1e400}', "beyond the range of a 64-bit float"),
    "lone-high-surrogate": (b'{"text": "x\\ud800y"}', r"lone surrogate \(\\ud800\)"),
    "lone-low-surrogate": (b'{"text": "\\udc00"}', r"lone surrogate \(\\udc00\)"),
    "lone-surrogate-in-key": (b'{"a": [{"\\udfff": 1}]}', "lone surrogate"),
    "duplicate-key": (b'{"id": 1, "id": 2}', "'id' stands twice in one object"),
    "duplicate-key-nested": (b'{"a": [{"b": {"c": 1, "c": 1}}]}', "'c' stands twice"),
    "duplicate-key-spaced": (b'{"a" :1, "a" : 2}', "'a' stands twice"),
    "duplicate-key-escaped": (b'{"a": 1, "\\u0061": 2}', "'a' stands twice"),
    "duplicate-key-ending-in-backslash": (b'{"a\\\\":1,"a\\\\":2}', "stands twice"),
    "array": (b'[{"id": 1}]', "a row must be an object, this is an array"),
    "string": (b'"text"', "this is a string"),
    "number": (b"42", "this is a number"),
    "null": (b"null", "this is null"),
    "true": (b"true", "this is a boolean"),
    "uint64-plus-1": (b'{"n": 18446744073709551616}', "18446744073709551616 needs more than 64 bits"),
    "int64-minus-1": (b'{"a": {"n": [-9223372036854775809]}}', "needs more than 64 bits"),
    "huge-integer": (b'{"n": ' + b"7" * 5000 + b"}", r"\(5000 digits\) needs more than 64 bits"),
    "deep": (DEEP, "nested deeper than 200 levels"),
    "cut": (b'{"id": 2, "text": "bef', "Unterminated string|ends in the middle"),
    "half-record": (b'{"id": 2,', "ends in the middle of a value"),
    "two-records": (b'{"id": 2}{"id": 3}', "Extra data at character 9"),
    "trailing-comma": (b'{"id": 2,}', "not valid JSON"),
    "control-character": (b'{"t": "a\x01b"}', "control character"),
    "nul-bytes": (b"\0\0\0\0", "NUL bytes"),
    "single-quotes": (b"{'id': 2}", "not valid JSON.*property name"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_strict_names_object_offset_and_reason(name: str) -> None:
    line, reason = BAD_LINES[name]
    with pytest.raises(RowError, match=reason) as caught:
        read("jsonl", GOOD + line + b"\n" + AFTER)
    assert caught.value.object == "memory://t/a.jsonl"
    assert caught.value.position == len(GOOD)
    assert f"memory://t/a.jsonl, byte {len(GOOD)}" in str(caught.value)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", BAD_LINES)
def test_lenient_loses_only_that_row(name: str, ending: bytes) -> None:
    line, _ = BAD_LINES[name]
    found = read("jsonl", GOOD + line + ending + AFTER, lenient=True)
    assert [row["id"] for row in found.rows] == [1, 3]
    assert found.positions == [0, len(GOOD) + len(line) + len(ending)]
    assert len(found.bad) == 1
    assert found.bad[0].error.position == len(GOOD)
    assert found.bad[0].row == line + ending, "the raw bytes go to quarantine"


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_row_alone_among_thousands(name: str) -> None:
    """The fast path proves whole batches; one odd line among many must not slip through, nor take others with it."""
    line, _ = BAD_LINES[name]
    lines = [b'{"id": %d, "text": "some \\"quoted\\": text : with colons"}\n' % number for number in range(3000)]
    body = b"".join([*lines[:1500], line + b"\n", *lines[1500:]])
    found = read("jsonl", body, lenient=True)
    assert [row["id"] for row in found.rows] == list(range(3000))
    assert len(found.bad) == 1


ACCEPTED: dict[str, tuple[bytes, Any]] = {
    "bom-at-start": (b'\xef\xbb\xbf{"id": 1}\n', [{"id": 1}]),
    "bom-and-crlf": (b'\xef\xbb\xbf{"id": 1}\r\n{"id": 2}\r\n', [{"id": 1}, {"id": 2}]),
    "crlf": (b'{"a": 1}\r\n{"a": 2}\r\n', [{"a": 1}, {"a": 2}]),
    "cr-inside": (b'{"a":\r1}\n', [{"a": 1}]),
    "last-line-without-newline": (b'{"a": 1}\n{"a": 2}', [{"a": 1}, {"a": 2}]),
    "surrogate-pair": (b'{"t": "\\ud83d\\ude00"}\n', [{"t": "\U0001f600"}]),
    "uint64": (b'{"n": 18446744073709551615}\n', [{"n": 2**64 - 1}]),
    "int64": (b'{"n": -9223372036854775808}\n', [{"n": -(2**63)}]),
    "deep-enough": (b'{"a":' + b"[" * 198 + b"]" * 198 + b"}\n", None),
    "empty-object": (b"{}\n", [{}]),
    "line-separator-in-string": ('{"t": "a\u2028b\x85c"}\n'.encode(), [{"t": "a\u2028b\x85c"}]),
    "text-that-looks-like-keys": (b'{"t": "\\"a\\": 1, \\"a\\": 2", "u": "x : y"}\n', [{"t": '"a": 1, "a": 2', "u": "x : y"}]),
    "backslashes-before-quotes": (b'{"t\\\\": "x\\\\\\":"}\n', [{"t\\": 'x\\":'}]),
    "big-float": (b'{"x": 123456789012345678901234567890.5}\n', [{"x": 1.2345678901234568e29}]),
    "same-key-in-different-objects": (b'{"a": {"a": [{"a": 1}, {"a": 2}]}}\n', [{"a": {"a": [{"a": 1}, {"a": 2}]}}]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_odd_but_valid(name: str) -> None:
    body, rows = ACCEPTED[name]
    found = read("jsonl", body)
    assert found.rows == (json.loads(body) and [json.loads(body)] if rows is None else rows)
    assert found.positions[0] == 0


def test_empty_file() -> None:
    assert read("jsonl", b"").rows == []


@pytest.mark.parametrize("body", [b"\n", b"\n\n\n", b" \n\t\n\r\n", b"\r\n"])
def test_file_of_blank_lines(body: bytes) -> None:
    found = read("jsonl", body)
    assert found.rows == []
    assert found.counts["blank_lines"] == body.count(b"\n")


def test_a_blank_line_skips_nothing_else_and_is_counted() -> None:
    found = read("jsonl", b'{"a": 1}\n\n{"a": 2}\n   \n{"a": 3}')
    assert [row["a"] for row in found.rows] == [1, 2, 3]
    assert found.positions == [0, 10, 23]
    assert found.counts["blank_lines"] == 2


def test_blank_lines_may_be_an_error() -> None:
    with pytest.raises(RowError, match=r"a blank line .*byte 9"):
        read("jsonl", b'{"a": 1}\n\n{"a": 2}\n', options={"blank_lines": "error"})


def test_utf16_says_so() -> None:
    found = read("jsonl", '{"a": 1}\n{"a": 2}\n'.encode("utf-16"), lenient=True)
    assert not found.rows
    assert "UTF-16" in found.bad[0].error.reason


# ---------------------------------------------------------------- options


def test_nan_as_null() -> None:
    found = read("jsonl", b'{"x": NaN, "y": [Infinity, 1.5, 1e999]}\n{"x": 2}\n', options={"nan": "null"})
    assert found.rows == [{"x": None, "y": [None, 1.5, None]}, {"x": 2}]
    assert found.counts["nan_as_null"] == 3


def test_last_of_duplicate_keys() -> None:
    found = read("jsonl", b'{"a": 1, "a": 2}\n{"a": 3, "b": {"c": 1, "c": NaN}}\n', options={"duplicate_keys": "last", "nan": "null"})
    assert found.rows == [{"a": 2}, {"a": 3, "b": {"c": None}}]


@pytest.mark.parametrize(("option", "expected"), [("string", "18446744073709551616"), ("float", 18446744073709551616.0)])
def test_big_integers(option: str, expected: Any) -> None:
    found = read("jsonl", b'{"n": 18446744073709551616, "m": 5}\n', options={"big_integers": option})
    assert found.rows == [{"n": expected, "m": 5}]
    assert type(found.rows[0]["n"]) is type(expected)


def test_a_longer_line_than_any_block_is_a_row() -> None:
    text = "x" * (3 << 20)
    body = GOOD + b'{"id": 2, "text": "%s"}\n' % text.encode() + AFTER
    found = read("jsonl", body, block_bytes=1 << 16)
    assert [row["id"] for row in found.rows] == [1, 2, 3]
    assert found.rows[1]["text"] == text


@pytest.mark.parametrize("size", [1001, 5000, 3 << 20])
def test_max_row_bytes(size: int) -> None:
    line = b'{"id": 2, "t": "' + b"y" * (size - 18) + b'"}'
    assert len(line) == size
    body = GOOD + line + b"\r\n" + AFTER
    options = {"max_row_bytes": 1000}
    with pytest.raises(RowError, match=f"the line has {size:,} bytes, max_row_bytes allows 1,000.*Raise max_row_bytes") as caught:
        read("jsonl", body, options=options)
    assert caught.value.position == len(GOOD)
    found = read("jsonl", body, options=options, lenient=True)
    assert [row["id"] for row in found.rows] == [1, 3]
    assert found.positions[1] == len(GOOD) + size + 2
    assert len(found.bad) == 1


def test_max_row_bytes_exactly() -> None:
    line = b'{"a": "' + b"y" * 91 + b'"}'
    assert len(line) == 100
    for ending in (b"", b"\n", b"\r\n"):
        assert len(read("jsonl", line + ending, options={"max_row_bytes": 100}).rows) == 1
        with pytest.raises(RowError):
            read("jsonl", line + ending, options={"max_row_bytes": 99})


def test_too_long_last_line_without_newline() -> None:
    found = read("jsonl", GOOD + b'{"x": "' + b"z" * (1 << 20), options={"max_row_bytes": 500}, lenient=True)
    assert len(found.rows) == 1
    assert "1,048,583 bytes" in found.bad[0].error.reason


def test_damaged_archive_names_the_object() -> None:
    import gzip

    body = gzip.compress(b"".join(b'{"id": %d}\n' % number for number in range(100_000)))
    with pytest.raises(InputError, match=r"gzip archive is truncated or damaged.*memory://t/a\.jsonl\.gz, after \d+ decompressed bytes"):
        read("jsonl", body[:-10], "a.jsonl.gz")
