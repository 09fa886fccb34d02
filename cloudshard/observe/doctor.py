"""`doctor`: prove on the user's own bucket what the protocol relies on, before the first claim.

Providers differ where it hurts: conditional writes that are ignored, clocks, multipart uploads. So nothing is looked up in a
table of providers; every promise of the store port that a run's correctness rests on is tried, with two clients that share
nothing but the bucket. Everything is made below ``doctor-<random>/`` and deleted at the end.
"""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

from cloudshard.errors import (
    AlreadyExists,
    CloudshardError,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    StoreError,
    Unavailable,
    Unsupported,
)
from cloudshard.store.port import ObjectInfo, Store, Upload
from cloudshard.store.registry import open_raw
from cloudshard.store.reliable import ReliableStore

RACE_THREADS = 16
RACE_ROUNDS = 8
SAMPLES = 20
#: How long a request may be retried here: a doctor that waits for minutes is no help.
DEADLINE_SECONDS = 20.0
#: Times of a write, of HEAD, of LIST and of the server's clock must agree to this: 1 s of resolution, and a second's turn.
CLOCK_SECONDS = 2.0
CLOCK_PAUSE_SECONDS = 0.15

_ACTIONS = {
    "create": "s3:PutObject",
    "put": "s3:PutObject",
    "get": "s3:GetObject",
    "head": "s3:GetObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
    "multipart": "s3:PutObject and s3:AbortMultipartUpload",
    "list_uploads": "s3:ListBucketMultipartUploads",
}


class Finding(NamedTuple):
    """One thing that was tried. ``mend`` says what to do when it is not ``ok``."""

    check: str
    ok: bool
    detail: str
    mend: str


class _Failed(Exception):
    def __init__(self, detail: str, mend: str) -> None:
        super().__init__(detail)
        self.finding = (detail, mend)


class _Patient(NamedTuple):
    """Two clients of the folder under examination, with and without retries."""

    raw: Store
    one: ReliableStore
    two: ReliableStore
    folder: str
    uploads: list[Upload]
    made: list[str]


def examine(url: str, options: Mapping[str, Any] | None = None) -> list[Finding]:
    """Try everything on the bucket or folder at ``url``; one finding per promise, in the order of dependence.

    Raises RecipeError when the URL or an option is wrong; what the bucket refuses is a finding, never an exception.
    """
    raw, other = open_raw(url, options), open_raw(url, options)
    try:
        folder = f"doctor-{uuid.uuid4().hex[:12]}/"
        patient = _Patient(raw, _patiently(raw), _patiently(other), folder, [], [])
        findings = [_try("permissions", _permissions, patient)]
        if findings[0].ok:
            findings += [_try(name, check, patient) for name, check in _CHECKS]
        if patient.made:
            findings.append(_try("clean up", _clean_up, patient))
        return findings
    finally:
        raw.close()
        other.close()


def _patiently(store: Store) -> ReliableStore:
    return ReliableStore(store, deadline_seconds=DEADLINE_SECONDS)


def _try(name: str, check: Callable[[_Patient], str], patient: _Patient) -> Finding:
    try:
        return Finding(name, True, check(patient), "")
    except _Failed as failure:
        return Finding(name, False, *failure.finding)
    except CloudshardError as error:
        detail = error.what if not error.where else f"{error.what} ({error.where})"
        return Finding(name, False, detail, error.mend or "See the message; try again, and look at the store's own logs if it stays so.")


# ---------------------------------------------------------------- checks


