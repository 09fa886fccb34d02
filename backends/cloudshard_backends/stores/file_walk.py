"""A folder tree as a bucket lists it: keys in byte order, from a prefix, after a key, grouped by a delimiter.

A folder sorts as its name followed by ``/`` (so ``a-b`` comes before ``a/x``), which makes the depth-first walk yield
keys in exactly the order in which S3 lists them. Folders that cannot hold a key wanted are never opened, so the
cost is that of the keys told: about 6 µs each, one ``scandir`` per folder. Files that vanish during the walk are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cloudshard.store.port import ListPage, ObjectInfo
from cloudshard_backends.stores.file_bytes import remove_if_empty

#: Names that begin so are cloudshard's own business (pending uploads, temporary files, metadata): no key may use them.
RESERVED = ".cloudshard-"

#: Folder of the pending uploads of the files beside it.
UPLOADS = RESERVED + "uploads"

#: Keys per page, as on S3.
PAGE = 1000

_BEYOND = "\U0010ffff"


class _Entry(NamedTuple):
    name: str  # folders end in "/"
    info: os.stat_result | None  # None for folders


def etag_of(info: os.stat_result) -> str:
    """Changes whenever the file is rewritten: a replaced file has another inode, one written in place another mtime."""
    return f"{info.st_mtime_ns:x}-{info.st_size:x}-{info.st_ino:x}"


def pages(root: str, prefix: str, start_after: str, delimiter: str, failed: Callable[[OSError, str], Exception]) -> Iterator[ListPage]:
    """Pages of up to 1,000 keys and groups; at least one page. ``failed`` makes the error for a folder that cannot be read."""
    objects: list[ObjectInfo] = []
    groups: list[str] = []
    for found in _grouped(root, prefix, start_after, delimiter, failed):
        if len(objects) + len(groups) == PAGE:
            yield ListPage(tuple(objects), tuple(groups))
            objects, groups = [], []
        if isinstance(found, str):
            groups.append(found)
        else:
            objects.append(found)
    yield ListPage(tuple(objects), tuple(groups))


def _grouped(
    root: str, prefix: str, start_after: str, delimiter: str, failed: Callable[[OSError, str], Exception]
) -> Iterator[ObjectInfo | str]:
    """Keys, and groups of keys that share what follows ``prefix`` up to ``delimiter``."""
    folder = prefix[: prefix.rfind("/") + 1]
    flat = delimiter == "/"
    last_group = ""
    for found in _walk(root, folder, prefix, start_after, flat, failed, ()):
        key = found if isinstance(found, str) else found.key
        if not delimiter or (cut := key.find(delimiter, len(prefix))) < 0:
            yield found
            continue
        group = key[: cut + len(delimiter)]
        if group != last_group and group > start_after:
            last_group = group
            yield group


def _walk(
    root: str,
    folder: str,
    prefix: str,
    after: str,
    flat: bool,
    failed: Callable[[OSError, str], Exception],
    above: tuple[tuple[int, int], ...],
) -> Iterator[ObjectInfo | str]:
    """Depth first from ``folder`` ("" or ending in "/"). ``flat``: below ``prefix`` tell folders (that hold a key), do not enter."""
    path = os.path.join(root, folder)
    for name, info in _sorted_entries(path, failed):
        key = folder + name
        if info is not None:
            if key > after and key.startswith(prefix):
                yield ObjectInfo(key, info.st_size, etag_of(info), info.st_mtime)
            continue
        if not (key.startswith(prefix) or prefix.startswith(key)) or (key <= after and not after.startswith(key)):
            continue
        if after.startswith(key) and after >= key + _BEYOND:
            continue
        place = _place(path + name)
        if place is None or place in above:  # gone, or a link back to a folder that holds it
            continue
        if flat and len(key) > len(prefix) and key.startswith(prefix):
            if key > after and next(_walk(root, key, "", "", False, failed, (*above, place)), None) is not None:
                yield key
            continue
        yield from _walk(root, key, prefix, after, flat, failed, (*above, place))


def _place(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _sorted_entries(path: str, failed: Callable[[OSError, str], Exception]) -> list[_Entry]:
    """Regular files with their stat, and folders; links are followed; everything else is no object."""
    found: list[_Entry] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(RESERVED):
                    if name == UPLOADS:
                        remove_if_empty(entry.path)  # finished uploads leave it behind: the next one needs it again
                    continue
                try:
                    if entry.is_dir():
                        found.append(_Entry(name + "/", None))
                        continue
                    info = entry.stat()
                except FileNotFoundError:  # vanished, or a link to nowhere
                    continue
                if stat.S_ISREG(info.st_mode):
                    found.append(_Entry(name, info))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failed(error, path) from error
    found.sort(key=_name)
    return found


def _name(entry: _Entry) -> str:
    return entry.name
