"""Packing: every byte in exactly one work item, order kept, exact counts, balance."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import RecipeError
from cloudshard.ledger.records import InputRange, WorkItem
from cloudshard.plan.split import (
    DEFAULT_TARGET_BYTES,
    MAX_RANGES_PER_ITEM,
    OPEN_COST_BYTES,
    SNAP_FRACTION,
    join_ranges,
    pack,
    range_weights,
)


def ranges_of(sizes: list[tuple[str, int, int]]) -> list[InputRange]:
    """(unit, size, pieces) per object → its ranges, as formats cut them."""
    out = []
    for number, (unit, size, pieces) in enumerate(sizes):
        url = f"memory://in/{number:04d}"
        end = pieces if unit == "row_groups" else size
        if unit == "object" or end == 0:
            out.append(InputRange(url=url, size=size, etag="e", start=0, end=size, unit="object" if unit == "object" else unit))
            continue
        count = max(1, min(pieces, end))
        edges = [end * k // count for k in range(count + 1)]
        out += [InputRange(url=url, size=size, etag="e", start=a, end=b, unit=unit) for a, b in itertools.pairwise(edges)]
    return out


def flat(items: tuple[WorkItem, ...]) -> list[InputRange]:
    return list(join_ranges([piece for item in items for piece in item.inputs]))


objects = st.lists(
    st.tuples(st.sampled_from(["bytes", "object", "row_groups"]), st.integers(0, 5000), st.integers(1, 6)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(objects, st.integers(1, 10_000), st.sampled_from([0, 1, 500]))
def test_target_bytes_keeps_every_byte_once_in_order_and_within_the_target(sizes, target, open_cost):
    pieces = ranges_of(sizes)
    items = pack(pieces, target_bytes=target, open_cost_bytes=open_cost)
    assert flat(items) == list(join_ranges(pieces))
    assert [item.index for item in items] == list(range(len(items)))
    heaviest_piece = max(range_weights(pieces))
    assert all(item.inputs and item.weight <= max(target, heaviest_piece) for item in items)
    assert sum(item.weight for item in items) == sum(range_weights(pieces))
    # greedy: two neighbours that would have fitted together were put together
    weights = {(p.url, p.start): max(w, open_cost) for p, w in zip(pieces, range_weights(pieces), strict=True)}
    for left, right in itertools.pairwise(items):
        inside = [p for p in pieces if any(q.url == p.url and q.start <= p.start and p.end <= q.end for q in left.inputs)]
        first = right.inputs[0]
        assert sum(weights[p.url, p.start] for p in inside) + weights[first.url, first.start] > target


@settings(max_examples=300, deadline=None)
@given(objects, st.data())
def test_num_shards_is_exact_contiguous_non_empty_and_balanced(sizes, data):
    pieces = ranges_of(sizes)
    atoms = join_ranges(pieces)
    possible = sum(1 if a.unit == "object" else max(1, a.end - a.start) for a in atoms)
    count = data.draw(st.integers(1, min(possible, 60)))
    items = pack(pieces, num_shards=count)
    assert len(items) == count
    assert flat(items) == list(atoms)
    assert all(item.inputs for item in items)
    total = sum(range_weights(pieces))
    assert sum(item.weight for item in items) == total
    unit_weight = max(
        w if a.unit == "object" else -(-w // max(1, a.end - a.start)) for a, w in zip(atoms, range_weights(atoms), strict=True)
    )
    mean = total / count
    if count == len(atoms):
        assert max(item.weight for item in items) <= max(2 * mean, mean * (1 + SNAP_FRACTION) + unit_weight) + 1
    else:
        assert max(item.weight for item in items) <= mean * (1 + SNAP_FRACTION) + unit_weight + 1


@given(objects, st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_inv8_the_same_input_gives_the_same_items(sizes, count):
    pieces = ranges_of(sizes)
    try:
        first = pack(pieces, num_shards=count)
    except RecipeError:
        return
    assert first == pack(list(pieces), num_shards=count)


def test_the_largest_possible_count_gives_one_unit_each():
    items = pack(ranges_of([("bytes", 3, 1), ("object", 10, 1), ("row_groups", 100, 2)]), num_shards=6)
    assert [(i.inputs[0].start, i.inputs[0].end, i.inputs[0].unit) for i in items] == [
        (0, 1, "bytes"),
        (1, 2, "bytes"),
        (2, 3, "bytes"),
        (0, 10, "object"),
        (0, 1, "row_groups"),
        (1, 2, "row_groups"),
    ]


def test_one_more_shard_than_possible_is_refused_with_the_number_that_is():
    with pytest.raises(RecipeError, match=r"num_shards=7, but .* at most 6"):
        pack(ranges_of([("bytes", 3, 1), ("object", 10, 1), ("row_groups", 100, 2)]), num_shards=7)


def test_a_thousand_shards_of_a_thousand_files_are_one_file_each():
    pieces = ranges_of([("bytes", 1000 + 37 * (n % 11), 1) for n in range(1000)])
    items = pack(pieces, num_shards=1000)
    assert [item.inputs for item in items] == [(piece,) for piece in pieces]


def test_cuts_move_to_the_edge_of_a_file_that_is_near():
    items = pack(ranges_of([("bytes", 1010, 1), ("bytes", 990, 1), ("bytes", 1000, 1), ("bytes", 1000, 1)]), num_shards=2)
    assert [len(item.inputs) for item in items] == [2, 2]
    assert len(pack(ranges_of([("bytes", 1300, 1), ("bytes", 700, 1)]), num_shards=2)[0].inputs) == 1


def test_empty_files_are_legal_and_in_exactly_one_item():
    items = pack(ranges_of([("bytes", 0, 1), ("bytes", 100, 1), ("bytes", 0, 1)]), num_shards=2)
    assert [len(item.inputs) for item in items] == [2, 2]
    assert len(pack(ranges_of([("bytes", 0, 1)] * 3), num_shards=3)) == 3
    assert len(pack(ranges_of([("bytes", 0, 1)] * 3), target_bytes=1 << 20)) == 1


def test_many_tiny_files_are_packed_but_opening_them_counts():
    items = pack(ranges_of([("bytes", 100, 1)] * 10_000), target_bytes=64 << 20)
    assert len(items) == -(-10_000 // ((64 << 20) // OPEN_COST_BYTES))
    assert (
        max(len(i.inputs) for i in pack(ranges_of([("bytes", 1, 1)] * (MAX_RANGES_PER_ITEM + 1)), open_cost_bytes=0)) == MAX_RANGES_PER_ITEM
    )


def test_both_wishes_are_kept_or_refused():
    pieces = ranges_of([("bytes", 1000, 1)])
    assert len(pack(pieces, num_shards=4, target_bytes=300)) == 4
    with pytest.raises(RecipeError, match=r"2 shards of at most 300 bytes cannot hold 1,000 bytes.*at least 4 shards"):
        pack(pieces, num_shards=2, target_bytes=300)


@pytest.mark.parametrize("wish", [{"num_shards": 0}, {"num_shards": -1}, {"target_bytes": 0}])
def test_silly_wishes_are_refused(wish):
    with pytest.raises(RecipeError, match="must be at least 1"):
        pack(ranges_of([("bytes", 10, 1)]), **wish)


def test_an_empty_input_is_legal():
    assert pack([]) == pack([], num_shards=2) == pack([], target_bytes=5) == ()


def test_the_default_target_is_128_mib():
    assert DEFAULT_TARGET_BYTES == 128 << 20
    assert len(pack(ranges_of([("bytes", 64 << 20, 1)] * 4))) == 2