def _permissions(patient: _Patient) -> str:
    """Every verb is allowed; says all that are not, not just the first."""
    store, key = patient.one, patient.folder + "permissions"
    tries: list[tuple[str, Callable[[], object]]] = [
        ("create", lambda: store.create(key, b"x", metadata={"state": "held"})),
        ("put", lambda: store.put(key, b"y", metadata={"state": "held"})),
        ("get", lambda: store.get(key)),
        ("head", lambda: store.head(key)),
        ("list", lambda: list(store.list(patient.folder))),
        ("multipart", lambda: _begin_and_abort(patient)),
        ("list_uploads", lambda: list(store.list_uploads(patient.folder))),
        ("delete", lambda: store.delete([key])),
    ]
    refused: dict[str, PermissionDenied] = {}
    missing: list[str] = []
    for verb, attempt in tries:
        try:
            attempt()
            patient.made.append(verb)
        except PermissionDenied as error:
            refused[verb] = error
        except NotFound as error:
            if verb == "create" or "bucket" in error.what:
                raise
            missing.append(verb)  # its create was refused, so there was nothing to read
    if refused:
        first = next(iter(refused.values()))
        if len(refused) == len(tries) - len(missing):
            raise first
        actions = ", ".join(dict.fromkeys(_ACTIONS[verb] for verb in refused))
        raise _Failed(
            f"refused: {', '.join(refused)} ({first.what})", f"Allow {actions} on this bucket and prefix (S3's names), or the file's mode."
        )
    return "create, put, get, head, list, delete and multipart are allowed"


def _begin_and_abort(patient: _Patient) -> None:
    upload = patient.one.begin_upload(patient.folder + "aborted", part_size=patient.raw.default_part_size)
    patient.one.abort_upload(upload)


def _create_only(patient: _Patient) -> str:
    key = patient.folder + "create-only"
    patient.one.create(key, b"first")
    try:
        patient.two.create(key, b"second")
    except AlreadyExists:
        pass
    else:
        raise _Failed(
            "a second create of the same key succeeded: this store ignores the condition",
            "Use a store with conditional writes (If-None-Match: *). On OSS, use a bucket without versioning; "
            "behind a gateway, let the header through.",
        )
    if patient.two.get(key) != b"first":
        raise _Failed("the refused create has overwritten the object", "This store cannot hold a ledger: use another one.")
    return "a key that exists is refused and stays as it was"


def _race(patient: _Patient) -> str:
    with ThreadPoolExecutor(RACE_THREADS) as pool:
        for number in range(RACE_ROUNDS):
            key, barrier = f"{patient.folder}race-{number}", threading.Barrier(RACE_THREADS)

            def run(runner: int, key: str = key, barrier: threading.Barrier = barrier) -> int | None:
                store = (patient.one, patient.two)[runner % 2]
                barrier.wait(60)
                try:
                    store.create(key, b"runner %d" % runner)
                except AlreadyExists:
                    return None
                return runner

            winners = [runner for runner in pool.map(run, range(RACE_THREADS)) if runner is not None]
            if len(winners) != 1 or patient.one.get(key) != b"runner %d" % winners[0]:
                raise _Failed(
                    f"{len(winners)} of {RACE_THREADS} simultaneous creates of one key were told that they won (round {number + 1})",
                    "Conditional writes are not atomic here (a gateway or a test server?): do not run cloudshard on this store.",
                )
    return f"{RACE_ROUNDS} rounds of {RACE_THREADS} simultaneous creates: one winner each"


