"""Normal forms compare like DuckDB sorts; sorting is stable; ranges are exact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import SchemaError
from cloudshard.reduce.ordering import SortKey, between, decode_form, encode_form, normalised, sort_indices
from cloudshard.reduce.partition import HashPartitioner, RangePartitioner, split
from tests.reduce.harness import sql
from tests.reduce.tables import KEYS, SCALARS

DIRECTIONS = [(down, nulls) for down in (False, True) for nulls in ("first", "last")]


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize(("down", "nulls"), DIRECTIONS)
def test_indices_and_normal_forms_have_the_order_of_duckdb(kind: str, down: bool, nulls: str) -> None:
    data_type, values = KEYS[kind]
    table = pa.table({"k": pa.array([*values, None, *reversed(values), None], data_type), "row": list(range(2 * len(values) + 2))})
    keys = [SortKey("k", down, nulls)]
    wanted = [row for (row,) in sql(f"SELECT row FROM t ORDER BY k {'DESC' if down else 'ASC'} NULLS {nulls}, row", t=table)]
    assert sort_indices(table, keys).tolist() == wanted
    forms = normalised(table, keys, range(table.num_rows))
    assert sorted(range(table.num_rows), key=lambda row: (forms[row], row)) == wanted
    distinct = sql("SELECT count(DISTINCT k) + 1 FROM t", t=table)[0][0]
    assert len(set(forms)) == distinct
    assert all(decode_form(encode_form(form)) == form for form in forms)
    for one in forms:
        assert not any(other != one and other.startswith(one) for other in forms)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=4) | st.none(), st.integers(-3, 3) | st.none()), max_size=30), st.booleans(), st.booleans())
def test_two_keys(rows: list[tuple[bytes | None, int | None]], first_down: bool, second_down: bool) -> None:
    table = pa.table({"a": pa.array([a for a, _ in rows], pa.binary()), "b": pa.array([b for _, b in rows], pa.int8())})
    keys = [SortKey("a", first_down, "first"), SortKey("b", second_down)]
    forms = normalised(table, keys, range(table.num_rows))
    assert sort_indices(table, keys).tolist() == sorted(range(len(rows)), key=lambda row: (forms[row], row))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9) | st.none(), max_size=60), st.lists(st.integers(0, 9), max_size=5), st.booleans())
def test_ranges_hold_the_rows_between_their_bounds(values: list[int | None], cuts: list[int], down: bool) -> None:
    table = pa.table({"k": pa.array(values, pa.int64())})
    keys = (SortKey("k", down),)
    bounds = tuple(sorted(set(normalised(pa.table({"k": pa.array(cuts, pa.int64())}), keys, range(len(cuts))))))
    partitioner = RangePartitioner(keys, bounds)
    assigned = partitioner.assign(table).tolist()
    assert assigned == [partitioner.bucket(form) for form in normalised(table, keys, range(len(values)))]
    ordered = table.take(pa.array(sort_indices(table, keys)))
    edges = [None, *bounds, None]
    pieces = [between(ordered, keys, low, high).num_rows for low, high in pairwise(edges)]
    assert pieces == [assigned.count(bucket) for bucket in range(partitioner.buckets)]


@pytest.mark.parametrize("distinct", [3, 2_000, 1_000_000])
@pytest.mark.parametrize("down", [False, True])
def test_many_rows_with_ties_stay_in_row_order(distinct: int, down: bool) -> None:
    values = np.random.default_rng(distinct).integers(0, distinct, 100_000)
    wanted = np.argsort(-values if down else values, kind="stable")
    assert np.array_equal(sort_indices(pa.table({"k": values}), [SortKey("k", down)]), wanted)


def test_what_has_no_order_is_refused_by_name() -> None:
    table = pa.table({"s": pa.array([[1]], pa.list_(pa.int64()))})
    with pytest.raises(SchemaError, match=r"'s' of type list<.*has no order"):
        sort_indices(table, [SortKey("s")])
    with pytest.raises(SchemaError, match="'z' is not in the table"):
        sort_indices(table, [SortKey("z")])


def test_split_is_stable_and_loses_nothing() -> None:
    table = pa.table({"k": [n % 10 for n in range(1000)], "row": list(range(1000))})
    parts = split(table, HashPartitioner(("k",), 7))
    assert int(parts.counts.sum()) == 1000
    begin = 0
    seen: dict[int, int] = {}
    for bucket, count in enumerate(parts.counts.tolist()):
        some = parts.table.slice(begin, count)
        begin += count
        assert some.column("row").to_pylist() == sorted(some.column("row").to_pylist())
        for key in set(some.column("k").to_pylist()):
            assert seen.setdefault(key, bucket) == bucket


def test_spread_nulls_fill_all_buckets_and_a_salt_splits_one_bucket_again() -> None:
    table = pa.table({"k": pa.array([None] * 64, pa.int64())})
    assert set(split(table, HashPartitioner(("k",), 8, spread_nulls=True)).counts.tolist()) == {8}
    many = pa.table({"k": list(range(4000))})
    mine = many.filter(pa.array(HashPartitioner(("k",), 8).assign(many) == 3))
    again = split(mine, HashPartitioner(("k",), 8, salt=1)).counts
    assert again.min() > mine.num_rows // 16
