"""Reading many ledger objects at once: plain LISTs, and parallel GETs and HEADs in bounded numbers.

Small objects cost a round trip each, so they are asked for from a thread pool: 5,000 commit records of 1 KB take about a
second on the file store, and on S3 about as many round trips divided by the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cloudshard.errors import NotFound
from cloudshard.store.port import ObjectInfo, Store

#: Enough to hide a 20 ms round trip for a few thousand objects; few enough not to be throttled on a cold prefix.
THREADS = 24
#: Below this many objects a pool costs more than it saves.
_SERIAL = 4

T = TypeVar("T")


def list_objects(store: Store, prefix: str) -> list[ObjectInfo]:
    """Every object under ``prefix``, in key order: one request per 1,000 keys."""
    return [info for page in store.list(prefix) for info in page.objects]


def list_folders(store: Store, prefix: str = "") -> list[str]:
    """The names of the "folders" directly under ``prefix`` (each ends in ``/``, prefix included)."""
    return [name for page in store.list(prefix, delimiter="/") for name in page.prefixes]


def get_many(store: Store, keys: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """(key, body) in the order of ``keys``; a key that is gone by now is left out."""
    return _each(store.get, list(keys))


def head_many(store: Store, keys: Iterable[str]) -> Iterator[tuple[str, ObjectInfo]]:
    """(key, head with user metadata) in the order of ``keys``; a key that is gone by now is left out."""
    return _each(store.head, list(keys))


def parallel(call: Callable[[str], T], keys: Sequence[str]) -> Iterator[T]:
    """``call(key)`` for every key, from a thread pool, results in order."""
    if len(keys) <= _SERIAL:
        yield from map(call, keys)
        return
    with ThreadPoolExecutor(min(THREADS, len(keys)), thread_name_prefix="observe") as pool:
        yield from pool.map(call, keys, chunksize=1)


def _each(call: Callable[[str], T], keys: Sequence[str]) -> Iterator[tuple[str, T]]:
    def one(key: str) -> tuple[str, T] | None:
        try:
            return key, call(key)
        except NotFound:
            return None

    yield from (found for found in parallel(one, keys) if found is not None)
