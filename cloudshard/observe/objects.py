"""The bytes of one object, read again: its checksum, its size, and the rows that its format says it holds."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from cloudshard.errors import IntegrityError
from cloudshard.store.port import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes per read: large enough for a store to stream at full speed, small enough for many threads.
CHUNK_BYTES = 8 << 20


def chunks(store: Store, key: str, size: int, etag: str) -> Iterator[bytes]:
    """The object's bytes in order. Raises PreconditionFailed when it changes meanwhile."""
    for start in range(0, size, CHUNK_BYTES):
        yield store.get(key, start=start, end=min(start + CHUNK_BYTES, size), if_etag=etag)


def checksum(store: Store, key: str, size: int, etag: str) -> tuple[str, int]:
    """(``xxh3_128:<hex>``, line feeds) of all bytes."""
    import xxhash

    digest = xxhash.xxh3_128()
    lines = 0
    for chunk in chunks(store, key, size, etag):
        digest.update(chunk)
        lines += chunk.count(b"\n")
    return f"xxh3_128:{digest.hexdigest()}", lines


class ObjectReader(io.RawIOBase):
    """An object as a seekable binary file: every read is one range request."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        data = self._store.get(self._key, start=self._at, end=end)
        self._at += len(data)
        return data


def count_rows(store: Store, key: str, size: int, lines: int) -> int | None:
    """Rows that the object itself says it holds; None when its format keeps no count (CSV).

    ``lines``: line feeds seen in its plain bytes. Raises IntegrityError when the object's format cannot read it.
    """
    import pyarrow as pa

    if key.endswith(".jsonl"):
        return lines
    try:
        if key.endswith(".parquet"):
            import pyarrow.parquet as pq

            return int(pq.read_metadata(_arrow_file(store, key, size)).num_rows)
        if key.endswith(".arrow"):
            return _arrow_rows(store, key, size)
        if key.endswith((".jsonl.gz", ".jsonl.zst")):
            codec: Any = "gzip" if key.endswith(".gz") else "zstd"
            with pa.CompressedInputStream(_arrow_file(store, key, size), codec) as stream:
                return sum(bytes(piece).count(b"\n") for piece in iter(lambda: stream.read(CHUNK_BYTES), b""))
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"the object cannot be read: {error}", where=f"{store.url}/{key}") from error
    return None


def _arrow_file(store: Store, key: str, size: int) -> Any:
    import pyarrow as pa

    return pa.PythonFile(ObjectReader(store, key, size), mode="r")


def _arrow_rows(store: Store, key: str, size: int) -> int:
    import pyarrow as pa

    source = _arrow_file(store, key, size)
    if store.get(key, start=0, end=6) == b"ARROW1":
        reader = pa.ipc.open_file(source)
        return sum(int(reader.get_batch(number).num_rows) for number in range(reader.num_record_batches))
    return sum(int(batch.num_rows) for batch in pa.ipc.open_stream(source))
