"""Moving bytes in and out of open files, whole: what single system calls do not promise."""

from __future__ import annotations

import errno
import os


def write_all(handle: int, data: bytes | memoryview, offset: int) -> None:
    """All of ``data`` at ``offset``."""
    done = os.pwrite(handle, data, offset)
    view = memoryview(data).cast("B") if done < memoryview(data).nbytes else None
    while view is not None and done < view.nbytes:  # one call writes at most 2 GiB, and less when a signal comes
        done += os.pwrite(handle, view[done:], offset + done)


def read_all(handle: int, start: int, count: int) -> bytes:
    """``count`` bytes from ``start``; fewer when the file has become shorter."""
    data = os.pread(handle, count, start)
    if len(data) == count:
        return data
    pieces = [data]
    while data and (missing := count - sum(map(len, pieces))):
        data = os.pread(handle, missing, start + count - missing)
        pieces.append(data)
    return b"".join(pieces)


def copy_range(source: int, target: int, start: int, count: int, offset: int) -> int:
    """Copy inside the kernel (shared blocks where the file system can); returns bytes copied."""
    done = 0
    while done < count:
        try:
            moved = os.copy_file_range(source, target, count - done, start + done, offset + done)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            data = os.pread(source, min(count - done, 8 << 20), start + done)
            write_all(target, data, offset + done)
            moved = len(data)
        if not moved:
            break
        done += moved
    return done


def sync_folder(folder: str) -> None:
    """Make the names in ``folder`` survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_if_empty(folder: str) -> bool:
    """Whether the folder was empty, and is gone now."""
    try:
        os.rmdir(folder)
    except OSError:  # in use again, or not ours to remove: an empty folder harms nobody
        return False
    return True
