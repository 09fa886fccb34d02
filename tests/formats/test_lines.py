"""A line belongs to the range in which it starts: any cut, any chunking, any limit."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.formats import lines as lines_module
from cloudshard.formats.lines import line_batches

CONTENT = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bb", b"{}", b"\n\n", b"x" * 9, b"\xff"]), max_size=40).map(b"".join)


def cut(
    body: bytes, start: int, end: int | None, *, chunk: int, limit: int = 1 << 30
) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    """([(offset, line)], [(offset, size) of long lines])."""
    first = max(0, start - 1)
    chunks = iter([body[at : at + chunk] for at in range(first, len(body), chunk)])
    long: list[tuple[int, int]] = []
    found = []
    for batch in line_batches(chunks, start=start, end=end, limit=limit, too_long=lambda at, size: long.append((at, size))):
        assert len(batch.lines) == len(batch.positions)
        assert b"".join(map(bytes, batch.buffers)) == b"".join(batch.lines), "the buffers hold the same bytes as the lines"
        found += [(at, bytes(line)) for at, line in zip(batch.positions, batch.lines, strict=True)]
    return found, long


def expected(body: bytes) -> list[tuple[int, bytes]]:
    """By the definition."""
    found, at = [], 0
    for line in body.split(b"\n"):
        whole = body[at : at + len(line) + 1]
        if whole:
            found.append((at, whole))
        at += len(whole)
    return found


@given(CONTENT, st.lists(st.integers(0, 200), max_size=6), st.integers(1, 50), st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_the_union_over_any_ranges_is_the_whole(body: bytes, cuts: list[int], chunk: int, piece: int) -> None:
    before = lines_module.PIECE_BYTES
    lines_module.PIECE_BYTES = piece
    try:
        edges = sorted({0, len(body), *(at for at in cuts if at < len(body))})
        found = []
        for start, end in pairwise(edges):
            here, _ = cut(body, start, end, chunk=chunk)
            assert all(start <= at < end for at, _ in here)
            found += here
        assert found == expected(body)
        assert cut(body, 0, None, chunk=chunk)[0] == expected(body)
    finally:
        lines_module.PIECE_BYTES = before


@given(CONTENT, st.integers(1, 12), st.integers(1, 50), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_long_lines_are_reported_once_and_left_out(body: bytes, limit: int, chunk: int, piece: int) -> None:
    def size(line: bytes) -> int:
        if line.endswith(b"\r\n"):
            return len(line) - 2
        return len(line) - line.endswith((b"\n", b"\r"))

    before = lines_module.PIECE_BYTES
    lines_module.PIECE_BYTES = piece
    try:
        found, long = cut(body, 0, None, chunk=chunk, limit=limit)
    finally:
        lines_module.PIECE_BYTES = before
    assert found == [(at, line) for at, line in expected(body) if size(line) <= limit]
    assert long == [(at, size(line)) for at, line in expected(body) if size(line) > limit]


def test_nothing_is_read_beyond_the_last_line_of_the_range() -> None:
    asked = []

    def chunks():  # type: ignore[no-untyped-def]
        for piece in (b"aaa\nbb", b"b\nccc\n", b"ddd\n"):
            asked.append(piece)
            yield piece

    batches = line_batches(chunks(), start=0, end=5, limit=100, too_long=lambda at, size: None)
    assert [line for batch in batches for line in batch.lines] == [b"aaa\n", b"bbb\n"]
    assert len(asked) == 2
