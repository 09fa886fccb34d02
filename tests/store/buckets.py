"""Buckets of every kind for the contract suite, bare and behind the wrappers that every store gets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloudshard.errors import UploadGone
from cloudshard.store.chaos import ChaosStore
from cloudshard.store.port import ObjectInfo, Store, Upload, UploadPart
from cloudshard.store.reliable import ReliableStore

KINDS = ("memory", "file", "file-sidecar", "s3", "s3-boto3")
WRAPPERS = ("bare", "reliable", "chaos")

#: Every fault that an honest network has; deliveries in duplicate and silent truncation have tests of their own.
RATES = {"throttled": 0.05, "conflict": 0.1, "lost_request": 0.1, "lost_answer": 0.1, "torn_read": 0.1}


@dataclass
class Bucket:
    """One bucket; ``open_again`` is a second client that shares nothing with the first but the bucket."""

    kind: str
    wrapper: str
    make: Callable[[], Store]

    def __post_init__(self) -> None:
        self.store = self.open_again()

    def open_again(self, seed: int = 1) -> Store:
        raw = self.make()
        if self.wrapper == "bare":
            return raw
        if self.wrapper == "chaos":
            raw = ChaosStore(raw, seed, RATES)
        return ReliableStore(raw, rng=random.Random(seed), base_delay_seconds=0.0001, max_delay_seconds=0.001)

    @property
    def lossy(self) -> bool:
        return self.wrapper == "chaos"

    @property
    def is_file(self) -> bool:
        return self.kind.startswith("file")

    @property
    def is_s3(self) -> bool:
        return self.kind.startswith("s3")

    #: All parts but the last must be as large on S3.
    @property
    def part_size(self) -> int:
        return 5 << 20 if self.is_s3 else 1 << 16

    def finish(self, store: Store, upload: Upload, parts: Sequence[UploadPart]) -> ObjectInfo:
        """As a publisher does it: UploadGone may be the answer to one's own finish whose first answer was lost."""
        try:
            return store.finish_upload(upload, parts)
        except UploadGone:
            if not self.lossy:
                raise
            return store.head(upload.key)
