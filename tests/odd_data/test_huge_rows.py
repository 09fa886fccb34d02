"""Rows and files far larger than any block, in a process of its own whose peak memory is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CHILD = """
import io, sys
from cloudshard.engine.block import Origin
from cloudshard.formats.port import ReadContext
from cloudshard.formats.registry import get_format
from cloudshard.store.registry import open_object

path, limit = sys.argv[1], int(sys.argv[2])

class Discard:
    size = 0
    def write(self, data):
        self.size += len(data)
        return len(data)

def bad_row(error, row):
    raise error

store, key = open_object(path)
info = store.head(key)
fmt = get_format("jsonl")
options = {"max_row_bytes": limit}
sink = Discard()
writer = fmt.open_writer(sink, None, {})
for piece in fmt.split(store, info, path, None, options):
    context = ReadContext(store=store, key=key, origin=Origin(0, path, "byte"), options=options, schema=None, bad_row=bad_row)
    for block in fmt.read(piece, context):
        writer.write(block)
        del block
writer.finish()
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(writer.rows, sink.size, int(peak) // 1024)
"""


def run(path: Path, limit: int) -> tuple[int, int, int]:
    """(rows, bytes written, peak MiB)."""
    out = subprocess.run([sys.executable, "-c", _CHILD, str(path), str(limit)], capture_output=True, text=True, check=True).stdout
    rows, size, peak = map(int, out.split())
    return rows, size, peak


def test_a_file_of_many_blocks_needs_the_memory_of_one(tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    line = b'{"id": 1, "text": "' + b"some text " * 200 + b'"}\n'
    small.write_bytes(line * 500)
    large.write_bytes(line * 60_000)
    _, _, base = run(small, 1 << 20)
    rows, _, peak = run(large, 1 << 20)
    assert rows == 60_000
    assert peak - base <= 24, f"{peak - base} MiB for a file of {large.stat().st_size >> 20} MiB"


@pytest.mark.parametrize("text", [b"0123456789abcdef", b"line one\\nline22"])
def test_a_huge_line_is_held_once_as_text_and_once_as_a_row(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "huge.jsonl"
    megabytes = 48
    path.write_bytes(b'{"id": 1}\n{"text": "' + text * (megabytes << 16) + b'"}\n{"id": 3}\n')
    small = tmp_path / "small.jsonl"
    small.write_bytes(b'{"id": 1}\n')
    _, _, base = run(small, 64 << 20)
    rows, size, peak = run(path, 64 << 20)
    assert rows == 3
    assert size >= megabytes << 20
    # text + row + the parser's or the writer's own buffer
    assert peak - base <= 3.2 * megabytes, f"{peak - base} MiB for a line of {megabytes} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"0123456789abcdef", b"line one\\nline22"])
def test_a_line_of_300_mb_passes_in_1_gib(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "huge.jsonl"
    path.write_bytes(b'{"id": 1}\n{"text": "' + text * (300 << 16) + b'"}\n{"id": 3}\n')
    rows, _, peak = run(path, 400 << 20)
    assert rows == 3
    assert peak < 1024
