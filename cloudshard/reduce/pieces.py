"""Encoded pieces of a run on their way to the store: in memory up to a budget, then in one local scratch file."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from cloudshard.errors import CloudshardError, DiskFull

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_END = 8  # bytes of the end-of-stream marker of an Arrow IPC stream


class Encoder:
    """Tables as Arrow IPC messages without the stream's head and end, so that pieces can be joined to one stream by copying bytes.

    ``compression``: lz4 | zstd | none. A message holds at most ``batch_bytes`` of Arrow data (or one row).
    """

    def __init__(self, schema: pa.Schema, compression: str, batch_bytes: int) -> None:
        self.schema = schema
        self._batch_bytes = batch_bytes
        self._options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
        empty = bytes(self._stream(schema.empty_table()))
        self.head = empty[:-_END]
        self.end = empty[-_END:]

    def encode(self, table: pa.Table) -> bytes:
        """The table's messages."""
        return bytes(self._stream(table)[len(self.head) : -_END])

    def _stream(self, table: pa.Table) -> memoryview:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema, options=self._options) as writer:
            if table.num_rows:
                rows = max(1, table.num_rows * self._batch_bytes // max(table.nbytes, 1))
                writer.write_table(table.combine_chunks(), max_chunksize=rows)
        return memoryview(sink.getvalue())


class _Kept(NamedTuple):
    offset: int
    size: int


class PieceStore:
    """Bytes put in, handles out. More than ``memory_bytes`` go to a scratch file in ``spill_dir`` that has no name while it is open.

    Raises DiskFull when the scratch disk has no room, CloudshardError when it cannot be used at all.
    """

    def __init__(self, memory_bytes: int, spill_dir: str | os.PathLike[str]) -> None:
        self._budget = memory_bytes
        self._directory = Path(spill_dir)
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._spilled: dict[int, _Kept] = {}
        self._file: BinaryIO | None = None
        self._next = 0
        self.spilled_bytes = 0

    def put(self, data: bytes) -> int:
        """Keep ``data``; returns its handle."""
        handle, self._next = self._next, self._next + 1
        self._held[handle] = data
        self._held_bytes += len(data)
        if self._held_bytes > self._budget:
            self._spill()
        return handle

    def get(self, handle: int) -> bytes:
        """The bytes of a handle; they are forgotten."""
        held = self._held.pop(handle, None)
        if held is not None:
            return held
        kept = self._spilled.pop(handle)
        if self._file is None:
            raise CloudshardError("the scratch file is closed", where=str(self._directory))
        self._file.seek(kept.offset)
        found = self._file.read(kept.size)
        if len(found) != kept.size:
            raise CloudshardError("the scratch file is shorter than what was written", where=str(self._directory), mend="Check the disk.")
        return found

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._directory, prefix="run-", suffix=".spill")  # noqa: SIM115 - closed by close()
            offset = self._file.seek(0, os.SEEK_END)
            for handle, data in self._held.items():
                self._file.write(data)
                self._spilled[handle] = _Kept(offset, len(data))
                offset += len(data)
            self._file.flush()
        except OSError as error:
            raise scratch_error(error, str(self._directory)) from error
        self.spilled_bytes += self._held_bytes
        self._held, self._held_bytes = {}, 0

    def close(self) -> None:
        """Release memory and disk."""
        self._held, self._spilled = {}, {}
        file, self._file = self._file, None
        if file is not None:
            file.close()


def scratch_error(error: OSError, path: str) -> CloudshardError:
    """What an error of the local disk means: DiskFull, or that scratch space cannot be used."""
    if error.errno in _NO_ROOM:
        return DiskFull("no room left for spilling", where=path, mend="Give the worker a larger scratch disk, or a shorter shard.")
    return CloudshardError(f"cannot spill: {error.strerror or error}", where=path, mend="Choose a scratch directory that can be written.")
