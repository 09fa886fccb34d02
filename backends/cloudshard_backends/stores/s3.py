"""S3, and what speaks its protocol (MinIO, Ceph, R2…): the ledger's verbs through boto3, bulk reads through obstore.

- No client retries anything: only :class:`cloudshard.store.reliable.ReliableStore` can tell a lost answer from a lost race
  (boto3's own retries report "already exists" for their own lost write).
- ``create`` is PutObject with ``If-None-Match: *``.
- The time of a write is the ``Date`` of its answer: no second request. Resolution: 1 s.
- Checksums of newer SDKs are sent only where S3 demands them: older gateways and OSS refuse ``aws-chunked`` bodies.
- Clients are made at the first use in each process, so a store may be carried over a fork.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar

from cloudshard.errors import AlreadyExists, NotFound, PreconditionFailed, Unsupported
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Store, Upload, UploadPart
from cloudshard.store.prefixed import PrefixedStore
from cloudshard_backends.stores import s3_bulk, s3_listing
from cloudshard_backends.stores.s3_errors import client_errors, from_boto, from_code
from cloudshard_backends.stores.s3_options import S3Options, parse

T = TypeVar("T")

#: S3's limit for a key, in bytes of UTF-8.
KEY_BYTES = 1024
#: S3's limit of one DeleteObjects.
_DELETE_BATCH = 1000
#: Asked for to hear the server's Date; it never exists, and need not.
_CLOCK_KEY = ".cloudshard-clock"
_CONNECT_SECONDS = 10
#: The longest silence in an answer. An unfinished CompleteMultipartUpload sends a blank every few seconds.
_READ_SECONDS = 60
_CONNECTIONS = 64


def open_s3_store(url: str, options: Mapping[str, Any] | None = None) -> Store:
    """The bucket at ``s3://bucket`` (or a prefix in it). ``options``: see :mod:`cloudshard_backends.stores.s3_options`.

    Makes no request. Raises RecipeError for options that cannot be, ImportError when boto3 is missing.
    """
    if importlib.util.find_spec("boto3") is None:
        raise ModuleNotFoundError("No module named 'boto3'", name="boto3")
    bucket, _, prefix = url.partition("://")[2].strip("/").partition("/")
    understood = parse(options or {}, where=f"s3://{bucket}")
    if understood.bulk == "obstore" and importlib.util.find_spec("obstore") is None:
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore")
    store = S3Store(bucket, understood)
    return PrefixedStore(store, prefix) if prefix else store


class S3Store:
    """One bucket. Safe for threads, and for use on both sides of a fork."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.bucket = bucket
        self.url = f"s3://{bucket}"
        self.default_part_size = options.part_size or 16 << 20
        self._options = options
        self._lock = threading.Lock()
        self._clients: tuple[int, Any, s3_bulk.BulkReader | None] | None = None
        self._pays: dict[str, Any] = {"RequestPayer": "requester"} if options.requester_pays else {}

    # ------------------------------------------------------------ clients

    def _both(self) -> tuple[Any, s3_bulk.BulkReader | None]:
        """(boto3 client, obstore reader or None) of this process."""
        made = self._clients
        pid = os.getpid()
        if made is None or made[0] != pid:
            if made is not None:
                self._lock = threading.Lock()  # the one from before the fork may be held for ever
            with self._lock:
                made = self._clients
                if made is None or made[0] != pid:
                    made = self._clients = (pid, *self._connect())
        return made[1], made[2]

    def _connect(self) -> tuple[Any, s3_bulk.BulkReader | None]:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.session import Session

        options = self._options
        core = Session()
        core.register_component("data_loader", _models())
        try:
            session = boto3.Session(
                botocore_session=core,
                aws_access_key_id=options.key,
                aws_secret_access_key=options.secret,
                aws_session_token=options.token,
                region_name=options.region,
                profile_name=options.profile,
            )
            settings: dict[str, Any] = {
                "connect_timeout": _CONNECT_SECONDS,
                "read_timeout": _READ_SECONDS,
                "max_pool_connections": _CONNECTIONS,
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "signature_version": UNSIGNED if options.anon else "s3v4",
                **options.config,
                "retries": {"total_max_attempts": 1, "mode": "standard"},
            }
            style = {} if options.addressing_style == "auto" else {"addressing_style": options.addressing_style}
            settings["s3"] = {**(settings.get("s3") or {}), **style}
            client = session.client(
                "s3",
                # a bucket needs some region to sign for; redirects tell the true one
                region_name=session.region_name or "us-east-1",
                endpoint_url=options.endpoint_url,
                use_ssl=options.use_ssl,
                verify=options.verify,
                config=Config(**settings),
            )
            s3_listing.install(client)
            return client, self._bulk_reader(client, session)
        except client_errors() as error:
            raise from_boto(error, where=self.url, verb="open", secrets=options.secrets) from None

    def _bulk_reader(self, client: Any, session: Any) -> s3_bulk.BulkReader | None:
        if self._options.bulk == "boto3" or not s3_bulk.usable():
            return None
        try:
            return s3_bulk.BulkReader(client, session, self.bucket, self._options)
        except s3_bulk.Unreadable:
            return None

    def _call(self, verb: str, key: str, request: Callable[[Any], T]) -> T:
        client = self._both()[0]
        try:
            return request(client)
        except client_errors() as error:
            raise from_boto(error, where=f"{self.url}/{key}", verb=verb, secrets=self._options.secrets) from None

    def _check(self, key: str) -> str:
        if not key or len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES:
            raise Unsupported(f"a key has 1 to {KEY_BYTES} bytes, not {len(key.encode('utf-8', 'surrogatepass'))}", where=self.url)
        return key

    # ------------------------------------------------------------ writing whole objects

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        try:
            return self._put_object("create", key, body, metadata, {"IfNoneMatch": "*"})
        except PreconditionFailed:
            raise AlreadyExists("the key exists", where=f"{self.url}/{key}") from None

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        return self._put_object("put", key, body, metadata, {})

    def _put_object(self, verb: str, key: str, body: bytes, metadata: Mapping[str, str] | None, condition: dict[str, Any]) -> ObjectInfo:
        self._check(key)
        extra = {"Metadata": _encode_metadata(metadata, self.url)} if metadata else {}
        extra.update(self._options.write_arguments)
        answer = self._call(
            verb, key, lambda client: client.put_object(Bucket=self.bucket, Key=key, Body=body, **extra, **condition, **self._pays)
        )
        return ObjectInfo(key, len(body), _etag(answer), _date(answer), dict(metadata) if metadata else None)

    def delete(self, keys: Sequence[str]) -> None:
        if len(keys) == 1:
            self._delete_one(keys[0])
            return
        for at in range(0, len(keys), _DELETE_BATCH):
            self._delete_batch([self._check(key) for key in keys[at : at + _DELETE_BATCH]])

    def _delete_batch(self, keys: Sequence[str]) -> None:
        entries = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            answer = self._call("delete", keys[0], lambda client: client.delete_objects(Bucket=self.bucket, Delete=entries, **self._pays))
        except Unsupported:  # gateways without DeleteObjects
            for key in keys:
                self._delete_one(key)
            return
        for failed in answer.get("Errors", ()):
            code, reason, where = str(failed.get("Code")), str(failed.get("Message", "")), f"{self.url}/{failed.get('Key', '')}"
            if code != "NoSuchKey":
                raise from_code(code, reason, 0, where=where, verb="delete", secrets=self._options.secrets)

    def _delete_one(self, key: str) -> None:
        self._check(key)
        try:
            self._call("delete", key, lambda client: client.delete_object(Bucket=self.bucket, Key=key, **self._pays))
        except NotFound as error:
            if "bucket" in error.what:
                raise

    # ------------------------------------------------------------ reading

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        self._check(key)
        if end is not None and end <= start:
            self.head(key)  # an empty range cannot be asked for, but a missing key must be told
            return b""
        client, bulk = self._both()
        if bulk is not None:
            try:
                return bulk.get(key, start, end, if_etag, f"{self.url}/{key}")
            except s3_bulk.Unreadable as refusal:
                if refusal.for_good:
                    self._clients = (os.getpid(), client, None)
        return self._call("get", key, lambda client: self._get_object(client, key, start, end, if_etag))

    def _get_object(self, client: Any, key: str, start: int, end: int | None, if_etag: str | None) -> bytes:
        from botocore.exceptions import ClientError

        asked: dict[str, Any] = dict(self._pays)
        if start or end is not None:
            asked["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if if_etag is not None:
            asked["IfMatch"] = f'"{if_etag}"'
        try:
            body: bytes = client.get_object(Bucket=self.bucket, Key=key, **asked)["Body"].read()
            return body
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("InvalidRange", "416"):
                return b""
            raise

    def head(self, key: str) -> ObjectInfo:
        self._check(key)
        answer = self._call("head", key, lambda client: client.head_object(Bucket=self.bucket, Key=key, **self._pays))
        modified = answer["LastModified"].timestamp()
        return ObjectInfo(key, int(answer["ContentLength"]), _etag(answer), modified, _decode_metadata(answer.get("Metadata") or {}))

    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix, **self._pays}
        if start_after:
            asked["StartAfter"] = start_after
        if delimiter:
            asked["Delimiter"] = delimiter
        while True:
            answer = self._call("list", prefix, lambda client: client.list_objects_v2(**asked))
            found: s3_listing.Listing = answer[s3_listing.FOUND]
            yield ListPage(tuple(found.objects), tuple(found.prefixes), _date(answer))
            if not found.next_token:
                return
            asked["ContinuationToken"] = found.next_token

    # ------------------------------------------------------------ multipart

    def begin_upload(self, key: str, *, part_size: int) -> Upload:
        self._check(key)
        extra = self._options.write_arguments
        answer = self._call(
            "begin_upload", key, lambda client: client.create_multipart_upload(Bucket=self.bucket, Key=key, **extra, **self._pays)
        )
        return Upload(key, answer["UploadId"], part_size)

    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        size = memoryview(data).nbytes
        if not 1 <= number <= 10_000 or size > upload.part_size:
            raise Unsupported(
                f"part {number} of {size} bytes: parts are numbered from 1 to 10,000 and hold at most {upload.part_size} bytes",
                where=f"{self.url}/{upload.key}",
                mend="Use a larger part_size.",
            )
        body = data if isinstance(data, bytes) else _Reader(data)
        answer = self._call(
            "upload_part",
            upload.key,
            lambda client: client.upload_part(
                Bucket=self.bucket,
                Key=upload.key,
                UploadId=upload.upload_id,
                PartNumber=number,
                Body=body,
                ContentLength=size,
                **self._pays,
            ),
        )
        return UploadPart(number, _etag(answer), size)

    def copy_part(self, upload: Upload, number: int, source_key: str, start: int, end: int) -> UploadPart:
        answer = self._call(
            "copy_part",
            source_key,
            lambda client: client.upload_part_copy(
                Bucket=self.bucket,
                Key=upload.key,
                UploadId=upload.upload_id,
                PartNumber=number,
                CopySource={"Bucket": self.bucket, "Key": source_key},
                CopySourceRange=f"bytes={start}-{end - 1}",
                **self._pays,
            ),
        )
        return UploadPart(number, answer["CopyPartResult"]["ETag"].strip('"'), end - start)

    def finish_upload(self, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        if not parts:
            raise Unsupported("an upload is finished with at least one part (it may be empty)", where=f"{self.url}/{upload.key}")
        named = {"Parts": [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]}
        answer = self._call(
            "finish_upload",
            upload.key,
            lambda client: client.complete_multipart_upload(
                Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id, MultipartUpload=named, **self._pays
            ),
        )
        return ObjectInfo(upload.key, sum(part.size for part in parts), _etag(answer), _date(answer))

    def abort_upload(self, upload: Upload) -> None:
        try:
            self._call(
                "abort_upload",
                upload.key,
                lambda client: client.abort_multipart_upload(Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id, **self._pays),
            )
        except NotFound as error:  # UploadGone, or a server that says so in other words
            if "bucket" in error.what:
                raise

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix, **self._pays}
        while True:
            answer = self._call("list_uploads", prefix, lambda client: client.list_multipart_uploads(**asked))
            for found in answer.get("Uploads", ()):
                yield PendingUpload(found["Key"], found["UploadId"], found["Initiated"].timestamp())
            if not answer.get("IsTruncated"):
                return
            asked["KeyMarker"], asked["UploadIdMarker"] = answer["NextKeyMarker"], answer["NextUploadIdMarker"]

    def versioning(self) -> str:
        """ "Enabled", "Suspended" or "" (never enabled), for ``doctor``."""
        answer = self._call("versioning", "", lambda client: client.get_bucket_versioning(Bucket=self.bucket))
        return str(answer.get("Status", ""))

    # ------------------------------------------------------------ time and end

    def server_time(self) -> float:
        """The ``Date`` of an answer, whatever it says: even "forbidden" has one."""
        from botocore.exceptions import ClientError

        def ask(client: Any) -> float:
            try:
                return _date(client.head_object(Bucket=self.bucket, Key=_CLOCK_KEY, **self._pays))
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (403, 404):
                    return _date(error.response)
                raise

        return self._call("server_time", "", ask)

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        made, self._clients = self._clients, None
        if made is not None and made[0] == os.getpid():
            made[1].close()


