"""The doctor: a healthy bucket passes everything, and each ailment is found by the check that is meant for it."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from cloudshard.errors import PermissionDenied
from cloudshard.observe import doctor
from cloudshard.observe.doctor import Finding, examine
from cloudshard.store.memory import MemoryStore
from cloudshard.store.port import ListPage, ObjectInfo, PendingUpload, Upload, UploadPart
from cloudshard.store.registry import open_store

CHECKS = [
    "permissions",
    "create-only",
    "create-only under a race",
    "lost answer",
    "lease metadata",
    "server clock",
    "list after write",
    "pinned reads",
    "multipart by two clients",
    "versioning",
    "latency",
    "clean up",
]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CLOCK_PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize("fixture", ["memory_url", "file_url", "s3_url"])
def test_a_healthy_bucket_passes_and_is_left_clean(fixture: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(fixture) + "/runs"
    findings = examine(url)
    assert [finding.check for finding in findings] == CHECKS
    assert [finding for finding in findings if not finding.ok] == []
    assert all(finding.detail and not finding.mend for finding in findings)
    store = open_store(url)
    assert [info for page in store.list() for info in page.objects] == []
    assert list(store.list_uploads()) == []


class NotExclusive(MemoryStore):
    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        return self.put(key, body, metadata=metadata)


class NotAtomic(MemoryStore):
    """Looks, waits, writes: right as long as nobody else does so at the same time."""

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        there = key in self._objects
        time.sleep(0.02)
        return super().create(key, body, metadata=metadata) if there else self.put(key, body, metadata=metadata)


class Forgetful(MemoryStore):
    """Gives back something else than was written (a cache of an older generation)."""

    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        body = super().get(key, start=start, end=end, if_etag=if_etag)
        return b"stale" if body.startswith(b"nonce") else body


class NoMetadata(MemoryStore):
    def head(self, key: str) -> ObjectInfo:
        info = super().head(key)
        return ObjectInfo(info.key, info.size, info.etag, info.last_modified, {})


class TwoClocks(MemoryStore):
    def server_time(self) -> float:
        return super().server_time() + random.choice([60, 61])


class StaleListing(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        for page in super().list(prefix, start_after=start_after, delimiter=delimiter):
            objects = page.objects[:-1] if "listing" in prefix else page.objects
            yield ListPage(objects, page.prefixes, page.server_time)


class IgnoresETags(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        return super().get(key, start=start, end=end)


class ShowsUnfinished(MemoryStore):
    def upload_part(self, upload: Upload, number: int, data: bytes | memoryview) -> UploadPart:
        self.put(upload.key, bytes(data))
        return super().upload_part(upload, number, data)


class HidesUploads(MemoryStore):
    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        return iter(())


class NoDelete(MemoryStore):
    def delete(self, keys: Sequence[str]) -> None:
        raise PermissionDenied("the policy says no", where="memory://x")


class NoReading(MemoryStore):
    def get(self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None) -> bytes:
        raise PermissionDenied("the policy says no", where="memory://x")


class Versioned(MemoryStore):
    versioning_breaks_create = True

    def versioning(self) -> str:
        return "Enabled"


def of(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (NotExclusive, "create-only", "ignores the condition"),
        (NotAtomic, "create-only under a race", "told that they won"),
        (Forgetful, "lost answer", "lost race"),
        (NoMetadata, "lease metadata", "came back"),
        (TwoClocks, "server clock", "disagrees"),
        (StaleListing, "list after write", "lists"),
        (IgnoresETags, "pinned reads", "old ETag"),
        (ShowsUnfinished, "multipart by two clients", "before it is finished"),
        (HidesUploads, "multipart by two clients", "not listed"),
        (NoDelete, "permissions", "refused: delete"),
        (NoReading, "permissions", "refused: get"),
        (Versioned, "versioning", "versioning is enabled"),
    ],
)
def test_each_ailment_is_found_by_its_check(kind: type[MemoryStore], check: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = kind("sick")
    monkeypatch.setattr(doctor, "open_raw", lambda url, options: shared)
    finding = of(examine("memory://sick"))[check]
    assert not finding.ok
    assert words in finding.detail
    assert finding.mend


def test_what_the_store_says_of_permissions_is_a_finding_with_the_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "open_raw", lambda url, options: NoDelete("x"))
    finding = of(examine("memory://x"))["permissions"]
    assert "s3:DeleteObject" in finding.mend


def test_a_missing_bucket_and_a_read_only_store_are_findings(s3_env: str) -> None:
    (finding,) = examine("s3://no-such-bucket/x")
    assert not finding.ok
    assert "does not exist" in finding.detail
    (finding,) = examine("http://127.0.0.1:1/x")
    assert not finding.ok
    assert "only be read" in finding.detail


def test_a_coarse_clock_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = itertools.repeat(MemoryStore("coarse", resolution=1.0, clock=lambda: time.time() + 1000))
    monkeypatch.setattr(doctor, "open_raw", lambda url, options: next(stores))
    finding = of(examine("memory://coarse"))["server clock"]
    assert finding.ok
    assert "resolution 1 s" in finding.detail
    assert "-1000" in finding.detail or "-999" in finding.detail
