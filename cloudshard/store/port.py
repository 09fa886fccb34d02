"""The store port: the verbs that a bucket must have, as values and one protocol.

A store is rooted at a URL (``file:///data``, ``s3://bucket/prefix``, ``memory://name``); keys are relative to that root,
``/``-separated, never beginning with ``/``. Implementations raise only errors of :mod:`cloudshard.errors` and do not
retry by themselves: :class:`cloudshard.store.reliable.ReliableStore` does, because only it can tell a lost answer from
a lost race. All times are seconds since the epoch by the *store's* clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec


class ObjectInfo(msgspec.Struct, frozen=True):
    """What one request tells about an object.

    ``last_modified`` is exact to the store's resolution (S3: 1 s). For a write it is the store's time of that write (the
    response's ``Date``). ``metadata`` is user metadata: only ``head`` and ``get_object`` know it, elsewhere it is None.
    """

    key: str
    size: int
    etag: str
    last_modified: float
    metadata: dict[str, str] | None = None


class ListPage(msgspec.Struct, frozen=True):
    """One LIST answer (up to 1,000 keys, in key order). ``server_time``: the answer's Date, if the store tells it."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...] = ()
    server_time: float | None = None


class Upload(msgspec.Struct, frozen=True):
    """A multipart upload as data: whoever holds this value (and the parts) can finish it, from any machine.

    All parts but the last have exactly ``part_size`` bytes (some stores demand it).
    """

    key: str
    upload_id: str
    part_size: int


class UploadPart(msgspec.Struct, frozen=True):
    """One part that the store has accepted. ``number`` counts from 1."""

    number: int
    etag: str
    size: int


class PendingUpload(msgspec.Struct, frozen=True):
    """An upload that was begun and neither finished nor aborted (for ``gc`` and ``doctor``)."""

    key: str
    upload_id: str
    started: float


@runtime_checkable
class Store(Protocol):
    """A bucket (or folder) under one URL."""

    @property
    def url(self) -> str:
        """Root URL without trailing slash, fit for display: it never holds a credential."""
        ...

    @property
    def default_part_size(self) -> int:
        """Bytes of a multipart part that suit this store."""
        ...

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Put if absent, atomically. Raises AlreadyExists."""
        ...

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        """Put, replacing what is there (as a whole: a reader sees the old or the new)."""
        ...

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        """Bytes [start, end) — fewer when the object ends before. Raises NotFound, PreconditionFailed (ETag differs)."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size, ETag, time and user metadata. Raises NotFound."""
        ...

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        """Pages of keys under ``prefix`` in key order; one page is one request, made when it is asked for."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete; missing keys are no error."""
        ...

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        """Start a multipart upload: ``key`` shows nothing until it is finished."""
        ...

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        """Send one part; sending it again replaces it."""
        ...

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        """Make the object appear, whole. Raises UploadGone when the upload is no more."""
        ...

    def abort_upload(self, upload: Upload) -> None:
        """Forget the upload; no error when it is gone."""
        ...

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """Uploads that are begun and not finished."""
        ...

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        """Server-side copy of bytes [start, end) of another object of the same bucket into a part. May raise Unsupported."""
        ...

    def server_time(self) -> float:
        """The store's clock now; one request."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...
