"""The upload stream: exact parts, one buffer, a checksum, and nothing visible."""

from __future__ import annotations

import array
import csv
import io
import random
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from cloudshard.errors import NotFound, UploadGone
from cloudshard.store.memory import MemoryStore
from cloudshard.store.port import Upload, UploadPart
from cloudshard.store.registry import open_store
from cloudshard.store.upload import UploadStream


class Recording(MemoryStore):
    def __init__(self) -> None:
        super().__init__("recording")
        self.sizes: list[int] = []

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        self.sizes.append(len(data))
        return super().upload_part(upload, number, data)


@pytest.mark.parametrize("seed", range(20))
def test_any_pieces_arrive_whole_in_parts_of_exactly_the_size(seed: int) -> None:
    rng, store = random.Random(seed), Recording()
    stream = UploadStream(store, "k", 100)
    written = b""
    for _ in range(rng.randrange(40)):
        piece = rng.randbytes(rng.choice([0, 1, 7, 99, 100, 101, 250, 1000]))
        assert stream.write(rng.choice([bytes, bytearray, memoryview])(piece)) == len(piece)
        written += piece
        assert stream.tell() == len(written)
    done = stream.finish_parts()
    assert (done.size, sum(store.sizes)) == (len(written), len(written))
    assert all(size == 100 for size in store.sizes[:-1])
    assert done.checksum == "xxh3_128:" + xxhash.xxh3_128_hexdigest(written)
    assert [part.number for part in done.parts] == list(range(1, len(done.parts) + 1))
    with pytest.raises(NotFound):
        store.head("k")
    store.finish_upload(done.upload, done.parts)
    assert store.get("k") == written


def test_an_empty_object_has_one_empty_part() -> None:
    store = Recording()
    done = UploadStream(store, "k").finish_parts()
    assert (done.size, len(done.parts), done.parts[0].size) == (0, 1, 0)
    store.finish_upload(done.upload, done.parts)
    assert store.get("k") == b""


def test_nothing_is_begun_before_the_first_full_part() -> None:
    store = Recording()
    stream = UploadStream(store, "k", 100)
    stream.write(b"x" * 99)
    assert list(store.list_uploads()) == []
    stream.write(b"x")
    assert len(list(store.list_uploads())) == 1


def test_abort_before_and_after_the_end() -> None:
    store = Recording()
    for finish_first in (False, True):
        stream = UploadStream(store, "k", 10)
        stream.write(b"x" * 25)
        done = stream.finish_parts() if finish_first else None
        stream.abort()
        stream.abort()
        assert stream.closed
        assert list(store.list_uploads()) == []
        if done is not None:
            with pytest.raises(UploadGone):
                store.finish_upload(done.upload, done.parts)
        with pytest.raises(ValueError, match="aborted"):
            stream.finish_parts()


def test_after_the_end_nothing_is_taken_and_finishing_again_says_the_same() -> None:
    stream = UploadStream(Recording(), "k", 10)
    stream.write(b"x" * 25)
    done = stream.finish_parts()
    assert stream.finish_parts() is done
    with pytest.raises(ValueError, match="finished"):
        stream.write(b"y")


def test_closing_is_not_the_end() -> None:
    store = Recording()
    stream = UploadStream(store, "k", 10)
    with pa.PythonFile(stream, mode="w") as file:
        file.write(b"x" * 15)
    stream.close()
    assert not stream.closed
    assert stream.finish_parts().size == 15


def test_buffers_of_every_kind() -> None:
    stream = UploadStream(Recording(), "k", 10)
    assert stream.write(pa.py_buffer(b"arrow")) == 5
    assert stream.write(array.array("q", [1, 2])) == 16
    assert stream.tell() == 21
    assert (stream.writable(), stream.readable(), stream.seekable()) == (True, False, False)


def test_text_writers_work(file_url: str) -> None:
    store = open_store(file_url)
    stream = UploadStream(store, "out.csv")
    text = io.TextIOWrapper(io.BufferedWriter(stream), newline="")
    csv.writer(text).writerows([["a", "b"], ["ü", "2"]])
    text.flush()
    done = stream.finish_parts()
    store.finish_upload(done.upload, done.parts)
    assert store.get("out.csv").decode() == "a,b\r\nü,2\r\n"


def test_parquet_through_a_real_folder(file_url: str) -> None:
    store, table = open_store(file_url), pa.table({"a": list(range(100_000)), "b": [str(n) for n in range(100_000)]})
    stream = UploadStream(store, "out/part.parquet", 1 << 16)
    pq.write_table(table, stream, row_group_size=10_000)
    done = stream.finish_parts()
    assert len(done.parts) > 5
    store.finish_upload(done.upload, done.parts)
    path = store.url.removeprefix("file://") + "/out/part.parquet"
    assert pq.read_table(path).equals(table)
    with open(path, "rb") as file:
        assert done.checksum == "xxh3_128:" + xxhash.xxh3_128_hexdigest(file.read())


def test_memory_is_one_part(file_url: str) -> None:
    part = 4 << 20
    stream = UploadStream(open_store(file_url), "k", part)
    piece = b"x" * 100_000
    tracemalloc.start()
    for _ in range(300):
        stream.write(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    stream.abort()
    assert peak < 1.3 * part
