"""From a URL to a store: schemes, roots and keys, and one shared store per bucket, options and process.

``memory``, ``file`` and ``s3`` are imported directly. Every other scheme is looked up among the entry points of the group
``cloudshard.stores`` (a scan of the installed packages, 20–50 ms, once), and then in fsspec, read-only.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from cloudshard.errors import RecipeError
from cloudshard.store.limiter import AdaptiveLimiter
from cloudshard.store.memory import MemoryStore
from cloudshard.store.options import frozen, options_for, without_credentials
from cloudshard.store.port import Store
from cloudshard.store.prefixed import PrefixedStore
from cloudshard.store.reliable import ReliableStore

#: Opens the store at a bucket's root URL (for ``file``: at any folder).
Opener = Callable[[str, Mapping[str, Any]], Store]

GROUP = "cloudshard.stores"
_BUILT_IN = {
    "file": "cloudshard_backends.stores.file:open_file_store",
    "s3": "cloudshard_backends.stores.s3:open_s3_store",
    "s3a": "cloudshard_backends.stores.s3:open_s3_store",
}
_GENERIC = "cloudshard_backends.stores.generic:open_fsspec_store"
#: Extra of the distribution that brings what a scheme needs.
_EXTRAS = {"s3": "s3", "s3a": "s3", "oss": "oss"}


class _Bucket(NamedTuple):
    """What all stores of one bucket share: the connections, and the limiter, since buckets throttle as a whole."""

    store: Store
    limiter: AdaptiveLimiter


_buckets: dict[tuple[int, str, str], _Bucket] = {}
_stores: dict[tuple[int, str, str], ReliableStore] = {}
_memory: dict[str, MemoryStore] = {}
# Re-entrant, and made anew in a forked child, where another thread may have held it
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def normalise(url: str | os.PathLike[str]) -> str:
    """``url`` with a scheme and without trailing slashes; a plain path becomes an absolute ``file://`` URL."""
    text = os.fspath(url)
    if not text:
        raise RecipeError("an empty URL", mend="Give a path, or a URL such as file:///data or s3://bucket/prefix.")
    scheme, found, rest = text.partition("://")
    if not found:
        return "file://" + os.path.abspath(os.path.expanduser(text))
    if scheme == "file":
        if not rest.startswith("/"):
            raise RecipeError("a file URL needs an absolute path", where=text, mend="Write file:///folder/name, with three slashes.")
        return "file://" + os.path.normpath("/" + rest.lstrip("/"))
    return f"{scheme.lower()}://{rest.rstrip('/')}"


def locate(url: str | os.PathLike[str]) -> tuple[str, str]:
    """(root URL, key) of an object's URL: bucket and key; for files the root is ``file:///``. The key may be empty."""
    text = normalise(url)
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return "file:///", rest[1:]
    bucket, _, key = rest.partition("/")
    if not bucket and scheme != "memory":
        raise RecipeError("the URL names no bucket", where=without_credentials(text), mend=f"Write {scheme}://bucket/key.")
    return f"{scheme}://{bucket}", key


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> ReliableStore:
    """The store rooted at ``url`` (a bucket, a prefix in it, a folder): one per URL, options and process.

    Raises RecipeError when the scheme is unknown, an option is wrong, or a package is missing (it says which).
    """
    text = normalise(url)
    settings = options_for(text, options)
    mark = frozen(settings) if settings else ""
    key = (os.getpid(), text, mark)
    found = _stores.get(key)
    if found is None:
        with _lock:
            found = _stores.get(key) or _open(text, settings, mark)
            _stores[key] = found
    return found


def open_object(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> tuple[ReliableStore, str]:
    """(store of the whole bucket, key) for an object's URL. Options registered for the object's own prefix apply."""
    text = normalise(url)
    root, key = locate(text)
    return open_store(root, options_for(text, options)), key


def open_raw(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store:
    """A new store of its own, without retries: a second client, for ``doctor`` and tests."""
    text = normalise(url)
    scheme = text.partition("://")[0]
    root, prefix = (text, "") if scheme == "file" else locate(text)
    store = _with_chaos(_open_root(scheme, root, options_for(text, options)))
    return PrefixedStore(store, prefix) if prefix else store


def opened_stores() -> list[ReliableStore]:
    """Every store that this process has opened (their counters add up to its requests)."""
    pid = os.getpid()
    return [store for (owner, _, _), store in list(_stores.items()) if owner == pid]


def _open(url: str, options: Mapping[str, Any], mark: str) -> ReliableStore:
    scheme = url.partition("://")[0]
    root, prefix = (url, "") if scheme == "file" else locate(url)
    key = (os.getpid(), root, mark)
    bucket = _buckets.get(key)
    if bucket is None:
        bucket = _buckets[key] = _Bucket(_with_chaos(_open_root(scheme, root, options)), AdaptiveLimiter())
    return ReliableStore(PrefixedStore(bucket.store, prefix) if prefix else bucket.store, limiter=bucket.limiter)


def _open_root(scheme: str, root: str, options: Mapping[str, Any]) -> Store:
    if scheme == "memory":
        name = root.removeprefix("memory://")
        return _memory.setdefault(name, MemoryStore(name))
    try:
        return _opener(scheme)(root, options)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        mend = (
            f"Install it: pip install 'cloudshard[{extra}]'."
            if extra
            else f"Install what serves {scheme}://, e.g. pip install {error.name}."
        )
        raise RecipeError(
            f"{scheme}:// needs the package {error.name}, which is not installed", where=without_credentials(root), mend=mend
        ) from error


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


@cache
def _opener(scheme: str) -> Opener:
    path = _BUILT_IN.get(scheme)
    if path is None:
        if (found := _entry_points().get(scheme)) is not None and scheme != "fsspec":
            opener: Opener = found.load()
            return opener
        if not _fsspec_knows(scheme):
            known = sorted({"memory", *_BUILT_IN, *_entry_points()} - {"fsspec"})
            raise RecipeError(
                f"no store for {scheme}:// URLs",
                mend=f"Known: {', '.join(known)}; read-only, through fsspec: http, https, gs, az, hf and others. "
                f"A package may add one by an entry point in the group {GROUP!r}.",
            )
        path = _GENERIC
    module, _, name = path.partition(":")
    made: Opener = getattr(importlib.import_module(module), name)
    return made


def _fsspec_knows(scheme: str) -> bool:
    from fsspec.registry import known_implementations, registry

    return scheme in known_implementations or scheme in registry


def _with_chaos(store: Store) -> Store:
    """Faults on purpose: ``CLOUDSHARD_CHAOS="seed=7,lost_answer=0.02,throttled=0.01"`` (for tests of real processes)."""
    spec = os.environ.get("CLOUDSHARD_CHAOS")
    if not spec:
        return store
    from cloudshard.store.chaos import from_spec

    return from_spec(store, spec)
