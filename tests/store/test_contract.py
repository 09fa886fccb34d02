"""The contract that every store keeps, bare, behind retries, and behind retries over a faulty network."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from cloudshard_backends.stores.file import open_file_store
from cloudshard_backends.stores.s3 import S3Store, open_s3_store

from cloudshard.errors import AlreadyExists, NotFound, PreconditionFailed, Unsupported, UploadGone
from cloudshard.store.memory import MemoryStore
from cloudshard.store.port import ObjectInfo, Store, Upload
from cloudshard.store.prefixed import PrefixedStore
from tests.store.buckets import KINDS, WRAPPERS, Bucket

ODD_KEYS = [
    "a",
    "a-b",
    "a.b",
    "a/b",
    "a/b-c/d",
    "a/b/c",
    "a0",
    "ümläut/日本語/😀",
    "with space/and+plus",
    "percent%41/100%",
    "query?x=1&y=2#frag",
    "quote'\"<>&",
    "back\\slash",
    "=equals/date=2026-11-29/x",
    "~tilde/*star/[b]{c}",
    ".hidden/.file",
    "trailing./..dots/...",
]


# Wrappers do not know what is below them: the second variants of file and S3 are tested bare
CASES = [f"{kind}:{wrapper}" for kind in KINDS for wrapper in WRAPPERS if wrapper == "bare" or kind in ("memory", "file", "s3")]


@pytest.fixture(scope="module")
def s3_clients(moto_endpoint: str) -> Callable[[str, int], Store]:
    """The n-th client of one bucket: making one takes 0.2 s, so tests share them and have a prefix each."""
    import boto3

    account = {"key": "testing", "secret": "testing-secret", "endpoint_url": moto_endpoint, "region": "us-east-1"}
    bucket = f"contract-{uuid.uuid4().hex[:20]}"
    boto3.client(
        "s3", aws_access_key_id="testing", aws_secret_access_key="testing-secret", endpoint_url=moto_endpoint, region_name="us-east-1"
    ).create_bucket(Bucket=bucket)

    @functools.cache
    def client(bulk: str, number: int) -> Store:
        store = open_s3_store(f"s3://{bucket}", {**account, "bulk": bulk})
        assert isinstance(store, S3Store)
        assert (store._both()[1] is not None) == (bulk == "obstore")  # both ways of reading are really tested
        return store

    return client


@pytest.fixture(params=CASES)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    kind, wrapper = request.param.split(":")
    if kind == "memory":
        shared = MemoryStore("test")
        return Bucket(kind, wrapper, lambda: shared)
    if kind.startswith("file"):
        options = {"metadata": "sidecar"} if kind == "file-sidecar" else {}
        return Bucket(kind, wrapper, lambda: open_file_store(f"file://{tmp_path}/bucket", options))
    client, prefix, numbers = request.getfixturevalue("s3_clients"), uuid.uuid4().hex, itertools.count()
    bulk = "boto3" if kind == "s3-boto3" else "obstore"
    return Bucket(kind, wrapper, lambda: PrefixedStore(client(bulk, next(numbers) % 4), prefix))


@pytest.fixture
def store(bucket: Bucket) -> Store:
    return bucket.store


def keys_of(store: Store, prefix: str = "", **how: str) -> list[str]:
    return [info.key for page in store.list(prefix, **how) for info in page.objects]


def prefixes_of(store: Store, prefix: str = "", **how: str) -> list[str]:
    return [name for page in store.list(prefix, **how) for name in page.prefixes]


# ---------------------------------------------------------------- whole objects


def test_is_a_store(store: Store) -> None:
    assert isinstance(store, Store)
    assert not store.url.endswith("/")
    assert store.default_part_size >= 5 << 20


def test_create_then_get(store: Store) -> None:
    info = store.create("a/b", b"hello")
    assert (info.key, info.size) == ("a/b", 5)
    assert store.get("a/b") == b"hello"


def test_create_refuses_a_key_that_is_there_and_leaves_it_alone(store: Store) -> None:
    store.create("k", b"first")
    with pytest.raises(AlreadyExists):
        store.create("k", b"second")
    assert store.get("k") == b"first"


def test_create_after_delete(store: Store) -> None:
    store.create("k", b"first")
    store.delete(["k"])
    store.create("k", b"second")
    assert store.get("k") == b"second"


def test_put_replaces_and_the_etag_changes(store: Store) -> None:
    first = store.put("k", b"first")
    second = store.put("k", b"other")
    assert store.get("k") == b"other"
    assert first.etag != second.etag
    assert store.head("k").etag == second.etag


def test_head_get_and_list_agree_with_the_write(store: Store) -> None:
    made = store.create("folder/k", b"12345")
    head = store.head("folder/k")
    (listed,) = [info for page in store.list("folder/") for info in page.objects]
    assert (head.key, head.size, head.etag) == (listed.key, listed.size, listed.etag) == ("folder/k", 5, made.etag)
    assert head.last_modified == pytest.approx(listed.last_modified, abs=1.0)
    assert head.last_modified == pytest.approx(made.last_modified, abs=1.01)


def test_empty_body(store: Store) -> None:
    assert store.create("empty", b"").size == 0
    assert store.get("empty") == b""
    assert store.get("empty", start=0, end=10) == b""
    assert store.head("empty").size == 0
    assert keys_of(store) == ["empty"]


def test_large_body(store: Store) -> None:
    body = os.urandom(3 << 20)
    store.put("large", body)
    assert store.get("large") == body


def test_odd_keys(store: Store) -> None:
    for key in ODD_KEYS:
        store.create(key, key.encode())
        assert store.get(key) == key.encode()
        assert store.head(key).key == key
        assert keys_of(store) == [key]
        store.delete([key])
    assert keys_of(store) == []


# ---------------------------------------------------------------- missing things


def test_missing_key(store: Store) -> None:
    for read in (store.get, store.head, lambda key: store.get(key, start=1, end=2), lambda key: store.get(key, start=2, end=2)):
        with pytest.raises(NotFound) as caught:
            read("none")
        assert "none" in caught.value.where


def test_a_folder_is_no_object(store: Store) -> None:
    store.create("folder/k", b"x")
    with pytest.raises(NotFound):
        store.get("folder")
    with pytest.raises(NotFound):
        store.head("folder")
    with pytest.raises(NotFound):
        store.get("folder/k/below")


def test_delete_of_missing_keys_is_no_error(store: Store) -> None:
    store.create("k", b"x")
    store.delete(["none"])
    store.delete(["none", "k", "folder/none"])
    store.delete([])
    assert keys_of(store) == []


# ---------------------------------------------------------------- ranges and ETags


def test_ranges(store: Store) -> None:
    body = b"0123456789"
    store.put("k", body)
    for start, end in [(0, None), (3, None), (0, 4), (3, 6), (3, 99), (9, 10), (0, 10), (5, 5), (10, None), (10, 20), (50, 60)]:
        assert store.get("k", start=start, end=end) == body[start:end], (start, end)


def test_get_with_the_right_etag(store: Store) -> None:
    info = store.put("k", b"0123456789")
    assert store.get("k", if_etag=info.etag) == b"0123456789"
    assert store.get("k", start=2, end=4, if_etag=info.etag) == b"23"


def test_get_refuses_an_object_that_was_rewritten(store: Store) -> None:
    info = store.put("k", b"0123456789")
    store.put("k", b"abcdefghij")
    with pytest.raises(PreconditionFailed):
        store.get("k", if_etag=info.etag)
    with pytest.raises(PreconditionFailed):
        store.get("k", start=2, end=4, if_etag=info.etag)


# ---------------------------------------------------------------- user metadata


METADATA = {"owner": "w-1", "lease-seconds": "60", "text": 'naïve ✓ = "quoted"', "spaces": "  kept  ", "word": "=?UTF-8?B?eA==?="}


def test_metadata_of_create(store: Store) -> None:
    store.create("k", b"x", metadata=METADATA)
    assert store.head("k").metadata == METADATA


def test_metadata_of_put_are_replaced_with_the_object(store: Store) -> None:
    store.create("k", b"x", metadata={"state": "held"})
    store.put("k", b"x", metadata={"state": "released"})
    assert store.head("k").metadata == {"state": "released"}
    store.put("k", b"y")
    assert store.head("k").metadata == {}


def test_a_losing_create_leaves_the_winners_metadata(store: Store) -> None:
    store.create("k", b"x", metadata={"owner": "winner"})
    with pytest.raises(AlreadyExists):
        store.create("k", b"y", metadata={"owner": "loser"})
    assert store.head("k").metadata == {"owner": "winner"}


def test_metadata_are_no_objects_and_go_with_their_object(store: Store) -> None:
    store.create("folder/k", b"x", metadata={"a": "b"})
    assert keys_of(store) == ["folder/k"]
    store.delete(["folder/k"])
    store.create("folder/k", b"x")
    assert store.head("folder/k").metadata == {}


# ---------------------------------------------------------------- listing


def test_list_of_an_empty_bucket(store: Store) -> None:
    pages = list(store.list())
    assert [page.objects for page in pages] == [()]
    assert [page.objects for page in store.list("no/such/", delimiter="/")] == [()]


def test_list_is_in_byte_order(store: Store) -> None:
    keys = [key for key in ODD_KEYS if key not in ("a", "a/b")]  # on a file system no key is another's folder
    for key in keys:
        store.create(key, b"x")
    assert keys_of(store) == sorted(keys, key=str.encode)


def test_list_by_prefix_is_by_characters_not_by_folders(store: Store) -> None:
    for key in ["part-1", "part-2", "parts/1", "pa", "q"]:
        store.create(key, b"x")
    assert keys_of(store, "part") == ["part-1", "part-2", "parts/1"]
    assert keys_of(store, "part-") == ["part-1", "part-2"]
    assert keys_of(store, "parts/") == ["parts/1"]
    assert keys_of(store, "parts/1") == ["parts/1"]
    assert keys_of(store, "none") == []


def test_list_after_a_key(store: Store) -> None:
    keys = ["a-b", "a/1", "a/2", "a/b/1", "a0", "b"]
    for key in keys:
        store.create(key, b"x")
    for after in [*keys, "a/", "a/15", "a/b/", "0", "z", "a/\U0010ffff"]:
        assert keys_of(store, start_after=after) == [key for key in keys if key.encode() > after.encode()], after
    assert keys_of(store, "a/", start_after="a/1") == ["a/2", "a/b/1"]


def test_list_by_folders(store: Store) -> None:
    for key in ["a-b", "a/1", "a/2", "a/b/1", "c/d/e/f", "z"]:
        store.create(key, b"x")
    assert keys_of(store, delimiter="/") == ["a-b", "z"]
    assert prefixes_of(store, delimiter="/") == ["a/", "c/"]
    assert keys_of(store, "a/", delimiter="/") == ["a/1", "a/2"]
    assert prefixes_of(store, "a/", delimiter="/") == ["a/b/"]
    assert prefixes_of(store, "a", delimiter="/") == ["a/"]
    assert prefixes_of(store, "c", delimiter="/", start_after="c/\U0010ffff") == []


def test_list_by_another_delimiter(store: Store) -> None:
    for key in ["2026-01-a", "2026-01-b", "2026-02-a", "2027"]:
        store.create(key, b"x")
    assert prefixes_of(store, "2026-", delimiter="-") == ["2026-01-", "2026-02-"]
    assert keys_of(store, delimiter="-") == ["2027"]


def test_deleted_folders_are_gone_from_the_listing(store: Store) -> None:
    store.create("a/b/c", b"x")
    store.delete(["a/b/c"])
    assert prefixes_of(store, delimiter="/") == []


def test_pages_of_a_thousand(bucket: Bucket) -> None:
    raw = bucket.make()
    keys = [f"k/{number % 7}/{number:05d}" for number in range(2500 if not bucket.is_s3 else 30)]  # S3: see test_s3
    for key in keys:
        raw.put(key, b"")
    pages = list(bucket.store.list("k/"))
    assert [info.key for page in pages for info in page.objects] == sorted(keys)
    assert all(len(page.objects) <= 1000 for page in pages)
    assert len(pages) == -(-len(keys) // 1000)
    half = sorted(keys)[len(keys) // 2]
    assert keys_of(bucket.store, "k/", start_after=half) == sorted(keys)[len(keys) // 2 + 1 :]


def test_list_sees_what_another_client_wrote_a_moment_ago(bucket: Bucket) -> None:
    other = bucket.open_again(2)
    for number in range(5):
        bucket.store.create(f"k{number}", b"x")
        assert keys_of(other) == [f"k{n}" for n in range(number + 1)]


# ---------------------------------------------------------------- races


def test_of_sixteen_threads_that_create_one_key_one_wins(bucket: Bucket) -> None:
    threads = 4 if bucket.lossy and bucket.is_s3 else 16
    stores = [bucket.open_again(seed) for seed in range(threads)]
    for round_number in range(3):
        barrier, results = threading.Barrier(threads), []

        def race(number: int, key: str = f"race-{round_number}") -> None:
            barrier.wait()
            try:
                stores[number].create(key, b"by %d" % number)
                results.append(number)
            except AlreadyExists:
                pass

        workers = [threading.Thread(target=race, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(results) == 1
        assert bucket.store.get(f"race-{round_number}") == b"by %d" % results[0]


def test_a_put_is_never_seen_half_done(bucket: Bucket) -> None:
    size = 300_000
    bucket.store.put("k", b"a" * size)
    stop = threading.Event()
    writer = bucket.open_again(2)

    def write() -> None:
        while not stop.is_set():
            for letter in (b"a", b"b"):
                writer.put("k", letter * size, metadata={"letter": letter.decode()})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(30):
            body = bucket.store.get("k")
            assert len(body) == size
            assert body.count(body[:1]) == size
            bucket.store.head("k")
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------- multipart


def test_an_upload_shows_nothing_until_another_client_finishes_it(bucket: Bucket) -> None:
    size = bucket.part_size
    pieces = [os.urandom(size), os.urandom(size), b"end"]
    upload = bucket.store.begin_upload("out/part-0", part_size=size)
    parts = [bucket.store.upload_part(upload, number, memoryview(piece)) for number, piece in enumerate(pieces, 1)]
    assert [part.size for part in parts] == [size, size, 3]
    assert keys_of(bucket.store) == []
    with pytest.raises(NotFound):
        bucket.store.head("out/part-0")
    other = bucket.open_again(2)
    info = bucket.finish(other, upload, parts)
    assert (info.key, info.size) == ("out/part-0", 2 * size + 3)
    assert bucket.store.get("out/part-0") == b"".join(pieces)
    assert bucket.store.head("out/part-0").etag == info.etag
    assert keys_of(bucket.store) == ["out/part-0"]


def test_an_upload_that_was_finished_is_gone(bucket: Bucket) -> None:
    upload = bucket.store.begin_upload("k", part_size=bucket.part_size)
    parts = [bucket.store.upload_part(upload, 1, b"x")]
    bucket.finish(bucket.store, upload, parts)
    if not bucket.is_s3:  # S3 answers a second finish as the first, for a while
        with pytest.raises(UploadGone):
            bucket.store.finish_upload(upload, parts)
    with pytest.raises(UploadGone):
        bucket.store.upload_part(upload, 1, b"y")
    assert bucket.store.get("k") == b"x"


def test_an_upload_that_was_aborted_is_gone(bucket: Bucket) -> None:
    upload = bucket.store.begin_upload("k", part_size=bucket.part_size)
    parts = [bucket.store.upload_part(upload, 1, b"x")]
    bucket.store.abort_upload(upload)
    bucket.store.abort_upload(upload)
    with pytest.raises(UploadGone):
        bucket.store.finish_upload(upload, parts)
    assert keys_of(bucket.store) == []


def test_a_part_sent_again_replaces_the_first(bucket: Bucket) -> None:
    upload = bucket.store.begin_upload("k", part_size=bucket.part_size)
    bucket.store.upload_part(upload, 1, b"longer first try")
    part = bucket.store.upload_part(upload, 1, b"second")
    bucket.finish(bucket.store, upload, [part])
    assert bucket.store.get("k") == b"second"


def test_parts_may_be_sent_in_any_order(bucket: Bucket) -> None:
    size = bucket.part_size
    upload = bucket.store.begin_upload("k", part_size=size)
    last = bucket.store.upload_part(upload, 2, b"end")
    first = bucket.store.upload_part(upload, 1, b"x" * size)
    bucket.finish(bucket.store, upload, [first, last])
    assert bucket.store.get("k") == b"x" * size + b"end"


def test_an_empty_upload_makes_an_empty_object(bucket: Bucket) -> None:
    upload = bucket.store.begin_upload("k", part_size=bucket.part_size)
    part = bucket.store.upload_part(upload, 1, b"")
    assert bucket.finish(bucket.store, upload, [part]).size == 0
    assert bucket.store.get("k") == b""


def test_finishing_replaces_what_is_there(bucket: Bucket) -> None:
    bucket.store.put("k", b"old", metadata={"a": "b"})
    upload = bucket.store.begin_upload("k", part_size=bucket.part_size)
    part = bucket.store.upload_part(upload, 1, b"new")
    assert bucket.store.get("k") == b"old"
    bucket.finish(bucket.store, upload, [part])
    assert bucket.store.get("k") == b"new"
    assert bucket.store.head("k").metadata == {}


def test_pending_uploads_are_listed(bucket: Bucket) -> None:
    before = bucket.store.server_time()
    uploads = [bucket.store.begin_upload(key, part_size=bucket.part_size) for key in ("out/a", "out/deep/b", "other/c")]
    raw = bucket.make()
    listed = list(raw.list_uploads("out/"))
    assert {(pending.key, pending.upload_id) for pending in listed} >= {(u.key, u.upload_id) for u in uploads[:2]}
    assert {pending.key for pending in listed} == {"out/a", "out/deep/b"}
    assert bucket.is_s3 or all(abs(pending.started - before) < 10 for pending in listed)  # moto tells one fixed date for all
    for pending in raw.list_uploads():  # lost answers have begun some more
        bucket.store.abort_upload(Upload(pending.key, pending.upload_id, bucket.part_size))
    assert list(raw.list_uploads()) == []


def test_copy_of_ranges_by_the_server(bucket: Bucket) -> None:
    size = bucket.part_size
    body = os.urandom(size + 1000)
    bucket.store.put("source", body)
    upload = bucket.store.begin_upload("target", part_size=size)
    try:
        parts = [bucket.store.copy_part(upload, 1, "source", 500, 500 + size), bucket.store.copy_part(upload, 2, "source", 0, 7)]
    except Unsupported:
        pytest.skip("this store copies nothing")
    assert [part.size for part in parts] == [size, 7]
    bucket.finish(bucket.store, upload, parts)
    assert bucket.store.get("target") == body[500 : 500 + size] + body[:7]


# ---------------------------------------------------------------- time


def test_time_is_near_and_never_goes_back(store: Store) -> None:
    seen = [store.server_time()]
    for number in range(3):
        seen.append(store.create(f"k{number}", b"x").last_modified)
        seen.append(store.server_time())
    assert seen == sorted(seen)
    assert abs(seen[0] - time.time()) < 5


def test_rewriting_moves_last_modified(bucket: Bucket) -> None:
    first = bucket.store.put("k", b"same")
    waits = bucket.kind == "s3" and bucket.wrapper == "bare"  # once: its clock has a resolution of 1 s
    time.sleep(1.05 if waits else 0.02)
    second = bucket.store.put("k", b"same")
    assert second.last_modified > first.last_modified or (bucket.is_s3 and not waits)
    assert bucket.store.head("k").last_modified >= second.last_modified - (1.0 if bucket.is_s3 else 0.0)


def test_info_is_a_value(store: Store) -> None:
    assert isinstance(store.create("k", b"x"), ObjectInfo)
    store.close()
    assert store.get("k") == b"x"