@cache
def _models() -> Any:
    """One reader of botocore's service descriptions for all buckets: with it a second client takes 10 ms instead of 55."""
    from botocore.loaders import Loader

    return Loader(include_default_search_paths=True)


class _Reader:
    """A memoryview as a file, which is how botocore takes bytes without a copy; it can be sent again."""

    def __init__(self, data: memoryview) -> None:
        self._view = data.cast("B") if data.format != "B" or data.ndim != 1 else data
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._view) if size is None or size < 0 else min(len(self._view), self._at + size)
        piece, self._at = bytes(self._view[self._at : end]), end
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, len(self._view))[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def __len__(self) -> int:
        return len(self._view)


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _date(answer: Mapping[str, Any]) -> float:
    """The answer's Date; a server that sends none has this machine's clock."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(text).timestamp() if text else time.time()


# ---------------------------------------------------------------- user metadata: ASCII, so other text travels as RFC 2047 words

_WORD, _WORD_END = "=?UTF-8?B?", "?="


def _encode_metadata(metadata: Mapping[str, str], where: str) -> dict[str, str]:
    encoded: dict[str, str] = {}
    for name, value in metadata.items():
        if not name or name != name.lower() or not name.replace("-", "").isalnum() or not name.isascii():
            raise Unsupported(f"the name {name!r} of user metadata must be lower-case ASCII letters, digits and hyphens", where=where)
        plain = value.isascii() and value.isprintable() and value == value.strip() and not value.startswith(_WORD)
        encoded[name] = value if plain else f"{_WORD}{base64.b64encode(value.encode()).decode()}{_WORD_END}"
    return encoded


def _decode_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: _decode_word(value) for name, value in metadata.items()}


def _decode_word(value: str) -> str:
    if value.startswith(_WORD) and value.endswith(_WORD_END):
        try:
            return base64.b64decode(value[len(_WORD) : -len(_WORD_END)], validate=True).decode()
        except ValueError:  # not ours
            return value
    return value
