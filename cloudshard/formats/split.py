"""Cutting an object into input ranges by its size alone."""

from __future__ import annotations

import itertools

from cloudshard.ledger.records import InputRange
from cloudshard.store.port import ObjectInfo


def byte_ranges(info: ObjectInfo, url: str, target_bytes: int | None) -> list[InputRange]:
    """Ranges of equal size of at most about ``target_bytes`` (None: one); none for an empty object."""
    if not info.size:
        return []
    count = 1 if target_bytes is None else max(1, -(-info.size // target_bytes))
    edges = [info.size * index // count for index in range(count + 1)]
    return [
        InputRange(url=url, size=info.size, etag=info.etag, start=start, end=end) for start, end in itertools.pairwise(edges) if end > start
    ]


def whole_object(info: ObjectInfo, url: str) -> list[InputRange]:
    """One range that cannot be cut; none for an empty object."""
    if not info.size:
        return []
    return [InputRange(url=url, size=info.size, etag=info.etag, start=0, end=info.size, unit="object")]
