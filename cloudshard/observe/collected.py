"""The record that ``gc`` leaves in a run: what it deleted, so that ``verify`` can tell collected from lost."""

from __future__ import annotations

import secrets

from cloudshard.errors import NotFound
from cloudshard.ledger.records import Record, decode, encode
from cloudshard.store.port import Store

#: Prefix of the records; each gc adds one and rewrites none.
COLLECTED = "collected/"


class CollectedRecord(Record, frozen=True, kw_only=True):
    """collected/<nonce>.json — written *before* gc deletes. ``spills``: the data between the stages is gone or going."""

    nonce: str
    by: str
    spills: bool
    objects: int
    bytes: int
    uploads: int


def write_collected(store: Store, *, by: str, spills: bool, objects: int, bytes: int, uploads: int) -> CollectedRecord:
    """Add a record."""
    record = CollectedRecord(nonce=secrets.token_hex(8), by=by, spills=spills, objects=objects, bytes=bytes, uploads=uploads)
    store.create(f"{COLLECTED}{record.nonce}.json", encode(record))
    return record


def spills_collected(store: Store) -> bool:
    """Whether some gc has deleted (or begun to delete) the data between the stages."""
    for page in store.list(COLLECTED):
        for info in page.objects:
            try:
                if decode(CollectedRecord, store.get(info.key), where=f"{store.url}/{info.key}").spills:
                    return True
            except NotFound:
                continue
    return False
