"""Writing one object as a multipart upload that is left unfinished: what the commit record will publish.

Bytes go in as a stream and leave in parts of exactly ``part_size``. :meth:`UploadStream.finish_parts` sends the last part and
returns the upload *as data*; the object appears only when somebody finishes it, after the commit record names it.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import xxhash

from cloudshard.store.port import Store, Upload, UploadPart

CHECKSUM = "xxh3_128:"


class PendingObject(NamedTuple):
    """An object that is complete but not yet visible. ``checksum``: ``xxh3_128:<hex>`` of all its bytes."""

    upload: Upload
    parts: tuple[UploadPart, ...]
    size: int
    checksum: str


class UploadStream(io.RawIOBase):
    """A write-only binary stream; pyarrow can write into it, through :class:`pyarrow.PythonFile` or as a file object.

    Memory: one part at most. A byte is copied once, into the part's buffer; pieces of a whole part are sent as they are.
    The upload begins with the first full part, or at the end: an attempt that fails early leaves nothing behind.
    Not safe for several threads at once. Errors are those of the store.
    """

    def __init__(self, store: Store, key: str, part_size: int | None = None) -> None:
        super().__init__()
        self.store = store
        self.key = key
        self.part_size = part_size or store.default_part_size
        self.name = f"{store.url}/{key}"
        self._upload: Upload | None = None
        self._parts: list[UploadPart] = []
        self._buffer = bytearray()  # grows until the first part is full, then is filled again and again
        self._filled = 0
        self._size = 0
        self._hash = xxhash.xxh3_128()
        self._pending: PendingObject | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size

    def write(self, data: Any, /) -> int:
        """Take all of ``data`` (bytes, memoryview, pyarrow.Buffer, anything with the buffer protocol); returns its bytes."""
        if self.closed:
            raise ValueError(f"write to a finished upload: {self.name}")
        view = memoryview(data)
        if view.ndim != 1 or view.format != "B":
            view = view.cast("B")
        size = view.nbytes
        self._hash.update(view)
        self._size += size
        while view.nbytes:
            if not self._filled and view.nbytes >= self.part_size:
                self._send(view[: self.part_size])
                view = view[self.part_size :]
                continue
            piece = view[: self.part_size - self._filled]
            end = self._filled + piece.nbytes
            if end <= len(self._buffer):
                self._buffer[self._filled : end] = piece
            else:
                del self._buffer[self._filled :]
                self._buffer += piece
            self._filled = end
            view = view[piece.nbytes :]
            if self._filled == self.part_size:
                self._flush_part()
        return size

    def _flush_part(self) -> None:
        with memoryview(self._buffer) as whole, whole[: self._filled] as part:
            self._send(part)
        self._filled = 0

    def _send(self, part: memoryview) -> None:
        if self._upload is None:
            self._upload = self.store.begin_upload(self.key, part_size=self.part_size)
        self._parts.append(self.store.upload_part(self._upload, len(self._parts) + 1, part))

    def finish_parts(self) -> PendingObject:
        """Send what is left and close the stream; the object stays invisible. An empty object has one empty part."""
        if self._pending is None:
            if self.closed:
                raise ValueError(f"the upload was aborted: {self.name}")
            if self._filled or not self._parts:
                self._flush_part()
            if self._upload is None:
                raise ValueError(f"no upload was begun: {self.name}")
            self._pending = PendingObject(self._upload, tuple(self._parts), self._size, CHECKSUM + self._hash.hexdigest())
            self._release()
        return self._pending

    def abort(self) -> None:
        """Forget the upload and close the stream; no error when nothing was begun, or it was finished or aborted before."""
        upload, self._upload, self._pending = self._upload, None, None
        self._release()
        if upload is not None:
            self.store.abort_upload(upload)

    def close(self) -> None:
        """Nothing: the end of a writer (pyarrow closes what it writes to) is not yet the end of the object."""

    def _release(self) -> None:
        self._buffer = bytearray()
        super().close()
