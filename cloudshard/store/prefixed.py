"""A bucket seen from below a prefix: keys are relative to it, everything else is the bucket's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Store, Upload, UploadPart

K = TypeVar("K", ObjectInfo, Upload, PendingUpload)


class PrefixedStore:
    """``inner`` below ``prefix`` (no slash at either end). Uploads stay data that any store of the same URL understands."""

    def __init__(self, inner: Store, prefix: str) -> None:
        self.inner = inner
        self.url = f"{inner.url.rstrip('/')}/{prefix}"
        self.default_part_size = inner.default_part_size
        self._prefix = prefix + "/"

    def _below(self, value: K) -> K:
        return msgspec.structs.replace(value, key=value.key[len(self._prefix) :])

    def _above(self, upload: Upload) -> Upload:
        return Upload(self._prefix + upload.key, upload.upload_id, upload.part_size)

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        return self._below(self.inner.create(self._prefix + key, body, metadata=metadata))

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        return self._below(self.inner.put(self._prefix + key, body, metadata=metadata))

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        return self.inner.get(self._prefix + key, start=start, end=end, if_etag=if_etag)

    def head(self, key: str) -> ObjectInfo:
        return self._below(self.inner.head(self._prefix + key))

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        cut = len(self._prefix)
        after = self._prefix + start_after if start_after else ""
        for page in self.inner.list(self._prefix + prefix, start_after=after, delimiter=delimiter):
            objects = tuple([ObjectInfo(o.key[cut:], o.size, o.etag, o.last_modified) for o in page.objects])
            yield ListPage(objects, tuple([name[cut:] for name in page.prefixes]), page.server_time)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete([self._prefix + key for key in keys])

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        return self._below(self.inner.begin_upload(self._prefix + key, part_size=part_size))

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        return self.inner.upload_part(self._above(upload), number, data)

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        return self._below(self.inner.finish_upload(self._above(upload), parts))

    def abort_upload(self, upload: Upload) -> None:
        self.inner.abort_upload(self._above(upload))

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        return map(self._below, self.inner.list_uploads(self._prefix + prefix))

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        return self.inner.copy_part(self._above(upload), number, self._prefix + source_key, start, end)

    def server_time(self) -> float:
        return self.inner.server_time()

    def close(self) -> None:
        self.inner.close()
