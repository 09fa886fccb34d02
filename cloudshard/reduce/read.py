"""Reading slices of runs: neighbours in one request, a few requests ahead within a byte budget, every slice checked.

A slice that is short, damaged, or has another number of rows than its commit record says is an IntegrityError that names the object and
the byte range. Rows come in the order of the slices as given; a table has at most one message of a slice (about 4 MiB of Arrow data).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import xxhash

from cloudshard.errors import IntegrityError, NotFound, PreconditionFailed
from cloudshard.reduce.runs import Slice
from cloudshard.store.port import Store

#: Bytes between two wanted slices that are cheaper to read than a further request (a request costs about as much as 256 KiB).
GAP_BYTES = 256 << 10
#: A request asks for no more, unless one slice alone is larger.
REQUEST_BYTES = 16 << 20
THREADS = 4

_MEND = "The run is damaged: was something else writing under the run's prefix? Run again on a new prefix."

#: Opens the store of an object's URL: (store, key).
OpenObject = Callable[[str], tuple[Store, str]]


class Wanted(NamedTuple):
    """One slice of one object. ``etag`` may be empty: a run's name has a nonce, so it is never written again."""

    url: str
    etag: str
    slice: Slice


class Request(NamedTuple):
    """One range read, and the slices that it serves."""

    url: str
    etag: str
    start: int
    end: int
    slices: tuple[Slice, ...]


def coalesce(wanted: Iterable[Wanted], *, gap_bytes: int = GAP_BYTES, request_bytes: int = REQUEST_BYTES) -> list[Request]:
    """The requests for slices in the given order: a slice joins the request before it when it is near, and the request not too large."""
    requests: list[Request] = []
    for one in wanted:
        piece = one.slice
        if requests:
            last = requests[-1]
            near = last.url == one.url and last.etag == one.etag and 0 <= piece.start - last.end <= gap_bytes
            if near and piece.end - last.start <= request_bytes:
                requests[-1] = last._replace(end=piece.end, slices=(*last.slices, piece))
                continue
        requests.append(Request(one.url, one.etag, piece.start, piece.end, (piece,)))
    return requests


def read_slices(
    open_object: OpenObject,
    wanted: Sequence[Wanted],
    *,
    prefetch_bytes: int = 4 * REQUEST_BYTES,
    gap_bytes: int = GAP_BYTES,
    request_bytes: int = REQUEST_BYTES,
    threads: int = THREADS,
) -> Iterator[pa.Table]:
    """The rows of the slices, in the given order. At most ``prefetch_bytes`` (or one request) are fetched and not yet handed out.

    Raises IntegrityError, and what the store raises.
    """
    for _, table in read_numbered(
        open_object, wanted, prefetch_bytes=prefetch_bytes, gap_bytes=gap_bytes, request_bytes=request_bytes, threads=threads
    ):
        yield table


def read_numbered(
    open_object: OpenObject,
    wanted: Sequence[Wanted],
    *,
    prefetch_bytes: int = 4 * REQUEST_BYTES,
    gap_bytes: int = GAP_BYTES,
    request_bytes: int = REQUEST_BYTES,
    threads: int = THREADS,
) -> Iterator[tuple[int, pa.Table]]:
    """As :func:`read_slices`, each table with the number of its slice in ``wanted``."""
    requests = coalesce(wanted, gap_bytes=gap_bytes, request_bytes=request_bytes)
    number = 0
    for request, body in _bodies(open_object, requests, prefetch_bytes, threads):
        for piece in request.slices:
            for table in tables_of(body[piece.start - request.start : piece.end - request.start], piece, request.url):
                yield number, table
            number += 1


def _bodies(open_object: OpenObject, requests: Sequence[Request], budget: int, threads: int) -> Iterator[tuple[Request, memoryview]]:
    ahead: deque[tuple[Request, Future[bytes]]] = deque()
    held = 0
    following = iter(requests)
    upcoming = next(following, None)
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="slices") as pool:
        try:
            while upcoming is not None or ahead:
                while upcoming is not None and (not ahead or held + upcoming.end - upcoming.start <= budget):
                    held += upcoming.end - upcoming.start
                    ahead.append((upcoming, pool.submit(_fetch, open_object, upcoming)))
                    upcoming = next(following, None)
                request, future = ahead.popleft()
                yield request, memoryview(future.result())
                held -= request.end - request.start
        finally:
            for _, future in ahead:
                future.cancel()


def _fetch(open_object: OpenObject, request: Request) -> bytes:
    store, key = open_object(request.url)
    try:
        return store.get(key, start=request.start, end=request.end, if_etag=request.etag or None)
    except (NotFound, PreconditionFailed) as error:
        raise IntegrityError(f"a run that a commit record names cannot be read: {error.what}", where=request.url, mend=_MEND) from error


def tables_of(body: memoryview, piece: Slice, url: str) -> Iterator[pa.Table]:
    """The tables of one slice's bytes, checked. Raises IntegrityError."""
    where = f"{url}, bytes {piece.start}-{piece.end}"
    if len(body) != piece.end - piece.start:
        raise IntegrityError(f"the object ends early: {len(body)} of {piece.end - piece.start} bytes of a slice", where=where, mend=_MEND)
    if xxhash.xxh3_64_hexdigest(body) != piece.checksum:
        raise IntegrityError("a slice's bytes are not those that were committed (checksum)", where=where, mend=_MEND)
    rows = 0
    try:
        with pa.ipc.open_stream(pa.py_buffer(body), options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            for batch in reader:
                rows += batch.num_rows
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, EOFError) as error:
        raise IntegrityError(f"a slice is not an Arrow stream: {error}", where=where, mend=_MEND) from error
    if rows != piece.rows:
        raise IntegrityError(f"a slice has {rows} rows, its commit record says {piece.rows}", where=where, mend=_MEND)
