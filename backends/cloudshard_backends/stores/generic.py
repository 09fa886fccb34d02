"""Read-only input from anything that fsspec knows: http, https, gs, az, hf, sftp and so on.

Only ``get``, ``head`` and ``list`` are asked of it. Runs and outputs need conditional writes and a server's clock, which fsspec
does not offer; such URLs can be read from, and a store with its own entry point can do more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import xxhash

from cloudshard.errors import CloudshardError, NotFound, PermissionDenied, PreconditionFailed, RecipeError, Unavailable, Unsupported
from cloudshard.store.options import without_credentials
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Upload, UploadPart

_PAGE = 1000


def open_fsspec_store(url: str, options: Mapping[str, Any] | None = None) -> FsspecStore:
    """What ``url`` names, through fsspec; ``options`` go to its file system. ImportError names the package that is missing."""
    import fsspec

    scheme, _, rest = url.partition("://")
    try:
        # what fsspec remembers of listings would hide what other processes do
        system = fsspec.filesystem(scheme, **{"use_listings_cache": False, "skip_instance_cache": True, **(options or {})})
    except ImportError as error:
        raise ModuleNotFoundError(str(error), name=error.name or _package_of(str(error))) from error
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"the {scheme} file system of fsspec does not take these options: {error}", where=without_credentials(url)
        ) from error
    root = f"{scheme}://{rest}" if scheme in ("http", "https") else rest
    return FsspecStore(system, without_credentials(url), root)


def _package_of(message: str) -> str:
    """fsspec's message ("Please install gcsfs to …") when the error itself has no name."""
    words = message.replace('"', " ").split()
    return words[words.index("install") + 1] if "install" in words[:-1] else message


class FsspecStore:
    """Objects of one fsspec file system below one root."""

    default_part_size = 16 << 20

    def __init__(self, system: Any, url: str, root: str) -> None:
        self.url = url.rstrip("/")
        self._system = system
        self._root = root.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if self._root else key

    def _ask(self, key: str, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except Exception as error:  # the edge to unknown code: each file system of fsspec raises what its own client raises
            raise self._failed(error, key) from error

    def _failed(self, error: Exception, key: str) -> CloudshardError:
        where = without_credentials(f"{self.url}/{key}")
        if isinstance(error, FileNotFoundError):
            return NotFound("no such key", where=where)
        if isinstance(error, PermissionError):
            return PermissionDenied(
                "the server refuses access", where=where, mend="Check the credentials that this file system of fsspec takes."
            )
        status = getattr(error, "status", getattr(error, "code", None))
        if status in (401, 403):
            return PermissionDenied(
                "the server refuses access", where=where, mend="Check the credentials that this file system of fsspec takes."
            )
        if status in (404, 410):
            return NotFound("no such key", where=where)
        if isinstance(error, NotImplementedError):
            return Unsupported("this file system of fsspec cannot do that", where=where)
        return Unavailable(f"the server does not answer well ({type(error).__name__})", where=where)

    # ------------------------------------------------------------ reading

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        if if_etag is not None and self.head(key).etag != if_etag:
            raise PreconditionFailed("the object has another ETag: it was rewritten", where=f"{self.url}/{key}")
        if end is not None and end <= start:
            return b""
        return bytes(self._ask(key, lambda: self._cat(key, start, end)))

    def _cat(self, key: str, start: int, end: int | None) -> bytes:
        try:
            data: bytes = self._system.cat_file(self._path(key), start=start or None, end=end)
            return data
        except OSError as error:
            if getattr(error, "status", None) == 416:  # the object ends before
                return b""
            raise

    def head(self, key: str) -> ObjectInfo:
        info = self._ask(key, lambda: self._system.info(self._path(key)))
        if info.get("type") == "directory":
            raise NotFound("no such key", where=f"{self.url}/{key}")
        return self._info(key, info, {})

    def _info(self, key: str, info: Mapping[str, Any], metadata: dict[str, str] | None = None) -> ObjectInfo:
        size = info.get("size")
        if size is None:
            raise Unsupported(
                "the server does not tell the object's size", where=f"{self.url}/{key}", mend="Copy it to a bucket or a local file first."
            )
        modified = _time(info)
        marks = [
            str(info[name])
            for name in ("ETag", "etag", "md5", "md5Hash", "sha256", "blob_id", "generation", "version_id")
            if info.get(name)
        ]
        etag = marks[0].strip('"') if marks else xxhash.xxh3_64_hexdigest(f"{size} {modified}".encode())
        return ObjectInfo(key, int(size), etag, modified or 0.0, metadata)

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        folder = prefix.rpartition("/")[0]
        try:
            found = self._ask(
                folder, lambda: self._shallow(folder) if delimiter == "/" else self._system.find(self._path(folder), detail=True)
            )
        except NotFound:
            found = {}
        names: dict[str, ObjectInfo | None] = {}
        for path, info in found.items():
            key = self._key(path)
            if info.get("type") == "directory":
                key += "/"
            if not key.startswith(prefix) or key <= start_after:
                continue
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                group = key[: cut + len(delimiter)]
                if group > start_after:
                    names[group] = None
            elif info.get("type") != "directory":
                names[key] = self._info(key, info)
        ordered = sorted(names)
        for at in range(0, max(1, len(ordered)), _PAGE):
            page = ordered[at : at + _PAGE]
            yield ListPage(tuple([i for key in page if (i := names[key]) is not None]), tuple([key for key in page if names[key] is None]))

    def _shallow(self, folder: str) -> dict[str, Any]:
        return {entry["name"].rstrip("/"): entry for entry in self._system.ls(self._path(folder), detail=True)}

    def _key(self, path: str) -> str:
        for root in (self._root, self._root.partition("://")[2] or self._root):
            if root and path.lstrip("/").startswith(root.lstrip("/") + "/"):
                return path.lstrip("/")[len(root.lstrip("/")) + 1 :]
        return path.lstrip("/")

    # ------------------------------------------------------------ writing: refused

    def _refuse(self, key: str) -> NoReturn:
        scheme = self.url.partition("://")[0]
        raise Unsupported(
            f"{scheme}:// can only be read from",
            where=without_credentials(f"{self.url}/{key}"),
            mend="Write to a file://, s3:// or other store with conditional writes.",
        )

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        self._refuse(key)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        self._refuse(key)

    def delete(self, keys: Sequence[str]) -> None:
        self._refuse(keys[0] if keys else "")

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        self._refuse(key)

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        self._refuse(upload.key)

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        self._refuse(upload.key)

    def abort_upload(self, upload: Upload) -> None:
        self._refuse(upload.key)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        return iter(())

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        self._refuse(upload.key)

    def server_time(self) -> float:
        """This machine's clock: nothing is ever leased here."""
        return time.time()

    def close(self) -> None:
        """fsspec ends its sessions itself."""


def _time(info: Mapping[str, Any]) -> float | None:
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
