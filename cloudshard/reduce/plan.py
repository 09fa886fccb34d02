"""Decisions when a stage seals, as functions of the runs' indexes: which partitions a boundary has, and why. No I/O.

Everything follows from the commit records in item order, so whoever seals a stage derives the same partitions.

Hash boundaries: neighbouring small buckets are one partition. A bucket that is larger than a partition should be is *hot*: mappers that
combine (partial aggregates, local dedup) have no hot keys; for a join, and for what can be combined afterwards, a hot bucket is *divided*:
each part reads the slices of some of the runs of one side, and all slices of the other side.

Sort boundaries: ranges of equal bytes by the key samples. A key with more rows than a partition should have gets a partition of its own,
which is divided by runs: its rows are in input order anyhow. Such a range needs a key whose normal form is not cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from cloudshard.errors import IntegrityError
from cloudshard.reduce.join import DIVISIBLE
from cloudshard.reduce.ordering import decode_form
from cloudshard.reduce.runs import RunIndex, Slice

#: A bucket or key is hot when it has so many times the bytes that a partition should have.
HOT = 1.5
#: Requests of one exchange (mappers x partitions): a million ranged reads cost about $0.40.
MAX_READS = 1_000_000
_COMPLETE_FORM = 64


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one reduce. ``nbytes``: Arrow bytes that it reads (of divided ones with what is replicated).

    By hash: buckets [first, end). By sort key: normal forms in [low, high), None is open. ``parts`` > 1: this is part ``part`` of a divided
    partition; the slices of side ``divided`` are shared out (:func:`share`), the other side is read whole by every part.
    """

    first: int = 0
    end: int = 1
    low: bytes | None = None
    high: bytes | None = None
    part: int = 0
    parts: int = 1
    divided: int = 0
    nbytes: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a boundary. ``recombine``: parts of a divided one give partial results that another reduce must combine.

    ``levels`` 2: the runs have to be exchanged in two steps (:class:`Levels`). ``notes``: what was chosen and why, for ``explain``.
    """

    partitions: tuple[Partition, ...]
    recombine: bool = False
    notes: tuple[str, ...] = ()


def divisible_sides(operation: str) -> tuple[int, ...]:
    """Sides that an operation lets be divided. ``join:<how>``; "aggregate" (in halves) and "dedup" recombine; "sql", "map_groups": none."""
    kind, _, how = operation.partition(":")
    if kind == "join":
        return DIVISIBLE[how]
    return (0,) if kind in ("aggregate", "dedup") else ()


def hash_partitions(
    sides: Sequence[Sequence[int]], *, target_bytes: int, operation: str, runs: Sequence[int] = (), max_partitions: int = 100_000
) -> Decision:
    """Partitions for buckets whose Arrow bytes are ``sides[side][bucket]``, each of about ``target_bytes``.

    ``runs``: number of runs of each side: a divided bucket has no more parts than that. More than ``max_partitions`` are avoided by a
    larger target. Every bucket is in exactly one partition (or one set of parts); there is always at least one partition.
    """
    buckets = max((len(side) for side in sides), default=0)
    sides = [[*side, *([0] * (buckets - len(side)))] for side in sides]
    totals = [sum(column) for column in zip(*sides, strict=True)]
    target = max(target_bytes, math.ceil(sum(totals) / max_partitions), 1)
    allowed = divisible_sides(operation)
    partitions: list[Partition] = []
    notes: list[str] = []
    first, size = 0, 0
    for bucket, nbytes in enumerate(totals):
        hot = nbytes > HOT * target
        if (hot or size + nbytes > target) and bucket > first and size:
            partitions.append(Partition(first=first, end=bucket, nbytes=size))
            first, size = bucket, 0
        if not hot:
            size += nbytes
            continue
        parts = _divided(sides, bucket, first, target, allowed, runs)
        partitions += parts
        notes.append(_hot_note(bucket, nbytes, target, parts, operation))
        first = bucket + 1
    if first < buckets or not partitions:
        if size or not partitions:
            partitions.append(Partition(first=first, end=max(buckets, 1), nbytes=size))
        else:
            partitions[-1] = msgspec.structs.replace(partitions[-1], end=buckets) if partitions[-1].parts == 1 else partitions[-1]
            if partitions[-1].parts > 1:
                partitions.append(Partition(first=first, end=buckets))
    notes.insert(0, f"{buckets} buckets with {sum(totals)} bytes became {len(partitions)} partitions of about {target} bytes")
    divided = any(partition.parts > 1 for partition in partitions)
    recombine = divided and operation.partition(":")[0] in ("aggregate", "dedup")
    return Decision(partitions=tuple(partitions), recombine=recombine, notes=tuple(notes))


def _divided(
    sides: Sequence[Sequence[int]], bucket: int, first: int, target: int, allowed: Sequence[int], runs: Sequence[int]
) -> list[Partition]:
    """Parts of a hot bucket: by the largest side that may be divided, if that is what makes it large."""
    side = max(allowed, key=lambda candidate: (sides[candidate][bucket], -candidate), default=-1)
    total = sum(one[bucket] for one in sides)
    own = sides[side][bucket] if side >= 0 else 0
    most = runs[side] if side >= 0 and side < len(runs) else 1
    parts = min(math.ceil(own / max(target - (total - own), target // 4, 1)), most) if own else 1
    if parts <= 1:
        return [Partition(first=first, end=bucket + 1, nbytes=total)]
    size = own // parts + total - own
    return [Partition(first=first, end=bucket + 1, part=part, parts=parts, divided=side, nbytes=size) for part in range(parts)]


def _hot_note(bucket: int, nbytes: int, target: int, parts: Sequence[Partition], operation: str) -> str:
    much = f"bucket {bucket} is hot ({nbytes} bytes, wanted {target})"
    if len(parts) > 1:
        other = "" if operation.startswith(("aggregate", "dedup")) else ", the other side is read by each"
        return f"{much}: divided into {len(parts)} parts by the runs of side {parts[0].divided}{other}"
    return f"{much}: {operation} cannot divide it, or it comes from one run; one reduce spills"


def share(count: int, part: int, parts: int) -> range:
    """Which of ``count`` runs (in item order) a part of a divided partition reads: consecutive ones, as evenly as can be."""
    return range(count * part // parts, count * (part + 1) // parts)


# ---------------------------------------------------------------- sort


def range_partitions(indexes: Sequence[RunIndex], *, target_bytes: int, max_partitions: int = 100_000) -> Decision:
    """Ranges of about ``target_bytes`` Arrow bytes over runs by key, from their samples. At least one partition, the outer ones open.

    Directions, nulls and types are in the normal forms already. Equal input gives equal bounds, whatever the order of the samples.
    """
    sizes = [sum(one.nbytes for one in index.slices) for index in indexes]
    total = sum(sizes)
    wanted = min(max(1, math.ceil(total / max(target_bytes, 1))), max_partitions)
    groups = _groups(indexes)
    share_bytes = sum(weight for _, weight in groups) / wanted
    partitions: list[Partition] = []
    notes: list[str] = []
    low: bytes | None = None
    size = 0.0
    for form, weight in groups:
        if weight > HOT * share_bytes and len(form) < _COMPLETE_FORM:
            if low != form:
                partitions.append(Partition(low=low, high=form, nbytes=int(size)))
            parts = max(1, min(round(weight / share_bytes), len(indexes)))
            low = form + b"\0"
            size = 0.0
            alone = [Partition(low=form, high=low, part=part, parts=parts, nbytes=int(weight / parts)) for part in range(parts)]
            partitions += alone
            notes.append(f"one key has about {weight / max(total, 1):.0%} of the bytes: a range of its own, in {parts} parts")
            continue
        if size and size + weight / 2 > share_bytes:
            partitions.append(Partition(low=low, high=form, nbytes=int(size)))
            low, size = form, 0.0
        size += weight
    partitions.append(Partition(low=low, high=None, nbytes=int(size)))
    samples = sum(len(index.samples) for index in indexes)
    notes.insert(0, f"{total} bytes became {len(partitions)} ranges of about {int(share_bytes)} bytes, from {samples} key samples")
    return Decision(partitions=tuple(partitions), notes=tuple(notes))


def _groups(indexes: Iterable[RunIndex]) -> list[tuple[bytes, float]]:
    """Distinct sampled keys in order, each with the bytes for which it stands."""
    weights: dict[bytes, float] = {}
    for index in indexes:
        if not index.samples:
            continue
        each = sum(one.nbytes for one in index.slices) / len(index.samples)
        for text in index.samples:
            form = decode_form(text)
            weights[form] = weights.get(form, 0.0) + each
    return sorted(weights.items())


def slices_of(index: RunIndex, partition: Partition) -> list[Slice]:
    """The slices of a run that a partition by hash reads."""
    return [one for one in index.slices if partition.first <= one.bucket < partition.end]


def slices_between(index: RunIndex, low: bytes | None, high: bytes | None) -> list[Slice]:
    """The slices of a run by key that may have keys in [low, high), in object order; rows outside are cut off by the reader."""
    found = []
    for one in index.slices:
        if not one.low:
            raise IntegrityError("a run by buckets was given to a sort", mend="Was the run written by another version?")
        if (low is None or decode_form(one.high) >= low) and (high is None or decode_form(one.low) < high):
            found.append(one)
    return found


# ---------------------------------------------------------------- levels


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """How often rows are exchanged. With two, level one has ``fan_out`` groups of partitions, each exchanged again by itself."""

    levels: int
    fan_out: int
    reads: int
    reason: str


def exchange_levels(mappers: int, partitions: int, *, max_reads: int = MAX_READS) -> Levels:
    """One level while mappers x partitions is at most ``max_reads`` requests, else two, with about the square root of the partitions."""
    reads = mappers * partitions
    if reads <= max_reads:
        return Levels(levels=1, fan_out=partitions, reads=reads, reason=f"{mappers} x {partitions} = {reads} reads")
    groups = max(2, math.isqrt(partitions))
    second = mappers * groups + groups * math.ceil(partitions / groups) * groups
    reason = f"{mappers} x {partitions} = {reads} reads are more than {max_reads}: two levels with {groups} groups need about {second}"
    return Levels(levels=2, fan_out=groups, reads=second, reason=reason)


def bucket_count(expected_bytes: int, target_bytes: int, *, explicit: int | None = None) -> int:
    """How many buckets mappers write: four a partition, so that coalescing has a choice; 16 to 4,096, a power of two."""
    if explicit is not None:
        return explicit
    wanted = 4 * max(1, math.ceil(expected_bytes / max(target_bytes, 1)))
    return 1 << max(4, min(12, math.ceil(math.log2(wanted))))
