"""A bucket in memory, as strict as S3: for tests, for the simulation, and for trying things in a notebook."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import xxhash
from sortedcontainers import SortedList

from cloudshard.errors import AlreadyExists, IntegrityError, NotFound, PreconditionFailed, UploadGone
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Upload, UploadPart

PAGE = 1000


class _Object(NamedTuple):
    body: bytes
    etag: str
    last_modified: float
    metadata: dict[str, str] | None


class _Pending(NamedTuple):
    key: str
    part_size: int
    started: float
    parts: dict[int, bytes]


class MemoryStore:
    """Objects in a dict. ``clock`` is the store's clock; ``resolution`` the grain of its times in seconds (S3: 1.0).

    As on S3, an ETag is a function of the body alone, and LIST knows no user metadata.
    """

    default_part_size = 8 << 20

    def __init__(self, name: str = "", *, clock: Callable[[], float] = time.time, resolution: float = 0.0) -> None:
        self.url = f"memory://{name}"
        self._clock = clock
        self._resolution = resolution
        self._objects: dict[str, _Object] = {}
        self._keys: SortedList[str] = SortedList()
        self._uploads: dict[str, _Pending] = {}
        self._lock = threading.RLock()
        self._upload_number = 0

    def _now(self) -> float:
        now = self._clock()
        return now if not self._resolution else now - now % self._resolution

    def _write(self, key: str, body: bytes, metadata: Mapping[str, str] | None) -> ObjectInfo:
        if key not in self._objects:
            self._keys.add(key)
        made = _Object(body, xxhash.xxh3_64_hexdigest(body), self._now(), dict(metadata) if metadata else None)
        self._objects[key] = made
        return ObjectInfo(key, len(body), made.etag, made.last_modified, made.metadata)

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        with self._lock:
            if key in self._objects:
                raise AlreadyExists("the key exists", where=f"{self.url}/{key}")
            return self._write(key, body, metadata)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        with self._lock:
            return self._write(key, body, metadata)

    def _find(self, key: str) -> _Object:
        found = self._objects.get(key)
        if found is None:
            raise NotFound("no such key", where=f"{self.url}/{key}")
        return found

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        found = self._find(key)
        if if_etag is not None and if_etag != found.etag:
            raise PreconditionFailed("the object has another ETag", where=f"{self.url}/{key}")
        return found.body if start == 0 and end is None else found.body[start:end]

    def head(self, key: str) -> ObjectInfo:
        found = self._find(key)
        return ObjectInfo(key, len(found.body), found.etag, found.last_modified, found.metadata or {})

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        after = start_after
        while True:
            with self._lock:
                page, after, more = self._page(prefix, after, start_after, delimiter)
            yield page
            if not more:
                return

    def _page(self, prefix: str, after: str, start_after: str, delimiter: str) -> tuple[ListPage, str, bool]:
        """One page from the first key that is after ``after``: (page, last key told, whether there is more)."""
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        keys = self._keys.irange(max(after, prefix), inclusive=(after < prefix, True))
        key = next(keys, None)
        while key is not None and key.startswith(prefix):
            if len(objects) + len(prefixes) == PAGE:
                return ListPage(tuple(objects), tuple(prefixes), self._now()), after, True
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:  # skip all keys of the group
                group = key[: cut + len(delimiter)]
                after = group + "\U0010ffff"
                if group > start_after:
                    prefixes.append(group)
                keys = self._keys.irange(after)
            else:
                found = self._objects[key]
                objects.append(ObjectInfo(key, len(found.body), found.etag, found.last_modified))
                after = key
            key = next(keys, None)
        return ListPage(tuple(objects), tuple(prefixes), self._now()), after, False

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                if self._objects.pop(key, None) is not None:
                    self._keys.remove(key)

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        with self._lock:
            self._upload_number += 1
            upload_id = f"u{self._upload_number}"
            self._uploads[upload_id] = _Pending(key, part_size, self._now(), {})
            return Upload(key, upload_id, part_size)

    def _pending(self, upload: Upload) -> _Pending:
        pending = self._uploads.get(upload.upload_id)
        if pending is None or pending.key != upload.key:
            raise UploadGone("no such upload", where=f"{self.url}/{upload.key}")
        return pending

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        body = bytes(data)
        with self._lock:
            self._pending(upload).parts[number] = body
        return UploadPart(number, xxhash.xxh3_64_hexdigest(body), len(body))

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        with self._lock:
            pending = self._pending(upload)
            for part in parts:
                body = pending.parts.get(part.number)
                if body is None or len(body) != part.size or xxhash.xxh3_64_hexdigest(body) != part.etag:
                    raise IntegrityError(f"part {part.number} of the upload is not the one given", where=f"{self.url}/{upload.key}")
            info = self._write(upload.key, b"".join(pending.parts[part.number] for part in parts), None)
            del self._uploads[upload.upload_id]
            return info

    def abort_upload(self, upload: Upload) -> None:
        with self._lock:
            self._uploads.pop(upload.upload_id, None)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        with self._lock:
            found = [PendingUpload(p.key, uid, p.started) for uid, p in self._uploads.items() if p.key.startswith(prefix)]
        yield from sorted(found, key=lambda pending: (pending.key, pending.upload_id))

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        return self.upload_part(upload, number, self.get(source_key, start=start, end=end))

    def server_time(self) -> float:
        return self._now()

    def close(self) -> None:
        """Nothing to release: the objects stay for whoever holds this store."""
