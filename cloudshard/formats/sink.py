"""A byte sink as a file that pyarrow can write to."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from cloudshard.formats.port import ByteSink


class _SinkFile(io.RawIOBase):
    """Passes buffers on without copying; closing it does not close the sink."""

    def __init__(self, sink: ByteSink) -> None:
        super().__init__()
        self._sink = sink
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        self._sink.write(view)
        self._written += view.nbytes
        return view.nbytes


def sink_file(sink: ByteSink) -> pa.PythonFile:
    """A pyarrow output file over ``sink``; the sink stays open when it is closed."""
    return pa.PythonFile(_SinkFile(sink), mode="w")
