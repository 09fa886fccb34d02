"""What is particular to S3: options and credentials, errors, both clients, forks, listings."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from cloudshard_backends.stores import s3_bulk, s3_errors, s3_listing
from cloudshard_backends.stores.s3 import S3Store, _Reader, open_s3_store
from cloudshard_backends.stores.s3_options import parse

from cloudshard.errors import (
    CloudshardError,
    Conflict,
    IntegrityError,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    RecipeError,
    StoreError,
    Throttled,
    Unavailable,
    Unsupported,
    UploadGone,
)
from cloudshard.store.registry import open_store

# ---------------------------------------------------------------- options


def test_s3fs_boto3_and_our_own_spellings_mean_the_same() -> None:
    ours = parse(
        {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://h:1", "region": "r", "verify": False, "addressing_style": "path"},
        environ={},
    )
    s3fs = parse(
        {
            "key": "k",
            "secret": "s",
            "token": "t",
            "client_kwargs": {"endpoint_url": "http://h:1", "region_name": "r", "verify": False},
            "config_kwargs": {"s3": {"addressing_style": "path"}},
            "use_listings_cache": False,
            "default_fill_cache": True,
        },
        environ={},
    )
    boto = parse(
        {
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_session_token": "t",
            "region_name": "r",
            "client_kwargs": {"endpoint_url": "http://h:1", "verify": False},
            "addressing_style": "path",
        },
        environ={},
    )
    assert {(o.key, o.secret, o.token, o.endpoint_url, o.region, o.verify, o.addressing_style) for o in (ours, s3fs, boto)} == {
        ("k", "s", "t", "http://h:1", "r", False, "path")
    }


def test_the_environment_of_fsspec_is_honoured_and_options_win() -> None:
    environ = {"FSSPEC_S3_KEY": "k", "FSSPEC_S3_SECRET": "s", "FSSPEC_S3_ENDPOINT_URL": "http://e", "FSSPEC_S3_ANON": "false"}
    options = parse({"endpoint_url": "http://given"}, environ=environ)
    assert (options.key, options.secret, options.endpoint_url, options.anon) == ("k", "s", "http://given", False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endpoint": "http://x"}, "Did you mean 'endpoint_url'"),
        ({"client_kwargs": {"regoin": "x"}}, "client_kwargs.regoin"),
        ({"anon": "perhaps"}, "anon must be true or false"),
        ({"addressing_style": "host"}, "addressing_style"),
        ({"part_size": 1000}, "5 MiB"),
        ({"key": "k"}, "together"),
        ({"endpoint_url": "minio:9000"}, "http://"),
        ({"bulk": "s3fs"}, "bulk"),
        ({"s3_additional_kwargs": {"Body": "x"}}, "Body"),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(given: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse(given, where="s3://b", environ={})


def test_options_show_no_secret() -> None:
    options = parse({"key": "AKIAX", "secret": "hush", "token": "hush2", "endpoint_url": "http://u:hush3@h"}, environ={})
    assert not any(word in repr(options) for word in ("AKIAX", "hush"))


def test_both_clients_address_the_same_place() -> None:
    account = {"key": "k", "secret": "s"}
    cases = [
        ({"endpoint_url": "http://localhost:9000"}, "http://localhost:9000/bucket"),
        ({"endpoint_url": "https://minio.example.com", "addressing_style": "virtual"}, "https://bucket.minio.example.com"),
        ({"region": "eu-central-1"}, "https://bucket.s3.eu-central-1.amazonaws.com"),
        ({"region": "eu-central-1", "addressing_style": "path"}, "https://s3.eu-central-1.amazonaws.com/bucket"),
        ({"anon": True, "region": "eu-central-1"}, "https://bucket.s3.eu-central-1.amazonaws.com"),
    ]
    for given, expected in cases:
        store = S3Store("bucket", parse({**({} if given.get("anon") else account), **given}, environ={}))
        assert s3_bulk.bucket_endpoint(store._both()[0], "bucket") == expected


def test_a_client_never_retries_by_itself() -> None:
    store = S3Store("bucket", parse({"key": "k", "secret": "s", "config_kwargs": {"retries": {"max_attempts": 9}}}, environ={}))
    config = store._both()[0].meta.config
    assert config.retries["total_max_attempts"] == 1
    assert config.request_checksum_calculation == "when_required"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "status", "verb", "kind"),
    [
        ("PreconditionFailed", 412, "get", PreconditionFailed),
        ("ConditionalRequestConflict", 409, "create", Conflict),
        ("OperationAborted", 409, "create", Conflict),
        ("SlowDown", 503, "put", Throttled),
        ("503", 503, "head", Throttled),
        ("ServiceUnavailable", 503, "put", Unavailable),
        ("TooManyRequests", 429, "list", Throttled),
        ("InternalError", 500, "put", Unavailable),
        ("502", 502, "head", Unavailable),
        ("RequestTimeout", 400, "upload_part", Unavailable),
        ("AccessDenied", 403, "get", PermissionDenied),
        ("403", 403, "head", PermissionDenied),
        ("ExpiredToken", 400, "get", PermissionDenied),
        ("RequestTimeTooSkewed", 403, "get", PermissionDenied),
        ("NoSuchUpload", 404, "finish_upload", UploadGone),
        ("NoSuchKey", 404, "get", NotFound),
        ("404", 404, "head", NotFound),
        ("NoSuchBucket", 404, "list", NotFound),
        ("NotImplemented", 501, "create", Unsupported),
        ("InvalidPart", 400, "finish_upload", IntegrityError),
        ("EntityTooSmall", 400, "finish_upload", Unsupported),
        ("PermanentRedirect", 301, "get", StoreError),
        ("MalformedXML", 400, "delete", StoreError),
    ],
)
def test_codes_become_named_errors(code: str, status: int, verb: str, kind: type[CloudshardError]) -> None:
    error = s3_errors.from_code(code, "reason", status, where="s3://b/k", verb=verb)
    assert type(error) is kind
    assert error.where == "s3://b/k"


def test_a_bucket_that_is_not_there_is_called_so() -> None:
    assert "bucket does not exist" in str(s3_errors.from_code("NoSuchBucket", "", 404, where="s3://b", verb="list"))


def test_messages_hold_no_secret() -> None:
    error = s3_errors.from_code(
        "AccessDenied", "token tok-123 for http://user:pw@host/x refused", 403, where="s3://b/k", verb="get", secrets=("tok-123",)
    )
    assert "tok-123" not in str(error)
    assert "pw" not in str(error)
    raw = RuntimeError(
        "Error performing GET https://b/k?X-Amz-Signature=abc - Server returned non-2xx status code: 403 Forbidden: "
        "<Error><Code>SignatureDoesNotMatch</Code><Message>no match</Message><StringToSign>AWS4 abc</StringToSign></Error>"
    )
    told = s3_errors.from_obstore(raw, where="s3://b/k")
    assert isinstance(told, PermissionDenied)
    assert "abc" not in str(told)


def test_without_credentials_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(PermissionDenied, match=r"no credentials.*AWS_ACCESS_KEY_ID"):
        open_s3_store("s3://bucket", {"endpoint_url": "http://127.0.0.1:1"}).get("k")
    with pytest.raises(PermissionDenied, match="profile"):
        open_s3_store("s3://bucket", {"profile": "nobody"}).get("k")


@pytest.mark.parametrize("bulk", ["boto3", "obstore"])
def test_nobody_listens(bulk: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = open_s3_store("s3://bucket", {"key": "k", "secret": "hush", "endpoint_url": f"http://u:hush2@127.0.0.1:{port}", "bulk": bulk})
    for call in (
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: store.create("k", b""),
        lambda: next(store.list()),
        store.server_time,
    ):
        with pytest.raises(Unavailable) as caught:
            call()
        assert "hush" not in str(caught.value) + repr(caught.value.__cause__)


def test_a_missing_bucket(s3_env: str) -> None:
    store = open_s3_store("s3://no-such-bucket")
    for call in (lambda: store.create("k", b""), lambda: store.get("k"), lambda: list(store.list()), lambda: store.delete(["k"])):
        with pytest.raises(NotFound, match="bucket does not exist"):
            call()


@pytest.mark.parametrize("key", ["", "x" * 1025, "ü" * 513])
def test_keys_that_s3_cannot_hold(key: str) -> None:
    store = open_s3_store("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"})
    for call in (
        lambda: store.create(key, b""),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.begin_upload(key, part_size=5 << 20),
    ):
        with pytest.raises(Unsupported, match="1 to 1024 bytes"):
            call()


@pytest.mark.parametrize("name", ["Upper", "under_score", "", "ümlaut"])
def test_names_of_metadata_that_would_not_come_back(name: str, s3_url: str) -> None:
    with pytest.raises(Unsupported, match="user metadata"):
        open_s3_store(s3_url).create("k", b"", metadata={name: "x"})


# ---------------------------------------------------------------- a server that misbehaves


class _Script(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: list[tuple[int, dict[str, str], bytes]] = []
    seen: list[tuple[str, str, dict[str, str]]] = []

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, dict(self.headers)))
        status, headers, body = self.answers.pop(0)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if "Content-Length" in headers:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[type[_Script]]:
    handler = type("Script", (_Script,), {"answers": [], "seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def against(scripted: type[_Script], **options: object) -> S3Store:
    store = open_s3_store("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": scripted.url, **options})
    assert isinstance(store, S3Store)
    return store


@pytest.mark.parametrize("bulk", ["boto3", "obstore"])
def test_a_body_that_breaks_off_is_unavailable_and_not_a_short_read(scripted: type[_Script], bulk: str) -> None:
    scripted.answers += [
        (200, {"Content-Length": "100", "ETag": '"e"', "Last-Modified": "Sun, 29 Nov 2026 15:29:41 GMT"}, b"only this")
    ] * 2
    store = against(scripted, bulk=bulk)
    with pytest.raises(Unavailable):
        store.get("k")


@pytest.mark.parametrize("bulk", ["boto3", "obstore"])
def test_one_request_per_call_even_when_it_fails(scripted: type[_Script], bulk: str) -> None:
    failure = b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"
    scripted.answers += [(500, {}, failure)] * 10
    store = against(scripted, bulk=bulk)
    for call in (lambda: store.get("k"), lambda: store.create("k", b"x"), lambda: next(store.list())):
        before = len(scripted.seen)
        with pytest.raises(Unavailable):
            call()
        assert len(scripted.seen) == before + 1


def test_create_says_if_none_match(scripted: type[_Script]) -> None:
    scripted.answers += [(200, {"ETag": '"e"'}, b"")] * 2
    store = against(scripted)
    info = store.create("k", b"x")
    store.put("k", b"x")
    assert [headers.get("If-None-Match") for _, _, headers in scripted.seen] == ["*", None]
    assert all("chunked" not in headers.get("Content-Encoding", "") for _, _, headers in scripted.seen)
    assert info.last_modified == pytest.approx(time.time(), abs=3)
    assert info.last_modified == int(info.last_modified)


def test_an_error_inside_a_200_of_complete_is_an_error(scripted: type[_Script]) -> None:
    from cloudshard.store.port import Upload, UploadPart

    scripted.answers.append((200, {}, b'<?xml version="1.0"?>\n<Error><Code>InternalError</Code><Message>late</Message></Error>'))
    with pytest.raises(Unavailable):
        against(scripted).finish_upload(Upload("k", "u", 5 << 20), [UploadPart(1, "e", 1)])


def test_write_arguments_travel(scripted: type[_Script]) -> None:
    scripted.answers.append((200, {"ETag": '"e"'}, b""))
    against(scripted, requester_pays=True, s3_additional_kwargs={"ServerSideEncryption": "aws:kms", "StorageClass": "STANDARD_IA"}).put(
        "k", b"x"
    )
    headers = scripted.seen[0][2]
    assert (headers["x-amz-server-side-encryption"], headers["x-amz-storage-class"], headers["x-amz-request-payer"]) == (
        "aws:kms",
        "STANDARD_IA",
        "requester",
    )


def test_anonymous_requests_are_not_signed(scripted: type[_Script]) -> None:
    scripted.answers += [(200, {"ETag": '"e"', "Last-Modified": "Sun, 29 Nov 2026 15:29:41 GMT"}, b"x")] * 2
    for bulk in ("boto3", "obstore"):
        open_s3_store("s3://bucket", {"anon": True, "endpoint_url": scripted.url, "bulk": bulk}).get("k")
    assert all("Authorization" not in headers and "authorization" not in headers for _, _, headers in scripted.seen)


def test_a_redirect_sends_later_reads_through_boto3(scripted: type[_Script]) -> None:
    elsewhere = b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>"
    good = (200, {"ETag": '"e"', "Last-Modified": "Sun, 29 Nov 2026 15:29:41 GMT"}, b"x")
    scripted.answers += [(301, {}, elsewhere), good, good]
    store = against(scripted, bulk="obstore")
    assert store._both()[1] is not None
    assert store.get("k") == b"x"
    assert store._both()[1] is None
    assert store.get("k") == b"x"


def test_gateways_without_bulk_delete(scripted: type[_Script]) -> None:
    scripted.answers += [(501, {}, b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>"), (204, {}, b""), (204, {}, b"")]
    against(scripted).delete(["a", "b"])
    assert [command for command, _, _ in scripted.seen] == ["POST", "DELETE", "DELETE"]


def test_a_delete_that_fails_for_one_key_says_which(scripted: type[_Script]) -> None:
    scripted.answers.append(
        (200, {}, b"<DeleteResult><Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>")
    )
    with pytest.raises(PermissionDenied, match="s3://bucket/b"):
        against(scripted).delete(["a", "b"])


@pytest.mark.parametrize(("status", "expected"), [(200, None), (404, None), (403, None), (500, Unavailable)])
def test_every_answer_tells_the_time(scripted: type[_Script], status: int, expected: type[Exception] | None) -> None:
    scripted.answers.append((status, {}, b""))
    if expected is None:
        assert against(scripted).server_time() == pytest.approx(time.time(), abs=3)
    else:
        with pytest.raises(expected):
            against(scripted).server_time()


# ---------------------------------------------------------------- reading and listing


def test_obstore_reads_unless_it_cannot(s3_url: str) -> None:
    store = open_s3_store(s3_url)
    assert isinstance(store, S3Store)
    reader = store._both()[1]
    assert reader is not None
    store.put("plain", b"x")
    assert reader.get("plain", 0, None, None, "") == b"x"
    for key in ("a//b", "/lead", "trail/", "a/../b", "tab\tkey"):
        store.put(key, key.encode())
        with pytest.raises(s3_bulk.Unreadable):
            reader.get(key, 0, None, None, "")
        assert store.get(key) == key.encode()
        assert store.head(key).size == len(key)
    keys = [info.key for page in store.list() for info in page.objects]
    assert keys == sorted(["plain", "a//b", "/lead", "trail/", "a/../b", "tab\tkey"])


def test_without_obstore_boto3_reads(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_bulk, "usable", lambda: False)
    store = open_s3_store(s3_url)
    store.put("k", b"0123")
    assert store.get("k", start=1, end=3) == b"12"
    assert store._both()[1] is None


def test_a_store_is_carried_over_a_fork(s3_url: str) -> None:
    store = open_store(s3_url)
    store.create("parent", b"p")
    assert store.get("parent") == b"p"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = store.get("parent") + open_store(s3_url).get("parent")
            store.create("child", b"c")
            os.write(writer, answer)
        finally:
            os._exit(0)
    os.close(writer)
    for _ in range(300):
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.read(reader, 10) == b"pp"
    os.close(reader)
    assert store.get("child") == b"c"


def test_refreshing_credentials_reach_obstore() -> None:
    from datetime import UTC, datetime, timedelta

    from botocore.credentials import RefreshableCredentials

    asked = []

    def refresh() -> dict[str, str]:
        asked.append(1)
        expires = datetime.now(UTC) + timedelta(hours=1)
        return {"access_key": f"key-{len(asked)}", "secret_key": "s", "token": "t", "expiry_time": expires.isoformat()}

    class Session:
        credentials = RefreshableCredentials.create_from_metadata(refresh(), refresh, "test")

        def get_credentials(self) -> RefreshableCredentials:
            return self.credentials

    provide = s3_bulk._credentials(Session())
    first = provide()
    assert first["access_key_id"] == "key-1"
    assert first["expires_at"] < datetime.now(UTC) + timedelta(minutes=10)
    Session.credentials._expiry_time = datetime.now(UTC)
    assert provide()["access_key_id"] == "key-2"


def test_listings_are_read_whole_or_not_at_all() -> None:
    body = (
        b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>'
        b"<Contents><Key>a%2Bb+c%0A</Key><LastModified>2026-11-29T15:29:41.250Z</LastModified><ETag>&quot;e&quot;</ETag><Size>5</Size>"
        b"<Owner><ID>x</ID></Owner></Contents><CommonPrefixes><Prefix>p%2F</Prefix></CommonPrefixes>"
        b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    )
    found = s3_listing.parse(body)
    (info,) = found.objects
    assert (info.key, info.size, info.etag, info.last_modified) == ("a+b c\n", 5, "e", 1795966181.25)
    assert (found.prefixes, found.next_token) == (["p/"], "t")
    with pytest.raises(Unavailable, match="not whole"):
        s3_listing.parse(body[:-30])


def test_a_listing_goes_on_from_page_to_page(scripted: type[_Script]) -> None:
    page = (
        b"<ListBucketResult><Contents><Key>%s</Key><LastModified>2026-11-29T15:29:41Z</LastModified><Size>1</Size></Contents>"
        b"%s</ListBucketResult>"
    )
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>tok en/1</NextContinuationToken>"
    scripted.answers += [(200, {}, page % (b"a", more)), (200, {}, page % (b"b", b"<IsTruncated>false</IsTruncated>"))]
    pages = against(scripted).list("p/", start_after="p/0", delimiter="/")
    assert [info.key for info in next(pages).objects] == ["a"]
    assert len(scripted.seen) == 1  # a page is asked for when it is wanted
    assert [[info.key for info in page.objects] for page in pages] == [["b"]]
    first, second = (parse_qs(urlsplit(path).query) for _, path, _ in scripted.seen)
    assert (first["prefix"], first["start-after"], first["delimiter"]) == (["p/"], ["p/0"], ["/"])
    assert second["continuation-token"] == ["tok en/1"]


@pytest.mark.slow
def test_more_than_a_thousand_keys(s3_url: str) -> None:
    store = open_s3_store(s3_url)
    keys = sorted(f"k/{number % 7}/{number:05d}" for number in range(2001))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    pages = list(store.list("k/"))
    assert [len(page.objects) for page in pages] == [1000, 1000, 1]
    assert [info.key for page in pages for info in page.objects] == keys
    assert [info.key for page in store.list("k/", start_after=keys[990]) for info in page.objects] == keys[991:]


def test_listing_tells_the_servers_time(s3_url: str) -> None:
    (page,) = open_s3_store(s3_url).list()
    assert page.server_time == pytest.approx(time.time(), abs=3)


def test_a_view_is_a_file_for_botocore() -> None:
    view = _Reader(memoryview(b"0123456789")[2:8])
    assert (len(view), view.read(2), view.tell(), view.read(), view.read()) == (6, b"23", 2, b"4567", b"")
    assert (view.seek(0), view.read(3), view.seek(-1, 2), view.read()) == (0, b"234", 5, b"7")


def test_versioning_is_told(s3_url: str) -> None:
    import boto3

    store = open_s3_store(s3_url)
    assert isinstance(store, S3Store)
    assert store.versioning() == ""
    boto3.client("s3").put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": "Enabled"})
    assert store.versioning() == "Enabled"