class _LosesFirstAnswer:
    """A store whose first ``create`` succeeds without anybody hearing of it."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
        info = self._inner.create(key, body, metadata=metadata)
        if not self._lost:
            self._lost = True
            raise Unavailable("the answer was thrown away on purpose")
        return info


def _lost_answer(patient: _Patient) -> str:
    key = patient.folder + "lost-answer"
    store = ReliableStore(_LosesFirstAnswer(patient.raw), deadline_seconds=DEADLINE_SECONDS)
    try:
        store.create(key, b"nonce-1")
    except AlreadyExists:
        raise _Failed(
            "a create whose answer was lost was taken for a lost race: reading it back gave other bytes",
            "The store does not give back at once what was written: check for a cache in front of it.",
        ) from None
    try:
        patient.two.create(key, b"nonce-2")
    except AlreadyExists:
        return "a create whose answer was lost is recognised by reading it back"
    raise _Failed(
        "after a lost answer, another create of the key succeeded", "The store does not keep what it has accepted: use another one."
    )


def _metadata(patient: _Patient) -> str:
    key = patient.folder + "metadata"
    for state in ("held", "released"):
        given = {"state": state, "lease-seconds": "60"}
        (patient.one.create if state == "held" else patient.one.put)(key, b"same body", metadata=given)
        found = patient.two.head(key).metadata
        if found != given:
            raise _Failed(
                f"user metadata {given} came back as {found}",
                "Leases are kept in user metadata: a proxy that drops x-amz-meta headers must let them through.",
            )
    return "user metadata arrive, and change with an overwrite of the same body"


def _clock(patient: _Patient) -> str:
    times: list[float] = []
    skews: list[float] = []
    for number in range(4):
        before = time.time()
        now = patient.one.server_time()
        skews.append(now - (before + time.time()) / 2)
        written = patient.one.put(f"{patient.folder}clock-{number}", b"x").last_modified
        headed = patient.two.head(f"{patient.folder}clock-{number}").last_modified
        if abs(written - headed) > CLOCK_SECONDS or abs(headed - now) > CLOCK_SECONDS + time.time() - before:
            raise _Failed(
                f"the server's clock disagrees with itself: Date {now:.3f}, time of a write {written:.3f}, Last-Modified {headed:.3f}",
                "Leases need one clock: check the clocks (NTP) of the store's nodes, and proxies that make up the Date header.",
            )
        times += [now, written]
        time.sleep(CLOCK_PAUSE_SECONDS)
    if any(later < earlier for earlier, later in pairwise(times)):
        raise _Failed("the server's clock went backwards between two requests", "Check the clocks (NTP) of the store's nodes.")
    resolution = "1 s" if all(moment == int(moment) for moment in times) else "finer than 1 s"
    return f"resolution {resolution}; this machine's clock is {-statistics.median(skews):+.1f} s from it (which does not matter)"


def _listing(patient: _Patient) -> str:
    prefix = patient.folder + "listing/"
    keys = [f"{prefix}{number:02d}" for number in range(10)]
    for at, key in enumerate(keys):
        patient.one.create(key, b"x")
        seen = [info.key for page in patient.two.list(prefix) for info in page.objects]
        if seen != keys[: at + 1]:
            raise _Failed(
                f"after writing {at + 1} objects another client lists {len(seen)}",
                "LIST must see every finished write at once: turn off listing caches (gateways, CDN), or use a strongly consistent store.",
            )
    after = [info.key for page in patient.two.list(prefix, start_after=keys[4]) for info in page.objects]
    if after != keys[5:]:
        raise _Failed("LIST does not honour start-after", "The store's ListObjectsV2 is not complete: update the gateway.")
    patient.one.delete(keys)
    if any(page.objects for page in patient.two.list(prefix)):
        raise _Failed("deleted objects are still listed", "LIST must see every delete at once: turn off listing caches.")
    return "another client lists each write and each delete at once, in order"


def _pinned_reads(patient: _Patient) -> str:
    key = patient.folder + "pinned"
    info = patient.one.put(key, b"0123456789")
    if patient.two.get(key, start=2, end=5, if_etag=info.etag) != b"234":
        raise _Failed("a ranged read gave other bytes than were asked for", "Check proxies that ignore the Range header.")
    patient.one.put(key, b"abcdefghij")
    try:
        patient.two.get(key, start=2, end=5, if_etag=info.etag)
    except PreconditionFailed:
        return "ranged reads are exact, and an object that was rewritten is noticed by its ETag"
    raise _Failed(
        "a read that asked for the old ETag got the new object",
        "If-Match on GET is ignored: inputs that change during a run would go unnoticed.",
    )


def _multipart(patient: _Patient) -> str:
    key, size = patient.folder + "multipart", max(patient.raw.default_part_size, 5 << 20)
    upload = patient.one.begin_upload(key, part_size=size)
    patient.uploads.append(upload)
    part = patient.one.upload_part(upload, 1, b"published later")
    try:
        patient.two.head(key)
    except NotFound:
        pass
    else:
        raise _Failed(
            "an upload shows before it is finished", "Output would be seen before it is committed: this store cannot publish safely."
        )
    if all(pending.upload_id != upload.upload_id for pending in patient.two.list_uploads(patient.folder)):
        raise _Failed(
            "a pending upload is not listed",
            "`gc` cannot find what dead workers left behind: add a lifecycle rule that aborts old uploads.",
        )
    patient.two.finish_upload(upload, [part])
    if patient.one.get(key) != b"published later":
        raise _Failed("an upload finished by another client has other bytes", "This store cannot publish safely: use another one.")
    patient.uploads.remove(upload)
    return "an upload shows nothing until another client finishes it, and then it is whole"


def _versioning(patient: _Patient) -> str:
    bucket = getattr(patient.raw, "inner", patient.raw)
    ask: Callable[[], str] | None = getattr(bucket, "versioning", None)
    if ask is None:
        return "not a thing of this store"
    try:
        status = ask()
    except (PermissionDenied, Unsupported, NotFound) as error:
        return f"unknown: {error.what}"
    if getattr(bucket, "versioning_breaks_create", False) and status:
        raise _Failed(
            f"versioning is {status.lower()}: this provider ignores create-only on versioned buckets",
            "Use a bucket that never had versioning enabled.",
        )
    if status == "Enabled":
        return "enabled: create-only works; add a lifecycle rule that expires noncurrent versions (each lease renewal leaves one)"
    return status.lower() or "off"


def _latency(patient: _Patient) -> str:
    store, keys = patient.one, [f"{patient.folder}latency-{number}" for number in range(SAMPLES)]
    body = b"x" * 1000
    verbs: Sequence[tuple[str, Callable[[str], object]]] = [
        ("create", lambda key: store.create(key, body)),
        ("put", lambda key: store.put(key, body)),
        ("get", store.get),
        ("head", store.head),
        ("list", lambda key: next(store.list(key))),
        ("delete", lambda key: store.delete([key])),
    ]
    told = []
    for verb, call in verbs:
        spent = []
        for key in keys:
            start = time.perf_counter()
            call(key)
            spent.append((time.perf_counter() - start) * 1000)
        spent.sort()
        told.append(f"{verb} {statistics.median(spent):.1f}/{spent[int(0.95 * (len(spent) - 1))]:.1f}")
    return f"p50/p95 in ms: {', '.join(told)}"


def _clean_up(patient: _Patient) -> str:
    for upload in patient.uploads:
        patient.one.abort_upload(upload)
    try:
        keys = [info.key for page in patient.one.list(patient.folder) for info in page.objects]
        patient.one.delete(keys)
        left = [info.key for page in patient.two.list(patient.folder) for info in page.objects]
    except StoreError as error:
        raise _Failed(
            f"{error.what}; something may be left below {patient.folder}", f"Delete {patient.raw.url}/{patient.folder} by hand."
        ) from error
    if left:
        raise _Failed(f"{len(left)} objects are left below {patient.folder}", f"Delete {patient.raw.url}/{patient.folder} by hand.")
    return f"{len(keys)} objects of this examination deleted"


_CHECKS: Sequence[tuple[str, Callable[[_Patient], str]]] = (
    ("create-only", _create_only),
    ("create-only under a race", _race),
    ("lost answer", _lost_answer),
    ("lease metadata", _metadata),
    ("server clock", _clock),
    ("list after write", _listing),
    ("pinned reads", _pinned_reads),
    ("multipart by two clients", _multipart),
    ("versioning", _versioning),
    ("latency", _latency),
)
