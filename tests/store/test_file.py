"""What is particular to the file store: paths, races of processes, errors of the operating system, leftovers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloudshard_backends.stores import file_bytes
from cloudshard_backends.stores.file import FileStore, open_file_store

from cloudshard.errors import (
    AlreadyExists,
    DiskFull,
    IntegrityError,
    NotFound,
    PermissionDenied,
    RecipeError,
    Unavailable,
    Unsupported,
    UploadGone,
)
from cloudshard.store.port import Upload, UploadPart


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def store(root: Path) -> FileStore:
    return open_file_store(f"file://{root}")


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "..", "../a", "a/..", "a/../b", ".", "a/./b", "a\0b", ".cloudshard-uploads/x", "a/.cloudshard-meta/x"]
)
def test_keys_that_could_leave_the_folder_or_touch_our_own_files_are_refused(store: FileStore, root: Path, key: str) -> None:
    upload = Upload(key, "0" * 32, 10)
    calls = [
        lambda: store.create(key, b"x"),
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.delete([key]),
        lambda: store.begin_upload(key, part_size=10),
        lambda: store.upload_part(upload, 1, b"x"),
        lambda: store.finish_upload(upload, [UploadPart(1, "", 1)]),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="name"):
            call()
    assert not root.exists()


@pytest.mark.parametrize("upload_id", ["../../etc", "", "0" * 31, "0" * 33, "/" * 32])
def test_an_upload_id_is_no_path(store: FileStore, upload_id: str) -> None:
    with pytest.raises(UploadGone):
        store.upload_part(Upload("k", upload_id, 10), 1, b"x")


def test_a_name_too_long_is_a_clear_error(store: FileStore) -> None:
    with pytest.raises(Unsupported, match="255 bytes"):
        store.put("x" * 256, b"")
    with pytest.raises(Unsupported, match="255 bytes"):
        store.begin_upload("x" * 250, part_size=10)


def test_a_key_cannot_be_a_folder_as_well(store: FileStore) -> None:
    store.create("a/b", b"x")
    store.create("f", b"x")
    for call in (
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
        lambda: store.create("f/x", b""),
        lambda: store.put("f/x", b""),
    ):
        with pytest.raises(Unsupported, match="folder"):
            call()
    upload = store.begin_upload("a", part_size=10)
    part = store.upload_part(upload, 1, b"x")
    with pytest.raises(Unsupported, match="folder"):
        store.finish_upload(upload, [part])


@pytest.mark.parametrize("url", ["file://relative/path", "relative", "s3://x"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(RecipeError, match="absolute"):
        open_file_store(url)


def test_unknown_options_are_refused(root: Path) -> None:
    with pytest.raises(RecipeError, match="durrable"):
        open_file_store(f"file://{root}", {"durrable": True})
    with pytest.raises(RecipeError, match="metadata"):
        open_file_store(f"file://{root}", {"metadata": "attic"})


def test_durable_writes_are_flushed_with_their_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))[1])
    durable = open_file_store(f"file://{root}", {"durable": True})
    durable.create("a/k", b"x")
    durable.put("a/k", b"y")
    upload = durable.begin_upload("a/u", part_size=10)
    durable.finish_upload(upload, [durable.upload_part(upload, 1, b"x")])
    assert flushed.count(f"{root}/a") == 3
    assert len(flushed) == 6
    flushed.clear()
    open_file_store(f"file://{root}").create("a/other", b"x")
    assert flushed == []


@pytest.mark.parametrize("metadata", ["xattr", "sidecar"])
def test_nothing_is_left_over(root: Path, metadata: str) -> None:
    store = open_file_store(f"file://{root}", {"metadata": metadata})
    store.create("a/k", b"x", metadata={"a": "b"})
    with pytest.raises(AlreadyExists):
        store.create("a/k", b"x", metadata={"a": "b"})
    for number in range(3):
        store.put("a/k", b"y" * number, metadata={"n": str(number)})
    upload, aborted = store.begin_upload("a/u", part_size=10), store.begin_upload("a/v", part_size=10)
    store.finish_upload(upload, [store.upload_part(upload, 1, b"x")])
    store.abort_upload(aborted)
    store.server_time()
    expected = ["a", "a/k", "a/u"] + (["a/.cloudshard-meta"] if metadata == "sidecar" else [])
    assert [name for name in names(root) if ".cloudshard-meta/" not in name] == sorted(expected)
    assert len([name for name in names(root) if ".cloudshard-meta/" in name]) == (metadata == "sidecar")
    store.delete(["a/k", "a/u"])
    assert names(root) == []


def test_finishing_over_an_object_takes_its_metadata_away(root: Path) -> None:
    store = open_file_store(f"file://{root}", {"metadata": "sidecar"})
    store.put("k", b"x", metadata={"a": "b"})
    upload = store.begin_upload("k", part_size=10)
    store.finish_upload(upload, [store.upload_part(upload, 1, b"y")])
    assert [info.key for page in store.list() for info in page.objects] == ["k"]
    assert names(root) == ["k"]  # listing has tidied the empty folder of uploads away


def test_where_nameless_files_are_unknown_named_ones_do(store: FileStore, root: Path) -> None:
    store._tmpfile = False
    store.create("a/k", b"first", metadata={"a": "b"})
    with pytest.raises(AlreadyExists):
        store.create("a/k", b"second")
    assert (store.get("a/k"), store.head("a/k").metadata) == (b"first", {"a": "b"})
    assert names(root) == ["a", "a/k"]


def test_a_file_system_without_nameless_files_is_noticed(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, *args: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported", path)
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", refuse)
    store.create("k", b"x")
    assert store._tmpfile is False


def test_without_extended_attributes_metadata_lie_beside(store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "getxattr", refuse)
    store.create("k", b"x", metadata={"a": "b"})
    assert open_file_store(f"file://{root}").head("k").metadata == {"a": "b"}
    assert (root / ".cloudshard-meta").is_dir()


def test_metadata_have_a_limit(store: FileStore) -> None:
    with pytest.raises(Unsupported, match="2048"):
        store.create("k", b"x", metadata={"a": "b" * 3000})
    with pytest.raises(NotFound):
        store.get("k")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EACCES, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.ESTALE, Unavailable),
    ],
)
def test_errors_of_the_operating_system_have_names(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    store.put("k", b"x")
    upload = store.begin_upload("u", part_size=10)

    def fail(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    for call in (lambda: store.create("n", b"x"), lambda: store.put("k", b"y"), lambda: store.upload_part(upload, 1, b"x")):
        with pytest.raises(kind) as caught:
            call()
        assert str(root) in str(caught.value)
    monkeypatch.undo()
    assert store.get("k") == b"x"
    assert [info.key for page in store.list() for info in page.objects] == ["k"]


def test_a_full_disk_is_really_noticed() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    handle = os.open(full, os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            file_bytes.write_all(handle, b"x", 0)
        assert caught.value.errno == errno.ENOSPC
    finally:
        os.close(handle)


def test_short_writes_and_reads_are_continued(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: write(handle, memoryview(data)[:3], offset))
    monkeypatch.setattr(os, "pread", lambda handle, count, offset: read(handle, min(count, 4), offset))
    store.put("k", b"0123456789")
    assert store.get("k") == b"0123456789"
    assert store.get("k", start=1, end=9) == b"12345678"


def test_copies_where_the_kernel_cannot(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EXDEV, "cross-device")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    store.put("source", b"0123456789")
    upload = store.begin_upload("k", part_size=4)
    parts = [store.copy_part(upload, 1, "source", 2, 6), store.copy_part(upload, 2, "source", 0, 2)]
    store.finish_upload(upload, parts)
    assert store.get("k") == b"234501"


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [UploadPart(2, "", 3)],
        [UploadPart(1, "", 9), UploadPart(2, "", 3)],
        [UploadPart(1, "", 10), UploadPart(3, "", 3)],
        [UploadPart(1, "", 10), UploadPart(2, "", 9)],
    ],
)
def test_parts_that_do_not_make_the_object_are_refused(store: FileStore, parts: list[UploadPart]) -> None:
    upload = store.begin_upload("k", part_size=10)
    store.upload_part(upload, 1, b"0123456789")
    store.upload_part(upload, 2, b"end")
    with pytest.raises((IntegrityError, Unsupported)):
        store.finish_upload(upload, parts)
    with pytest.raises(NotFound):
        store.get("k")


@pytest.mark.parametrize(("number", "size"), [(0, 1), (1, 11)])
def test_parts_out_of_bounds_are_refused(store: FileStore, number: int, size: int) -> None:
    upload = store.begin_upload("k", part_size=10)
    with pytest.raises(Unsupported, match="parts are numbered"):
        store.upload_part(upload, number, b"x" * size)


def test_links_are_followed_and_loops_are_not_endless(store: FileStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"linked")
    root.mkdir()
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "file").symlink_to(tmp_path / "elsewhere" / "x")
    (root / "loop").symlink_to(root)
    (root / "nowhere").symlink_to(tmp_path / "none")
    os.mkfifo(root / "pipe")
    keys = [info.key for page in store.list() for info in page.objects]
    assert [key for key in keys if not key.startswith("loop/")] == ["file", "folder/x"]
    assert len(keys) < 10
    assert store.get("folder/x") == b"linked"


def test_a_folder_that_may_not_be_read_is_an_error_not_an_empty_listing(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/b", b"x")
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("/a/"):
            raise PermissionError(errno.EACCES, "denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionDenied):
        list(store.list())


def test_empty_folders_of_the_user_are_no_prefixes(store: FileStore, root: Path) -> None:
    (root / "empty" / "deep").mkdir(parents=True)
    store.put("full/deep/k", b"")
    assert [name for page in store.list(delimiter="/") for name in page.prefixes] == ["full/"]


def test_files_that_vanish_during_a_listing_are_left_out(store: FileStore) -> None:
    stop = threading.Event()

    def churn() -> None:
        other, number = open_file_store(store.url), 0
        while not stop.is_set():
            number += 1
            other.create(f"moving/{number % 50}/{number}", b"x")
            if number > 100:
                other.delete([f"moving/{(number - 100) % 50}/{number - 100}"])

    for number in range(200):
        store.put(f"still/{number:03d}", b"x")
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            keys = [info.key for page in store.list() for info in page.objects]
            assert keys == sorted(keys)
            assert len([key for key in keys if key.startswith("still/")]) == 200
    finally:
        stop.set()
        thread.join()


def test_prefix_and_start_after_open_only_the_folders_they_need(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in range(20):
        store.put(f"stages/{folder:02d}/k", b"x")
    opened: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (opened.append(str(path)), real(path))[1])
    assert sum(len(page.objects) for page in store.list("stages/07/")) == 1
    assert len(opened) == 1
    opened.clear()
    assert sum(len(page.objects) for page in store.list("stages/0", start_after="stages/08/\U0010ffff")) == 1
    assert len(opened) == 2


def test_urls_and_keys_put_together_are_paths(tmp_path: Path) -> None:
    whole = open_file_store("file:///")
    (tmp_path / "a b%41#é").write_bytes(b"x")
    key = f"{tmp_path}/a b%41#é"[1:]
    assert whole.get(key) == b"x"
    assert f"{whole.url}/{key}" == f"file://{tmp_path}/a b%41#é"


def test_the_clock_of_a_folder_that_is_not_there_or_not_ours(store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(store.server_time() - os.stat(root.parent).st_mtime) < 60
    assert not root.exists()

    def refuse(*args: object) -> int:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "open", refuse)
    assert store.server_time() > 0


_RACER = """
import sys
from cloudshard.errors import AlreadyExists
from cloudshard_backends.stores.file import open_file_store
store, who = open_file_store(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
for number in range(300):
    try:
        store.create(f"race/{number}/00001", who.encode() * 100, metadata={"owner": who})
        print(number)
    except AlreadyExists:
        pass
"""


@pytest.mark.parametrize("nameless", [True, False])
def test_of_four_processes_that_create_the_same_keys_one_wins_each(store: FileStore, nameless: bool) -> None:
    code = _RACER if nameless else _RACER.replace("sys.stdin", "store._tmpfile = False\nsys.stdin")
    processes = [
        subprocess.Popen([sys.executable, "-c", code, store.url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in "abcd"
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {}
    for name, process in zip("abcd", processes, strict=True):
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for line in text.split():
            assert line not in won
            won[line] = name
    assert len(won) == 300
    for number, name in won.items():
        assert store.get(f"race/{number}/00001") == name.encode() * 100
        assert store.head(f"race/{number}/00001").metadata == {"owner": name}


def test_two_processes_that_finish_one_upload(store: FileStore) -> None:
    code = """
import sys
from cloudshard.errors import UploadGone
from cloudshard.store.port import Upload, UploadPart
from cloudshard_backends.stores.file import open_file_store
store = open_file_store(sys.argv[1])
sys.stdin.readline()
for upload_id in sys.argv[2:]:
    try:
        store.finish_upload(Upload("out/" + upload_id, upload_id, 10), [UploadPart(1, "", 1)])
        print(upload_id)
    except UploadGone:
        pass
"""
    ids = []
    for number in range(50):
        # the key names the upload, so that the children know both
        upload = store.begin_upload("x", part_size=10)
        store.abort_upload(upload)
        os.makedirs(f"{store.url[7:]}/out/.cloudshard-uploads", exist_ok=True)
        Path(f"{store.url[7:]}/out/.cloudshard-uploads/{upload.upload_id}-{upload.upload_id}").write_bytes(b"%d" % (number % 10))
        ids.append(upload.upload_id)
    processes = [
        subprocess.Popen([sys.executable, "-c", code, store.url, *ids], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate("go\n", timeout=60)[0].split() for process in processes]
    assert sorted(told[0] + told[1]) == sorted(ids)
    assert [info.size for page in store.list("out/") for info in page.objects] == [1] * 50


@pytest.fixture(autouse=True)
def _no_handles_leak() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before + 1
