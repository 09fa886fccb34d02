"""Listing the input: from URLs, folders and globs to the pinned objects, by LIST requests alone.

Each URL may lie in another store. The result is sorted by URL (code points), each object once, whatever the order in which stores
list: so work items do not depend on it. A folder that a run of ours wrote (it holds ``_cloudshard/<tag>.json``) is read as its manifests
say: only the parts that they name, so that files of an interrupted overwrite are never read. That is one GET each; nothing else is opened.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudshard.errors import IntegrityError, RecipeError
from cloudshard.ledger.records import decode
from cloudshard.ledger.seal import MANIFESTS, Manifest
from cloudshard.plan.glob import Glob, compile_exclude, compile_glob, has_magic, visible_below
from cloudshard.store.port import ObjectInfo, Store
from cloudshard.store.registry import normalise, open_object

#: Source options that only the listing knows; a format never sees them.
LISTING_OPTIONS = ("exclude", "include_hidden")

#: Schemes whose stores need no account: options that are meant for a bucket are not for them.
_LOCAL = ("file://", "memory://")

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class InputObject:
    """One object of the input: where it is and which version of it."""

    url: str
    store: Store = field(compare=False, repr=False)
    info: ObjectInfo


def list_inputs(urls: Sequence[str], storage_options: Mapping[str, Any], options: Mapping[str, Any]) -> list[InputObject]:
    """All objects that ``urls`` name, sorted by URL.

    A URL is a file, a folder (with or without a final ``/``; all visible files below it) or a glob (``*``, ``?``, ``[…]``, ``**``); a
    path without scheme is local. ``options``: ``exclude`` (globs; a pattern without leading ``/`` may match anywhere in the path, and a
    folder's name excludes what is in it) and ``include_hidden``. Raises RecipeError naming the URL that matches nothing.
    """
    if not urls:
        raise RecipeError("the source names no input", mend="Give at least one file, folder or glob")
    listing = _Listing(options_by_url(urls, storage_options), options)
    plain = [url for url in urls if not has_magic(_path_of(url)) and not url.endswith("/")]
    for url in urls:
        if has_magic(_path_of(url)):
            listing.add_glob(normalise(url))
        elif url.endswith("/"):
            listing.add_folder(normalise(url) + "/")
    listing.add_plain([normalise(url) for url in plain])
    return [listing.found[url] for url in sorted(listing.found)]


def options_by_url(urls: Sequence[str], storage_options: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    """Which options go with which URL: where ``urls`` mix a bucket with local files, the options are the bucket's."""
    mixed = len({normalise(url).startswith(_LOCAL) for url in urls}) > 1
    return lambda url: {} if mixed and url.startswith(_LOCAL) else storage_options


def url_of(store: Store, key: str) -> str:
    """The URL of an object: ``s3://bucket/key``, ``file:///folder/name``."""
    return f"{store.url}/{key}" if not store.url.endswith(":///") else f"{store.url}{key}"


def _path_of(url: str) -> str:
    """Without scheme and bucket, where ``?`` and ``[`` may stand for something else."""
    match = _SCHEME.match(url)
    return url if match is None else url[match.end() :]


class _Listing:
    """Collects what the URLs name; ``found`` is by URL."""

    def __init__(self, options_of: Callable[[str], Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        self.found: dict[str, InputObject] = {}
        self._options_of = options_of
        exclude = options.get("exclude") or ()
        self._excludes = [compile_exclude(pattern) for pattern in ([exclude] if isinstance(exclude, str) else exclude)]
        self._include_hidden = bool(options.get("include_hidden", False))

    def add_glob(self, url: str) -> None:
        """All that match the pattern. When nothing does, a file of exactly that name (``data[1].jsonl``) will do."""
        head, tail = _split_at_magic(url)
        store, folder = self._open_folder(head)
        glob = compile_glob(folder + tail, include_hidden=self._include_hidden)
        candidates = self._below(store, glob.literal) if glob.deep else _objects(store, glob.literal, delimiter="/")
        seen, matched = self._add_matching(store, candidates, glob, url)
        if not matched:
            for info in _objects(store, folder + tail, delimiter="/"):
                if info.key == folder + tail:
                    self._add(store, info)
                    return
            raise _nothing(url, seen)

    def add_folder(self, url: str) -> None:
        """All visible files below the folder ``url`` (ending in ``/``)."""
        store, folder = self._open_folder(url)
        visible = Glob(literal=folder, folder=folder, deep=True, pattern=visible_below(folder, include_hidden=self._include_hidden))
        seen, matched = self._add_matching(store, self._below(store, folder), visible, url)
        if not matched:
            raise _nothing(url, seen)

    def add_plain(self, urls: Sequence[str]) -> None:
        """Files or folders named without wildcards. Files of one folder share LIST pages: a list of 100,000 files costs 100 requests."""
        groups: dict[str, set[str]] = defaultdict(set)
        for url in urls:
            parent, _, name = url.rpartition("/")
            if not name or parent.endswith(("/", ":")):  # the root of a store: s3://bucket
                self.add_folder(url + "/")
            else:
                groups[parent + "/"].add(name)
        for parent, names in sorted(groups.items()):
            store, folder = self._open_folder(parent)
            for name in sorted(self._add_siblings(store, folder, names)):
                self._add_one(store, folder + name, parent + name)

    def _add_siblings(self, store: Store, folder: str, names: set[str]) -> set[str]:
        """Adds the files among ``names`` that common LIST pages show; returns the names that are still unknown."""
        missing = set(names)
        if len(names) == 1:
            return missing
        last = folder + max(names)
        pages = store.list(folder + _common_prefix(names), delimiter="/")
        for number, page in enumerate(pages):
            for info in page.objects:
                name = info.key[len(folder) :]
                if name in missing:
                    self._add(store, info)
                    missing.discard(name)
            past = bool(page.objects) and page.objects[-1].key >= last
            if not missing or past or number >= len(names):  # few files in a huge folder: asked for singly
                break
        return missing

    def _add_one(self, store: Store, key: str, url: str) -> None:
        """A file of that name, or else a folder."""
        for info in _objects(store, key, delimiter="/"):
            if info.key == key:
                self._add(store, info)
                return
            break  # an object of exactly this name would be the first in key order
        self.add_folder(url + "/")

    def _add_matching(self, store: Store, candidates: Iterator[ObjectInfo], glob: Glob, url: str) -> tuple[int, int]:
        """Adds the candidates that match and that no manifest hides; returns how many were seen and how many match."""
        matched: list[ObjectInfo] = []
        manifests: list[str] = []
        keys: set[str] = set()
        for info in candidates:
            keys.add(info.key)
            if MANIFESTS in info.key and _manifest_folder(info.key) is not None:
                manifests.append(info.key)
            elif glob.pattern.match(info.key) and not info.key.endswith("/"):
                matched.append(info)
        if not glob.deep or glob.literal != glob.folder:  # the LIST did not go through the folder's manifests
            manifests += [info.key for info in _objects(store, glob.folder + MANIFESTS) if _manifest_folder(info.key) == glob.folder]
        named = _named_parts(store, manifests)
        if named:
            matched = [info for info in matched if _is_named(info.key, named)]
            for folder, parts in named.items():
                missing = sorted(parts - keys) if glob.deep and folder.startswith(glob.literal) else ()
                if missing:
                    raise IntegrityError(
                        f"{len(missing)} parts that the manifest names are missing, the first is {missing[0]}",
                        where=f"{store.url}/{folder}{MANIFESTS}",
                        mend="Restore them, or remove the manifest to read what is there",
                    )
        return len(keys), sum(self._add(store, info) for info in matched)

    def _add(self, store: Store, info: ObjectInfo) -> int:
        url = url_of(store, info.key)
        if any(pattern.match(url) for pattern in self._excludes):
            return 0
        self.found[url] = InputObject(url=url, store=store, info=info)
        return 1

    def _below(self, store: Store, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with ``prefix``. A bucket tells 1,000 of them per request, whatever their folders; of a local
        folder tree, excluded branches (an environment with 50,000 files) are not even opened."""
        if not store.url.startswith("file://"):
            yield from _objects(store, prefix)
            return
        for page in store.list(prefix, delimiter="/"):
            yield from page.objects
            for folder in page.prefixes:
                if not any(pattern.match(url_of(store, folder.rstrip("/"))) for pattern in self._excludes):
                    yield from self._below(store, folder)

    def _open_folder(self, url: str) -> tuple[Store, str]:
        """The store, and the folder's key prefix in it: empty or ending in ``/``."""
        store, key = open_object(url, self._options_of(url))
        return store, f"{key}/" if key else ""


def _split_at_magic(url: str) -> tuple[str, str]:
    """The URL of the folder above the first wildcard, and the rest."""
    scheme = _SCHEME.match(url)
    begin = scheme.end() if scheme else 0
    at = begin
    while True:
        slash = url.find("/", at)
        if slash < 0:
            return url[:at], url[at:]
        if has_magic(url[at:slash]):
            return url[:at], url[at:]
        at = slash + 1


def _objects(store: Store, prefix: str, *, delimiter: str = "") -> Iterator[ObjectInfo]:
    for page in store.list(prefix, delimiter=delimiter):
        yield from page.objects


def _manifest_folder(key: str) -> str | None:
    """The folder (empty, or ending in ``/``) whose manifest ``key`` is; None when it is none."""
    head, slash, name = key.rpartition(MANIFESTS)
    if not slash or "/" in name or not name.endswith(".json") or (head and not head.endswith("/")):
        return None
    return head


def _named_parts(store: Store, manifests: Sequence[str]) -> dict[str, set[str]]:
    """Folder → keys of the parts that its manifests in force name. A manifest that another one replaces is not in force."""
    read = {key: decode(Manifest, store.get(key), where=f"{store.url}/{key}") for key in manifests}
    replaced = {f"{_manifest_folder(key)}{old}" for key, manifest in read.items() for old in manifest.replaces}
    named: dict[str, set[str]] = {}
    for key, manifest in read.items():
        folder = _manifest_folder(key) or ""
        parts = named.setdefault(folder, set())
        if key not in replaced:
            parts.update(folder + part.key for part in manifest.parts)
    return named


def _is_named(key: str, named: Mapping[str, set[str]]) -> bool:
    """Whether the nearest folder with a manifest names ``key``; files outside of any such folder count as named."""
    folder = key
    while folder:
        folder = folder[: folder.rstrip("/").rfind("/") + 1]
        if folder in named:
            return key in named[folder]
    return True


def _nothing(url: str, seen: int) -> RecipeError:
    if seen:
        return RecipeError(
            f"no input matches {url}: {seen:,} objects are there, but hidden (names that begin with . or _), excluded or of another name",
            mend="Spell the name's first character in the pattern (_*.jsonl), or set include_hidden",
        )
    return RecipeError(f"no input matches {url}", mend="Check the URL, the bucket's region and endpoint; ** matches folders of any depth")


def _common_prefix(names: set[str]) -> str:
    """The characters that all names begin with."""
    first, last = min(names), max(names)
    at = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:at]
