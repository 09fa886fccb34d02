"""JSON lines: ranges, compression, streaming, samples."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from itertools import pairwise

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import InputChanged, InputError, RecipeError
from cloudshard.formats import ranged
from cloudshard.formats.json_rows import key_marks, keys_at_most, measure
from cloudshard.formats.lines import PIECE_BYTES
from cloudshard.formats.registry import get_format
from cloudshard.ledger.records import InputRange
from tests.formats.helpers import RemoteStore, context_for, read, rows_of, stored

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ROW = st.dictionaries(st.text(max_size=8), VALUE, max_size=5)
JUNK = st.sampled_from([b"", b"  ", b"[1]", b'{"a":1,"a":2}', b"\xff", b"{", b'{"n":99999999999999999999}', b'{"t":"\\":"}'])


@given(
    st.lists(ROW.map(orjson.dumps) | ROW.map(lambda row: json.dumps(row, separators=(", ", " : ")).encode()) | JUNK, max_size=25),
    st.lists(st.integers(1, 2000), max_size=5),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.integers(1, 7),
)
@settings(max_examples=100, deadline=None)
def test_the_union_over_any_cuts_equals_one_range(lines: list[bytes], cuts: list[int], ending: bytes, ended: bool, block_rows: int) -> None:
    body = ending.join(lines) + (ending if ended else b"")
    whole = read("jsonl", body, lenient=True)
    pieces = read("jsonl", body, lenient=True, cuts=[at for at in cuts if at < len(body)], block_rows=block_rows)
    assert pieces.rows == whole.rows
    assert pieces.positions == whole.positions
    assert [bad.error.args for bad in pieces.bad] == [bad.error.args for bad in whole.bad]
    assert all(len(block) <= block_rows for block in pieces.blocks)
    assert len(whole.rows) + len(whole.bad) + whole.counts.get("blank_lines", 0) == len(body.splitlines() if body else [])


@given(st.lists(ROW, max_size=20))
@settings(max_examples=60, deadline=None)
def test_rows_are_exactly_what_stands_there(rows: list[dict[str, object]]) -> None:
    body = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    assert read("jsonl", body).rows == rows


@given(ROW, st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_count_of_keys_is_never_too_small(row: dict[str, object], compact: bool) -> None:
    """An undercount would let a duplicate key pass."""
    line = orjson.dumps(row) if compact else json.dumps(row, separators=(" ,", " :\t")).encode()
    keys = measure([row]).keys
    assert keys_at_most(line) >= keys
    assert key_marks(line * 1) >= keys
    padded = line + b" " * 1000  # beyond the size from which numpy counts
    assert key_marks(padded) >= keys


@pytest.mark.parametrize("shift", range(-3, 4))
def test_a_key_over_the_edge_of_two_pieces_is_counted(shift: int) -> None:
    """A huge line is counted piece by piece; the pair of quote and colon may lie on the edge."""
    head, tail = b'{"p":"', b'","k":1,"k":2}'
    line = head + b"x" * (PIECE_BYTES - len(head) - 5 + shift) + tail
    assert key_marks(line) == 3
    found = read("jsonl", line + b"\n", lenient=True)
    assert "'k' stands twice" in found.bad[0].error.reason


def test_blocks_keep_their_bounds() -> None:
    body = b"".join(b'{"id": %d, "t": "%s"}\n' % (number, b"x" * 1000) for number in range(5000))
    found = read("jsonl", body, block_rows=300, block_bytes=100_000)
    assert [row["id"] for row in found.rows] == list(range(5000))
    assert max(map(len, found.blocks)) <= 300
    assert max(block.nbytes for block in found.blocks) <= 130_000
    assert sum(block.nbytes for block in found.blocks) == pytest.approx(len(body), rel=0.01)


def test_one_row_at_a_time() -> None:
    found = read("jsonl", b'{"a":1}\n' * 10, block_rows=1)
    assert [len(block) for block in found.blocks] == [1] * 10


def test_split_covers_the_file() -> None:
    body = b'{"a":1}\n' * 100_000
    _, info, url = stored(body, "a.jsonl")
    pieces = get_format("jsonl").split(stored(body, "a.jsonl")[0], info, url, 100_000, {})
    assert len(pieces) == 8
    assert pieces[0].start == 0
    assert pieces[-1].end == len(body)
    assert all(one.end == two.start for one, two in pairwise(pieces))
    assert len(read("jsonl", body, target_bytes=100_000).rows) == 100_000


# ---------------------------------------------------------------- compression

LINES = b"".join(b'{"id": %d}\n' % number for number in range(50_000))


def _packed(codec: str) -> Callable[[bytes], bytes]:
    python = {"gzip": gzip.compress, "bz2": bz2.compress}
    return python.get(codec) or (lambda body: pa.Codec(codec).compress(body, asbytes=True))


@pytest.mark.parametrize(("codec", "suffix"), [("gzip", ".gz"), ("zstd", ".zst"), ("bz2", ".bz2"), ("lz4", ".lz4")])
class TestCompressed:
    def test_is_one_shard_with_decompressed_offsets(self, codec: str, suffix: str) -> None:
        body = _packed(codec)(LINES)
        store, info, url = stored(body, "a.jsonl" + suffix)
        pieces = get_format("jsonl").split(store, info, url, 1000, {})
        assert [(piece.unit, piece.start, piece.end) for piece in pieces] == [("object", 0, len(body))]
        found = read("jsonl", body, "a.jsonl" + suffix)
        assert [row["id"] for row in found.rows] == list(range(50_000))
        assert found.positions[-1] == len(LINES) - len(b'{"id": 49999}\n')

    def test_several_members_are_one_stream(self, codec: str, suffix: str) -> None:
        pack = _packed(codec)
        body = pack(LINES[:100]) + pack(b"") + pack(LINES[100:])
        assert len(read("jsonl", body, "a.jsonl" + suffix).rows) == 50_000

    def test_truncated_is_an_error_that_names_the_object(self, codec: str, suffix: str) -> None:
        pack = _packed(codec)
        for body in (pack(LINES)[:-3], pack(LINES) + pack(LINES)[:20], LINES):
            with pytest.raises(InputError, match=r"truncated or damaged.*a.jsonl"):
                read("jsonl", body, "a.jsonl" + suffix)

    def test_named_by_option(self, codec: str, suffix: str) -> None:
        assert len(read("jsonl", _packed(codec)(LINES), "data", options={"compression": codec}).rows) == 50_000


def test_compression_none_reads_gz_named_text() -> None:
    assert read("jsonl", b'{"a": 1}\n', "odd.gz", options={"compression": "none"}).rows == [{"a": 1}]


def test_a_changed_object_inside_an_archive_is_not_damage() -> None:
    store, info, url = stored(gzip.compress(LINES), "a.jsonl.gz")
    piece = get_format("jsonl").split(store, info, url, None, {})[0]
    store.put("a.jsonl.gz", gzip.compress(LINES[:50]))
    with pytest.raises(InputChanged):
        list(get_format("jsonl").read(piece, context_for(store, "a.jsonl.gz", url)))


# ---------------------------------------------------------------- the store


def test_another_version_is_input_changed() -> None:
    store, info, url = stored(b'{"a": 1}\n', "a.jsonl")
    piece = InputRange(url, info.size, info.etag, 0, info.size)
    store.put("a.jsonl", b'{"a": 2}\n')
    with pytest.raises(InputChanged, match="replaced since the run was planned"):
        list(get_format("jsonl").read(piece, context_for(store, "a.jsonl", url)))
    store.delete(["a.jsonl"])
    with pytest.raises(InputChanged, match="gone"):
        list(get_format("jsonl").read(piece, context_for(store, "a.jsonl", url)))


def test_remote_reads_are_few_and_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "REMOTE_CHUNK_BYTES", 200_000)
    body = b"".join(b'{"id": %d, "t": "%s"}\n' % (number, b"x" * 100) for number in range(10_000))
    store = RemoteStore()
    found = read("jsonl", body, store=store)
    assert [row["id"] for row in found.rows] == list(range(10_000))
    assert len(store.gets) <= len(body) / 200_000 + 1
    assert found.counts["bytes_read"] == len(body)
    store = RemoteStore()
    assert read("jsonl", body, store=store, target_bytes=300_000).rows == found.rows
    per_range = len(store.gets) / -(-len(body) // 300_000)
    assert per_range == 1, "the end of the last line needs no request of its own"


def test_a_reader_that_is_abandoned_stops_its_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "REMOTE_CHUNK_BYTES", 70_000)
    store, info, url = stored(b'{"a": 1}\n' * 200_000, "a.jsonl", RemoteStore())
    assert isinstance(store, RemoteStore)
    blocks = get_format("jsonl").read(InputRange(url, info.size, info.etag, 0, info.size), context_for(store, "a.jsonl", url))
    next(iter(blocks))
    blocks.close()  # type: ignore[attr-defined]
    assert len(store.gets) <= 8


# ---------------------------------------------------------------- samples and options


def test_sample_takes_head_and_tail() -> None:
    body = b"".join(b'{"id": %d, "t": "%s"}\n' % (number, b"x" * 2000) for number in range(2000))
    store, info, url = stored(body, "a.jsonl")
    rows = rows_of(get_format("jsonl").sample(store, info, url, {}, rows=10))
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4, 1995, 1996, 1997, 1998, 1999]


def test_sample_of_a_small_file_takes_no_row_twice() -> None:
    store, info, url = stored(b'{"id": 1}\n{"id": 2}\n', "a.jsonl")
    assert rows_of(get_format("jsonl").sample(store, info, url, {}, rows=100)) == [{"id": 1}, {"id": 2}]


def test_sample_skips_bad_rows_and_reads_compressed_heads() -> None:
    body = gzip.compress(b'{"id": 1}\nbad\n{"id": 2}\n' + LINES)
    store, info, url = stored(body, "a.jsonl.gz")
    assert rows_of(get_format("jsonl").sample(store, info, url, {}, rows=2)) == [{"id": 1}, {"id": 2}]


def test_sample_of_long_lines() -> None:
    body = b"".join(b'{"id": %d, "t": "%s"}\n' % (number, b"x" * 700_000) for number in range(5))
    store, info, url = stored(body, "a.jsonl")
    rows = rows_of(get_format("jsonl").sample(store, info, url, {}, rows=2))
    assert rows[0]["id"] == 0
    assert rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_row_byte": 5}, "unknown option 'max_row_byte'.*Did you mean 'max_row_bytes'"),
        ({"max_row_bytes": 0}, "whole number of at least 1"),
        ({"nan": "zero"}, "nan must be one of error, null"),
        ({"compression": "rar"}, "compression must be one of"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read("jsonl", b"{}", options=options)
