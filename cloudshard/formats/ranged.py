"""Reading one pinned object: as a stream of chunks, or as a random-access file for pyarrow.

Every request carries the planned ETag, so that an object which was replaced since planning is an InputChanged, never a mixture.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cloudshard.errors import InputChanged, NotFound, PreconditionFailed
from cloudshard.ledger.records import InputRange
from cloudshard.store.port import Store

#: One request of a remote store. Object stores give a single stream 50–100 MB/s: 8 MiB hide the 2–20 ms until the first byte.
REMOTE_CHUNK_BYTES = 8 << 20
#: One read of a local file or the memory store: as much as is parsed at a time (lines.PIECE_BYTES); 1 MiB costs 5–10 % more CPU on W1.
LOCAL_CHUNK_BYTES = 256 << 10
#: How far the last chunk of a range reaches beyond its end, to finish the last line without another request.
OVERSHOOT_BYTES = 64 << 10
#: Counter name, in :attr:`ReadContext.counts`.
BYTES_READ = "bytes_read"


def is_local(store: Store) -> bool:
    """Whether a read costs microseconds, so that prefetching and coalescing are not worth their threads."""
    return store.url.startswith(("file:", "memory:"))


def local_path(store: Store, key: str) -> str | None:
    """The path of a ``file://`` object, which readers may open by themselves; None for other stores."""
    return f"{store.url.removeprefix('file://')}/{key}" if store.url.startswith("file://") else None


def get_pinned(store: Store, key: str, piece: InputRange, start: int, end: int) -> bytes:
    """Bytes [start, end) of the planned version of the object. Raises InputChanged when it is gone, replaced or shorter."""
    try:
        data = store.get(key, start=start, end=end, if_etag=piece.etag or None)
    except (PreconditionFailed, NotFound) as error:
        gone = isinstance(error, NotFound)
        raise InputChanged(
            "the input object is gone" if gone else "the input object was replaced since the run was planned",
            where=piece.url,
            mend="Put the planned version back, or plan a new run over the input as it is now.",
        ) from error
    wanted = min(end, piece.size) - start
    if len(data) < wanted:
        raise InputChanged(f"the input object ends at byte {start + len(data)}, planned were {piece.size}", where=piece.url)
    return data


def chunks(
    store: Store,
    key: str,
    piece: InputRange,
    *,
    start: int,
    end: int,
    counts: MutableMapping[str, int],
    chunk_bytes: int | None = None,
) -> Iterator[bytes]:
    """The object's bytes from ``start`` on, as far as they are asked for.

    Up to ``end`` in chunks of ``chunk_bytes``, from remote stores with one chunk of prefetch; beyond ``end`` in growing steps, since a
    reader wants only the rest of its last line.
    """
    size = chunk_bytes or (LOCAL_CHUNK_BYTES if is_local(store) else REMOTE_CHUNK_BYTES)
    bounds = []
    position = start
    while position < end:
        stop = position + size
        if stop >= end - OVERSHOOT_BYTES:
            stop = end + OVERSHOOT_BYTES
        stop = min(stop, piece.size)
        bounds.append((position, stop))
        position = stop
    fetched = _prefetched(store, key, piece, bounds) if len(bounds) > 1 and not is_local(store) else _plain(store, key, piece, bounds)
    for data in fetched:
        counts[BYTES_READ] = counts.get(BYTES_READ, 0) + len(data)
        yield data
    step = OVERSHOOT_BYTES
    while position < piece.size:
        stop = min(piece.size, position + step)
        data = get_pinned(store, key, piece, position, stop)
        counts[BYTES_READ] = counts.get(BYTES_READ, 0) + len(data)
        yield data
        position = stop
        step = min(size, step * 2)


def _plain(store: Store, key: str, piece: InputRange, bounds: list[tuple[int, int]]) -> Iterator[bytes]:
    for start, end in bounds:
        yield get_pinned(store, key, piece, start, end)


def _prefetched(store: Store, key: str, piece: InputRange, bounds: list[tuple[int, int]]) -> Iterator[bytes]:
    """As :func:`_plain`, with the next chunk on its way while the caller works on this one."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="cloudshard-prefetch")
    coming: Future[bytes] | None = None
    try:
        for index in range(len(bounds)):
            here = coming.result() if coming is not None else get_pinned(store, key, piece, *bounds[index])
            more = index + 1 < len(bounds)
            coming = pool.submit(get_pinned, store, key, piece, *bounds[index + 1]) if more else None
            yield here
            del here
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class ChunkStream(io.RawIOBase):
    """A readable binary stream over an iterator of chunks (what decompressors and Arrow's stream readers want)."""

    def __init__(self, source: Iterator[bytes]) -> None:
        super().__init__()
        self._source = source
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the stream."""
        if size is None or size < 0:
            return b"".join([self._held, *self._source])
        taken: list[memoryview] = []
        wanted = size
        while wanted:
            if not len(self._held):
                chunk = next(self._source, None)
                if chunk is None:
                    break
                self._held = memoryview(chunk)
                continue
            taken.append(self._held[:wanted])
            self._held = self._held[wanted:]
            wanted -= len(taken[-1])
        return bytes(taken[0]) if len(taken) == 1 else b"".join(taken)

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class RangedFile(io.RawIOBase):
    """A pinned object as a seekable file. Each ``read`` is one request: give it to readers that coalesce (pyarrow's pre_buffer)."""

    def __init__(self, store: Store, key: str, piece: InputRange, counts: MutableMapping[str, int]) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._piece = piece
        self._counts = counts
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Bytes of the object."""
        return self._piece.size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._piece.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        end = self._piece.size if size is None or size < 0 else min(self._piece.size, self._position + size)
        if end <= self._position:
            return b""
        data = get_pinned(self._store, self._key, self._piece, self._position, end)
        self._position += len(data)
        self._counts[BYTES_READ] = self._counts.get(BYTES_READ, 0) + len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
