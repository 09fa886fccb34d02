"""Reading through fsspec: an HTTP server, and fsspec's own memory."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from cloudshard_backends.stores.generic import open_fsspec_store

from cloudshard.errors import NotFound, PreconditionFailed, RecipeError, Unsupported
from cloudshard.store.port import Store, Upload


@pytest.fixture
def store() -> Iterator[Store]:
    system = fsspec.filesystem("memory")
    for key in ("a-b", "a/1", "a/b/2", "z"):
        system.pipe_file(f"/base/{key}", f"body of {key}".encode())
    yield open_fsspec_store("memory://base")
    system.rm("/base", recursive=True)


def test_reads(store: Store) -> None:
    assert store.get("a/1") == b"body of a/1"
    assert store.get("a/1", start=5, end=7) == b"of"
    assert store.get("a/1", start=8) == b"a/1"
    info = store.head("a/1")
    assert (info.key, info.size) == ("a/1", 11)
    assert store.get("a/1", if_etag=info.etag) == b"body of a/1"
    with pytest.raises(PreconditionFailed):
        store.get("a/1", if_etag="other")
    with pytest.raises(NotFound):
        store.get("none")
    with pytest.raises(NotFound):
        store.head("a")


def test_lists(store: Store) -> None:
    def keys(*where: str, **how: str) -> tuple[list[str], list[str]]:
        pages = list(store.list(*where, **how))
        return [info.key for page in pages for info in page.objects], [name for page in pages for name in page.prefixes]

    assert keys() == (["a-b", "a/1", "a/b/2", "z"], [])
    assert keys(delimiter="/") == (["a-b", "z"], ["a/"])
    assert keys("a/", delimiter="/") == (["a/1"], ["a/b/"])
    assert keys("a", start_after="a/1") == (["a/b/2"], [])
    assert keys("none/") == ([], [])


def test_writing_is_refused_in_words(store: Store) -> None:
    upload = Upload("k", "u", 10)
    calls = [
        lambda: store.create("k", b""),
        lambda: store.put("k", b""),
        lambda: store.delete(["k"]),
        lambda: store.begin_upload("k", part_size=10),
        lambda: store.upload_part(upload, 1, b""),
        lambda: store.finish_upload(upload, []),
        lambda: store.abort_upload(upload),
        lambda: store.copy_part(upload, 1, "k", 0, 1),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="can only be read from"):
            call()


def test_options_that_the_file_system_does_not_take() -> None:
    with pytest.raises(RecipeError, match="github"):
        open_fsspec_store("github://x", {"org": "a"})


def test_over_http(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "data.jsonl").write_bytes(b'{"a": 1}\n')

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        store = open_fsspec_store(f"http://user:hush@127.0.0.1:{server.server_port}")
        assert "hush" not in store.url
        assert store.get("data.jsonl") == b'{"a": 1}\n'
        assert store.head("data.jsonl").size == 9
        with pytest.raises(NotFound) as caught:
            store.get("none.jsonl")
        assert "hush" not in str(caught.value)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
