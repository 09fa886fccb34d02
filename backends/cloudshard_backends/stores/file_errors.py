"""What the operating system says about a file, in cloudshard's words: the one edge where OSError is translated."""

from __future__ import annotations

import errno

from cloudshard.errors import DiskFull, NotFound, PermissionDenied, StoreError, Unavailable, Unsupported

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
#: A network file system that hiccups, or a machine short of handles: worth another try.
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


def translate(error: OSError, path: str) -> StoreError | DiskFull:
    """The cloudshard error for ``error`` on ``path``."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        limit = "over its quota" if error.errno == errno.EDQUOT else "full" if error.errno == errno.ENOSPC else "at its largest file size"
        return DiskFull(f"the disk is {limit}", where=path, mend="Free space there, or give a URL on a larger disk.")
    if error.errno in _REFUSED:
        what = "the file system is read-only" if error.errno == errno.EROFS else "the operating system refuses access"
        return PermissionDenied(what, where=path, mend="Check the owner and the mode of the file and of its folders.")
    if error.errno in _MISSING:
        return NotFound("no such key", where=path)
    if error.errno == errno.ENAMETOOLONG:
        return Unsupported("a name in the key is longer than this file system allows (255 bytes on most)", where=path[:300])
    if error.errno in _PASSING:
        return Unavailable(f"the file system does not answer well: {reason}", where=path)
    return StoreError(f"the file system failed: {reason}", where=path)
