"""The input of one partition: which slices of which runs it reads, and their rows as the operators want them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from cloudshard.reduce.ordering import SortKey, between
from cloudshard.reduce.plan import Partition, share, slices_between, slices_of
from cloudshard.reduce.read import OpenObject, Wanted, read_numbered
from cloudshard.reduce.runs import RunIndex
from cloudshard.reduce.sorting import Placed

#: More chunks than any run has: place = number of the run times this, plus the chunk.
_CHUNKS = 1 << 24


@dataclass(frozen=True, slots=True)
class Run:
    """A committed run of one side. ``etag`` may be empty."""

    url: str
    etag: str
    index: RunIndex


class Source(NamedTuple):
    """A slice that a partition reads. ``place`` orders the rows of a sort: by run in item order, then by chunk."""

    wanted: Wanted
    place: int


def inputs(runs: Sequence[Run], partition: Partition, *, side: int = 0, by_key: bool = False) -> list[Source]:
    """What ``partition`` reads of one side's ``runs`` (all of them, in item order), in the order to read it."""
    divided = partition.parts > 1 and partition.divided == side
    numbers = share(len(runs), partition.part, partition.parts) if divided else range(len(runs))
    found = []
    for number in numbers:
        run = runs[number]
        slices = slices_between(run.index, partition.low, partition.high) if by_key else slices_of(run.index, partition)
        for one in slices:
            found.append(Source(Wanted(run.url, run.etag, one), number * _CHUNKS + (one.bucket if by_key else 0)))
    return found


def sorted_pieces(
    open_object: OpenObject, sources: Sequence[Source], keys: Sequence[SortKey], partition: Partition, *, prefetch_bytes: int = 64 << 20
) -> Iterator[Placed]:
    """The rows of a range of a sort: each slice is sorted, so what lies outside of [low, high) is cut off at its ends."""
    wanted = [source.wanted for source in sources]
    for number, table in read_numbered(open_object, wanted, prefetch_bytes=prefetch_bytes):
        some: pa.Table = between(table, keys, partition.low, partition.high)
        if some.num_rows:
            yield Placed(sources[number].place, some)
