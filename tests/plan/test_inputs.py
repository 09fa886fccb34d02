"""Listing inputs: globs, folders, files, manifests; LIST requests only."""

from __future__ import annotations

import uuid

import pytest

from cloudshard.errors import IntegrityError, RecipeError
from cloudshard.ledger.records import encode
from cloudshard.ledger.seal import Manifest, ManifestPart, manifest_key
from cloudshard.plan.inputs import list_inputs, options_by_url
from cloudshard.store.registry import open_store


@pytest.fixture
def bucket():
    """(store, URL) of an empty memory store."""
    url = f"memory://inputs-{uuid.uuid4().hex}"
    return open_store(url), url


def names(url, *patterns, **options):
    return [found.url.removeprefix(url + "/") for found in list_inputs([p if "://" in p else f"{url}/{p}" for p in patterns], {}, options)]


def fill(store, *keys):
    for key in keys:
        store.put(key, b"x" * (len(key) % 7))


def test_globs_folders_and_files_sorted_and_each_once(bucket):
    store, url = bucket
    fill(store, "d/b.jsonl", "d/a.jsonl", "d/e/c.jsonl", "d/_SUCCESS", "d/.b.crc", "x/z.jsonl", "d.txt")
    assert names(url, "d/*.jsonl") == ["d/a.jsonl", "d/b.jsonl"]
    assert names(url, "d/**/*.jsonl") == ["d/a.jsonl", "d/b.jsonl", "d/e/c.jsonl"]
    assert names(url, "d/") == names(url, "d") == ["d/a.jsonl", "d/b.jsonl", "d/e/c.jsonl"]
    assert names(url, "d/b.jsonl", "x/z.jsonl", "d/a.jsonl", "d/*.jsonl") == ["d/a.jsonl", "d/b.jsonl", "x/z.jsonl"]
    assert names(url, "*/*.jsonl") == ["d/a.jsonl", "d/b.jsonl", "x/z.jsonl"]
    assert names(url, "d/_SUCCESS") == ["d/_SUCCESS"]  # named in so many words
    assert names(url, url) == ["d.txt", "d/a.jsonl", "d/b.jsonl", "d/e/c.jsonl", "x/z.jsonl"]
    assert names(url, "d", exclude="e") == ["d/a.jsonl", "d/b.jsonl"]
    assert "d/.b.crc" in names(url, "d", include_hidden=True)


def test_several_stores_in_one_source(bucket):
    store, url = bucket
    other_url = f"memory://inputs-{uuid.uuid4().hex}"
    other = open_store(other_url)
    fill(store, "a.jsonl")
    fill(other, "b.jsonl")
    found = list_inputs([f"{other_url}/*", f"{url}/a.jsonl"], {}, {})
    assert sorted(f.url for f in found) == [f.url for f in found]
    assert {f.url for f in found} == {f"{url}/a.jsonl", f"{other_url}/b.jsonl"}
    assert {f.store.url for f in found} == {url, other_url}


def test_local_paths_become_file_urls(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a b[1].jsonl").write_text("{}\n")
    (tmp_path / "in" / "empty.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    found = list_inputs(["in"], {}, {})
    assert [f.url for f in found] == [f"file://{tmp_path}/in/a b[1].jsonl", f"file://{tmp_path}/in/empty.jsonl"]
    assert [f.info.size for f in found] == [3, 0]
    assert [f.url for f in list_inputs(["in/a b[1].jsonl"], {}, {})] == [f"file://{tmp_path}/in/a b[1].jsonl"]
    assert len(list_inputs([f"file://{tmp_path}/in/*.jsonl"], {}, {})) == 2


@pytest.mark.parametrize("pattern", ["d/*.csv", "d/x.jsonl", "nothing/", "nothing", "d/**/*.csv"])
def test_each_pattern_must_match_and_the_error_names_it(bucket, pattern):
    store, url = bucket
    fill(store, "d/a.jsonl")
    with pytest.raises(RecipeError, match="no input matches memory://.*" + pattern.replace("*", r"\*").rstrip("/")):
        names(url, "d/a.jsonl", pattern)


def test_only_hidden_files_are_explained(bucket):
    store, url = bucket
    fill(store, "d/_a.jsonl")
    with pytest.raises(RecipeError, match="1 objects are there, but hidden"):
        names(url, "d/*.jsonl")


def test_no_url_at_all():
    with pytest.raises(RecipeError, match="names no input"):
        list_inputs([], {}, {})


def test_planning_lists_and_does_not_read(bucket):
    store, url = bucket
    fill(store, *(f"d/{n:05d}.jsonl" for n in range(2500)))
    before = store.requests
    assert len(names(url, "d/*.jsonl")) == 2500
    spent = {verb: count - before.get(verb, 0) for verb, count in store.requests.items() if count != before.get(verb, 0)}
    assert set(spent) == {"list"}
    assert spent["list"] <= 5  # three pages, one for a manifest


def test_a_long_list_of_files_shares_list_pages(bucket):
    store, url = bucket
    fill(store, *(f"d/{n:05d}.jsonl" for n in range(3000)))
    before = store.requests
    assert len(names(url, *(f"d/{n:05d}.jsonl" for n in range(0, 3000, 3)))) == 1000
    assert store.requests["list"] - before.get("list", 0) <= 4


def test_two_files_of_a_huge_folder_are_asked_for_singly(bucket):
    store, url = bucket
    fill(store, *(f"d/{n:05d}" for n in range(9000)))
    before = store.requests
    assert names(url, "d/00000", "d/08999") == ["d/00000", "d/08999"]
    assert store.requests["list"] - before.get("list", 0) <= 5


def manifest(tag, parts, replaces=()):
    return encode(Manifest(run_id="r", run_tag=tag, parts=tuple(ManifestPart(p, 1, 1, "c") for p in parts), replaces=tuple(replaces)))


def test_of_an_output_only_the_parts_that_its_manifests_name_are_read(bucket):
    store, url = bucket
    fill(store, "out/part-0-old.parquet", "out/part-0-new.parquet", "out/part-1-lost.parquet")
    store.put("out/" + manifest_key("old"), manifest("old", ["part-0-old.parquet"]))
    store.put("out/" + manifest_key("new"), manifest("new", ["part-0-new.parquet"], [manifest_key("old"), "part-0-old.parquet"]))
    for pattern in ("out", "out/", "out/*.parquet", "out/part-*", "**/*.parquet", "*/part-*"):
        assert names(url, pattern) == ["out/part-0-new.parquet"], pattern
    assert names(url, "out/part-1-lost.parquet") == ["out/part-1-lost.parquet"]  # named in so many words


def test_a_part_that_the_manifest_names_and_that_is_gone_is_an_error(bucket):
    store, url = bucket
    fill(store, "out/part-0.parquet")
    store.put("out/" + manifest_key("t"), manifest("t", ["part-0.parquet", "part-1.parquet"]))
    with pytest.raises(IntegrityError, match=r"missing, the first is out/part-1\.parquet"):
        names(url, "out")


def test_a_broken_manifest_is_named(bucket):
    store, url = bucket
    fill(store, "out/part-0.parquet")
    store.put("out/" + manifest_key("t"), b"{}")
    with pytest.raises(IntegrityError, match=r"out/_cloudshard/t\.json"):
        names(url, "out")


def test_options_meant_for_a_bucket_are_not_given_to_local_files():
    options_of = options_by_url(["s3://b/x", "/data/y"], {"anon": True})
    assert options_of("s3://b/x") == {"anon": True}
    assert options_of("file:///data/y") == {}
    assert options_by_url(["/data/y"], {"durable": True})("file:///data/y") == {"durable": True}
