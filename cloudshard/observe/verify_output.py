"""The objects against the ledger: parts read again, foreign objects, the manifest, quarantine files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from cloudshard.errors import IntegrityError, NotFound, PreconditionFailed
from cloudshard.ledger import keys
from cloudshard.ledger.ledger import run_tag
from cloudshard.ledger.records import CommitRecord, PartRecord, decode
from cloudshard.ledger.seal import MANIFESTS, Manifest, manifest_key
from cloudshard.observe import objects
from cloudshard.observe.fetch import get_many, list_objects
from cloudshard.observe.findings import Check
from cloudshard.observe.load import OpenRun
from cloudshard.store.port import ObjectInfo, Store

#: Parts read at the same time: each holds one chunk in memory.
READERS = 8

#: Told of every part that has been read.
PartRead = Callable[[PartRecord], None]


class _Read(NamedTuple):
    """What reading one object told: a problem, or its rows (None: not known)."""

    problem: str | None
    rows: int | None
    bytes_read: int


class ObjectChecks:
    """Checks of one run's objects; ``fast`` reads no data. ``bytes_read`` counts what was read."""

    def __init__(self, run: OpenRun, checks: Mapping[str, Check], *, fast: bool, progress: PartRead | None) -> None:
        self._run = run
        self._checks = checks
        self._fast = fast
        self._progress = progress
        self.bytes_read = 0

    def check_parts(self, store: Store, parts: Iterable[PartRecord], present: Mapping[str, ObjectInfo], *, complete: bool) -> None:
        """Every part is there (once the run is ``complete``), in its size, with its bytes and its rows."""
        check = self._checks["parts"]
        seen: set[str] = set()
        readable: list[PartRecord] = []
        for part in parts:
            where = f"{store.url}/{part.key}"
            check.examined += 1
            if part.key in seen:
                check.add("two commit records name this part", where)
            seen.add(part.key)
            info = present.get(part.key)
            if info is None:
                if complete:
                    check.add("the part is missing", where)
            elif info.size != part.bytes:
                check.add(f"the object has {info.size} bytes, {part.bytes} were committed", where)
            else:
                readable.append(part)
        if not self._fast:
            self._read_parts(store, readable, present)

    def _read_parts(self, store: Store, parts: list[PartRecord], present: Mapping[str, ObjectInfo]) -> None:
        check, counts = self._checks["parts"], self._checks["row counts"]
        with ThreadPoolExecutor(READERS, thread_name_prefix="verify") as pool:
            for part, read in zip(parts, pool.map(lambda part: _read_part(store, part, present[part.key]), parts), strict=True):
                self.bytes_read += read.bytes_read
                where = f"{store.url}/{part.key}"
                if read.problem is not None:
                    check.add(read.problem, where)
                elif read.rows is not None:
                    counts.examined += 1
                    if read.rows != part.rows:
                        counts.add(f"the object holds {read.rows} rows, {part.rows} were committed", where)
                if self._progress is not None:
                    self._progress(part)

    def check_output(self, output: Store, parts: list[PartRecord], *, complete: bool) -> None:
        """The output holds ``parts`` and nothing else, and its manifest says so. A later run's replacement is one problem, not many."""
        present = {info.key: info for info in list_objects(output, "")}
        if self._check_manifest(output, present, parts, complete):
            return
        self.check_parts(output, parts, present, complete=complete)
        self._check_foreign(output, {part.key for part in parts}, present, complete)

    def _check_foreign(self, output: Store, ours: set[str], present: Iterable[str], complete: bool) -> None:
        """Nothing else under the output; what a run with mode "overwrite" will replace may be there until it is complete."""
        check = self._checks["foreign"]
        replaced = set() if complete else set(self._replaces())
        inside = _relative(self._run.url, output.url)
        for key in present:
            if key.startswith(MANIFESTS) or key in replaced or (inside and key.startswith(inside)):
                continue
            check.examined += 1
            if key not in ours:
                what = "a part of this run that no commit record names" if run_tag(self._run.record) in key else "not written by this run"
                check.add(what, f"{output.url}/{key}")

    def _check_manifest(self, output: Store, present: Iterable[str], parts: list[PartRecord], complete: bool) -> bool:
        """Compare the manifest with the commit records; True when a later run has replaced this output."""
        check = self._checks["manifest"]
        own = manifest_key(run_tag(self._run.record))
        there = [key for key in present if key.startswith(MANIFESTS) and key.count("/") == 1 and key.endswith(".json")]
        manifests = {key: decode(Manifest, body, where=f"{output.url}/{key}") for key, body in get_many(output, there)}
        for key, manifest in manifests.items():
            if own in manifest.replaces:
                check.add(f"the output was replaced by run {manifest.run_id}", f"{output.url}/{key}")
                return True
        if not complete:
            return False
        check.examined += 1
        if own not in manifests:
            check.add("the manifest of the output is missing", f"{output.url}/{own}")
            return False
        named = {(part.key, part.rows, part.bytes, part.checksum) for part in manifests[own].parts}
        committed = {(part.key, part.rows, part.bytes, part.checksum) for part in parts}
        for key in sorted({key for key, *_ in named ^ committed}):
            check.add(f"manifest and commit records differ about {key}", f"{output.url}/{own}")
        return False

    def _replaces(self) -> list[str]:
        key = self._run.record.replaces_key
        return [] if key is None else msgspec.json.decode(self._run.store.get(key), type=list[str])

    def check_quarantine(self, records: Iterable[CommitRecord]) -> None:
        """Each quarantine file is there and holds the rows that were counted."""
        check, store = self._checks["quarantine"], self._run.store
        for record in records:
            if record.quarantine_key is None:
                if record.counts.quarantined:
                    what = f"{record.counts.quarantined} rows were quarantined, but the commit record names no quarantine file"
                    check.add(what, f"{store.url}/{keys.commit(record.stage, record.item)}")
                continue
            check.examined += 1
            where = f"{store.url}/{record.quarantine_key}"
            try:
                size = store.head(record.quarantine_key).size
                rows = None if self._fast else objects.count_rows(store, record.quarantine_key, size, 0)
            except NotFound:
                check.add("the quarantine file is missing", where)
            except IntegrityError as error:
                check.add(error.what, where)
            else:
                if rows is not None and rows != record.counts.quarantined:
                    check.add(f"the file holds {rows} rows, {record.counts.quarantined} were quarantined", where)


def _read_part(store: Store, part: PartRecord, info: ObjectInfo) -> _Read:
    try:
        found, lines = objects.checksum(store, part.key, info.size, info.etag)
        if found != part.checksum:
            return _Read(f"its bytes have the checksum {found}, {part.checksum} was committed", None, info.size)
        return _Read(None, objects.count_rows(store, part.key, info.size, lines), info.size)
    except (NotFound, PreconditionFailed):
        return _Read("the object changed while it was read", None, 0)
    except IntegrityError as error:
        return _Read(error.what, None, info.size)


def _relative(url: str, base: str) -> str:
    """``url`` as a key prefix under ``base`` (with trailing slash), or "" when it is not under it."""
    prefix = base.rstrip("/") + "/"
    return url[len(prefix) :].rstrip("/") + "/" if url.startswith(prefix) else ""
