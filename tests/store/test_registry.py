"""From URLs to stores: one store per bucket, options and process; clear words for what is unknown or missing."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudshard.errors import RecipeError
from cloudshard.store import options as options_module
from cloudshard.store import registry
from cloudshard.store.memory import MemoryStore
from cloudshard.store.registry import locate, normalise, open_object, open_raw, open_store, opened_stores


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/data/in/", "file:///data/in"),
        ("/data/../x", "file:///x"),
        ("file:///data//in/", "file:///data/in"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://Bucket/A", "s3://Bucket/A"),
        ("memory://x", "memory://x"),
        ("https://host/a?x=1", "https://host/a?x=1"),
        (Path("/data/in"), "file:///data/in"),
    ],
)
def test_normalise(url: str | Path, expected: str) -> None:
    assert normalise(url) == expected


def test_plain_paths_are_relative_to_here_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert normalise("data") == f"file://{tmp_path}/data"
    assert normalise("~/data") == "file:///home/somebody/data"


@pytest.mark.parametrize(
    ("url", "root", "key"),
    [
        ("s3://bucket/a/b.jsonl", "s3://bucket", "a/b.jsonl"),
        ("s3://bucket", "s3://bucket", ""),
        ("file:///data/a.jsonl", "file:///", "data/a.jsonl"),
        ("/data/a b%41.jsonl", "file:///", "data/a b%41.jsonl"),
        ("memory://name/a/b", "memory://name", "a/b"),
        ("https://host:80/a/b?x=1", "https://host:80", "a/b?x=1"),
    ],
)
def test_locate(url: str, root: str, key: str) -> None:
    assert locate(url) == (root, key)


@pytest.mark.parametrize("url", ["", "s3://", "s3:///key", "file://relative/x"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(RecipeError):
        locate(url)


def test_url_and_key_make_the_objects_url_again(file_url: str, memory_url: str) -> None:
    for url in (f"{file_url}/a/b", f"{memory_url}/a/b"):
        store, key = open_object(url)
        assert f"{store.url}/{key}" == url


def test_one_store_per_url_and_options(file_url: str, memory_url: str) -> None:
    assert open_store(file_url) is open_store(file_url + "/") is open_store(file_url.removeprefix("file://"))
    assert open_store(file_url) is not open_store(file_url, {"durable": True})
    assert open_store(memory_url) in opened_stores()


def test_a_prefix_is_a_view_of_its_bucket_with_one_limiter(memory_url: str) -> None:
    bucket, below = open_store(memory_url), open_store(f"{memory_url}/runs/1")
    below.create("run.json", b"{}", metadata={"a": "b"})
    assert bucket.get("runs/1/run.json") == b"{}"
    assert below.url == f"{memory_url}/runs/1"
    assert [info.key for page in below.list() for info in page.objects] == ["run.json"]
    assert below.head("run.json").key == "run.json"
    upload = below.begin_upload("part", part_size=10)
    parts = [below.upload_part(upload, 1, b"x")]
    assert [pending.key for pending in bucket.list_uploads()] == ["runs/1/part"]
    open_raw(f"{memory_url}/runs/1").finish_upload(upload, parts)
    assert bucket.get("runs/1/part") == b"x"
    assert bucket._limiter is below._limiter


def test_a_forked_child_opens_its_own(file_url: str) -> None:
    store = open_store(file_url)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        other = open_store(file_url)
        os.write(writer, b"same" if other is store else b"own")
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"own"
    os.close(reader)


def test_unknown_schemes_are_told_what_is_known() -> None:
    with pytest.raises(RecipeError, match=r"no store for s4://.*Known: .*file.*memory.*s3"):
        open_store("s4://bucket/x")


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "boto3" else real(name, *rest))
    with pytest.raises(RecipeError, match=r"boto3.*pip install 'cloudshard\[s3\]'"):
        open_store("s3://some-bucket-without-boto3")


def test_other_packages_add_stores_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, dict[str, object]]] = []

    def opener(url: str, options: dict[str, object]) -> MemoryStore:
        made.append((url, options))
        return MemoryStore("plugged")

    class Plugged(importlib.metadata.EntryPoint):
        def load(self) -> object:
            return opener

    monkeypatch.setattr(registry, "_entry_points", lambda: {"plug": Plugged("plug", "x:y", registry.GROUP)})
    registry._opener.cache_clear()
    open_store("plug://bucket/prefix", {"a": 1}).create("k", b"x")
    assert made == [("plug://bucket", {"a": 1})]
    registry._opener.cache_clear()


def test_options_registered_for_a_prefix_apply_below_it_and_never_leak(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "_registered", {})
    options_module.register_options("s3://data", {"secret": "one"})
    options_module.register_options("s3://data/private", {"secret": "two"})
    options_module.register_options("s3://", {"anon": True})
    of = options_module.options_for
    assert of("s3://data/x") == {"secret": "one"}
    assert of("s3://data/private/x", {"region": "eu"}) == {"secret": "two", "region": "eu"}
    assert of("s3://data-other/x") == {"anon": True}
    assert of("s3://data/x", {"secret": "given"}) == {"secret": "given"}
    assert of("file:///x") == {}
    options_module.register_options("s3://data", {})
    assert of("s3://data/x") == {"anon": True}
    options_module.register_options(file_url, {"durable": True})
    assert open_store(f"{file_url}/run").inner._durable is True


def test_public_options_say_where_and_how_but_never_who() -> None:
    given = {
        "key": "AKIA",
        "secret": "hush",
        "token": "hush",
        "anon": False,
        "profile": "dev",
        "client_kwargs": {"endpoint_url": "https://user:hush@minio:9000/?sig=hush", "region_name": "eu-1", "aws_secret_access_key": "hush"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, "proxies": {"http": "http://user:hush@proxy"}},
        "s3_additional_kwargs": {"SSEKMSKeyId": "hush"},
    }
    public = options_module.public_options(given)
    assert public == {
        "anon": False,
        "profile": "dev",
        "endpoint_url": "https://minio:9000/?…",
        "region": "eu-1",
        "addressing_style": "path",
    }
    assert options_module.public_options(None) == {}


def test_chaos_by_environment(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSHARD_CHAOS", "seed=3,create.lost_answer=0.25")
    store = open_store(file_url)
    for number in range(20):
        store.create(f"k{number}", b"%d" % number)
    assert store.requests["lost_answer"] > 1
    assert store.inner.injected["lost_answer"] > 1


def test_the_registry_is_cheap_to_import() -> None:
    """Neither boto3 nor fsspec nor the installed packages are looked at for a file."""
    code = """
import sys
from cloudshard.store.registry import open_store
open_store(sys.argv[1])
print([name for name in ("boto3", "botocore", "obstore", "fsspec", "pyarrow") if name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", code, "/tmp"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
