"""What is decided when a stage seals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import IntegrityError
from cloudshard.reduce.ordering import encode_form
from cloudshard.reduce.plan import (
    Partition,
    bucket_count,
    exchange_levels,
    hash_partitions,
    range_partitions,
    share,
    slices_between,
)
from cloudshard.reduce.runs import RunIndex, Slice

OPERATIONS = ["join:inner", "join:left", "join:right", "join:full", "join:semi", "join:anti", "aggregate", "dedup", "sql", "map_groups"]
SIDES = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    left=SIDES,
    right=SIDES,
    target=st.integers(1, 3000),
    operation=st.sampled_from(OPERATIONS),
    runs=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_every_bucket_is_in_one_partition_or_one_set_of_parts(
    left: list[int], right: list[int], target: int, operation: str, runs: tuple[int, int]
) -> None:
    sides = [left, right] if operation.startswith("join") else [left]
    decision = hash_partitions(sides, target_bytes=target, operation=operation, runs=runs)
    assert decision == hash_partitions(sides, target_bytes=target, operation=operation, runs=runs)
    at = 0
    parts = list(decision.partitions)
    while parts:
        first = parts.pop(0)
        assert (first.first, first.part) == (at, 0)
        assert first.end > at
        for number in range(1, first.parts):
            other = parts.pop(0)
            assert (other.first, other.end, other.part, other.parts, other.divided) == (at, first.end, number, first.parts, first.divided)
        assert first.parts <= max(runs)
        at = first.end
    assert at == max(map(len, sides))


def test_small_buckets_are_coalesced_and_a_hot_one_is_divided() -> None:
    left, right = [10] * 8 + [1000] + [10] * 8, [1] * 17
    decision = hash_partitions([left, right], target_bytes=100, operation="join:inner", runs=(40, 3))
    sizes = [(one.first, one.end, one.parts) for one in decision.partitions if one.part == 0]
    assert sizes == [(0, 8, 1), (8, 9, 11), (9, 17, 1)]
    assert not decision.recombine
    assert any("bucket 8 is hot" in note and "11 parts" in note for note in decision.notes)
    whole = hash_partitions([left, right], target_bytes=100, operation="join:full", runs=(40, 3))
    assert all(one.parts == 1 for one in whole.partitions)
    assert hash_partitions([left], target_bytes=100, operation="aggregate", runs=(40,)).recombine


@given(count=st.integers(0, 50), parts=st.integers(1, 9))
def test_shares_are_a_partition_of_the_runs_in_order(count: int, parts: int) -> None:
    assert [run for part in range(parts) for run in share(count, part, parts)] == list(range(count))


def index_of(forms: list[bytes], nbytes: int) -> RunIndex:
    texts = tuple(encode_form(form) for form in sorted(forms))
    return RunIndex(slices=(Slice(0, 0, nbytes, len(forms), nbytes, "", texts[0], texts[-1]),) if texts else (), buckets=1, samples=texts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=3), max_size=30), min_size=1, max_size=4), st.integers(1, 20))
def test_ranges_cover_everything_once(samples: list[list[bytes]], wanted: int) -> None:
    indexes = [index_of(forms, 100 * len(forms)) for forms in samples]
    decision = range_partitions(indexes, target_bytes=max(1, sum(100 * len(forms) for forms in samples) // wanted))
    whole = [one for one in decision.partitions if one.part == 0]
    assert (whole[0].low, whole[-1].high) == (None, None)
    for before, after in pairwise(whole):
        assert before.high == after.low is not None
        assert before.low is None or before.low < before.high
    assert len(whole) <= 3 * wanted + 2


def test_ranges_are_even_and_a_hot_key_has_its_own() -> None:
    even = range_partitions([index_of([bytes([n]) for n in range(200)], 2000)] * 4, target_bytes=1000)
    assert 7 <= len(even.partitions) <= 9
    assert all(700 <= one.nbytes <= 1300 for one in even.partitions)
    hot = range_partitions([index_of([b"h"] * 80 + [bytes([n]) for n in range(120)], 2000)] * 4, target_bytes=1000)
    alone = [one for one in hot.partitions if one.low == b"h"]
    assert [one.high for one in alone] == [b"h\0"] * len(alone)
    assert len(alone) == 3
    assert all(one.nbytes <= 1500 for one in hot.partitions)


def test_slices_between_are_those_that_may_hold_the_range() -> None:
    slices = tuple(Slice(0, n, n + 1, 1, 1, "", encode_form(bytes([10 * n])), encode_form(bytes([10 * n + 5]))) for n in range(5))
    index = RunIndex(slices=slices, buckets=1)
    assert [one.start for one in slices_between(index, bytes([15]), bytes([30]))] == [1, 2]
    assert [one.start for one in slices_between(index, None, bytes([1]))] == [0]
    assert [one.start for one in slices_between(index, bytes([16]), None)] == [2, 3, 4]
    with pytest.raises(IntegrityError, match="by buckets"):
        slices_between(RunIndex(slices=(Slice(0, 0, 1, 1, 1, ""),), buckets=1), None, None)


def test_two_levels_beyond_the_bound() -> None:
    assert exchange_levels(1000, 1000).levels == 1
    two = exchange_levels(10_000, 10_000)
    assert (two.levels, two.fan_out) == (2, 100)
    assert two.reads < 10_000 * 10_000 / 20
    assert "two levels" in two.reason


def test_bucket_count() -> None:
    assert bucket_count(0, 1 << 28) == 16
    assert bucket_count(100 << 30, 1 << 28) == 2048
    assert bucket_count(1 << 60, 1 << 28) == 4096
    assert bucket_count(5, 5, explicit=7) == 7
    assert Partition().end == 1
