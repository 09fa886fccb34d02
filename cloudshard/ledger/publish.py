"""Publication: an output part appears only after the commit record that names it, whole, by whoever gets there first."""

from __future__ import annotations

from collections.abc import Iterable

from cloudshard.errors import IntegrityError, NotFound, UploadGone
from cloudshard.ledger.records import PartRecord
from cloudshard.store.port import Store


def publish(store: Store, part: PartRecord) -> None:
    """Finish the pending upload of a *committed* part; nothing to do when somebody has done it.

    ``store`` is rooted where the part's key is relative to. Raises IntegrityError when neither upload nor object exists.
    """
    if part.upload is None:
        return
    try:
        store.finish_upload(part.upload, part.upload_parts)
    except UploadGone:
        if not is_there(store, part):
            raise IntegrityError(
                "a committed part is lost: its pending upload is gone and no object of its size is there",
                where=f"{store.url}/{part.key}",
                mend="Was the upload aborted by a lifecycle rule, or the object deleted? Run again on a new run prefix.",
            ) from None


def is_there(store: Store, part: PartRecord) -> bool:
    """Whether the part's object exists in the size that was committed."""
    try:
        return store.head(part.key).size == part.bytes
    except NotFound:
        return False


def discard(store: Store, parts: Iterable[PartRecord]) -> None:
    """Forget the pending uploads of an attempt that has *seen* another attempt's commit record (never on a mere doubt)."""
    for part in parts:
        if part.upload is not None:
            store.abort_upload(part.upload)
