"""Every operator, over every key type and several numbers of partitions, gives what one DuckDB query over the whole input gives."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudshard.reduce.aggregate import aggregate, plan_aggregates
from cloudshard.reduce.dedup import Keep, dedup, with_place
from cloudshard.reduce.groups import map_groups, reduce_sql
from cloudshard.reduce.join import DIVISIBLE, How, join, plan_join
from cloudshard.reduce.ordering import SortKey
from cloudshard.reduce.partition import HashPartitioner, RoundRobinPartitioner
from cloudshard.reduce.plan import hash_partitions
from tests.reduce.harness import Exchange, each_bucket, multiset, ranges, rows_of, sql
from tests.reduce.tables import KEYS, SCALARS, shards

PARTITIONS = st.sampled_from([1, 2, 7, 64])
#: The fast layer draws the key's type; the slow one goes through all.
ofkind = pytest.mark.parametrize("kind", ["any", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KEYS)])
ofscalar = pytest.mark.parametrize("kind", ["any", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SCALARS)])


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


AGGREGATES = {
    "n": "count(*)",
    "nx": "count(x)",
    "s": "sum(x)",
    "lo": "min(f)",
    "hi": "max(x) + 1",
    "m": "avg(x)",
    "pos": "sum(x) FILTER (WHERE x > 0)",
    "share": "sum(x) / count(*)",
}


@ofkind
@examples(16)
@given(data=st.data())
def test_group_by(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards(kind, two_keys=True))
    whole = pa.concat_tables(given_shards)
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")))
    buckets = data.draw(PARTITIONS)
    plan = plan_aggregates(["k", "k2"], AGGREGATES, whole.schema)
    assert plan.partial is not None, plan.whole_because
    partials = [pa.concat_tables(aggregate(plan.partial, [shard], shard.schema, exchange.budget)) for shard in given_shards]
    runs = exchange.map(partials, lambda item: HashPartitioner(("k", "k2"), buckets))
    schema = partials[0].schema
    results = []
    for partition in each_bucket(runs):
        merged = exchange.rows(runs, partition)
        if data.draw(st.booleans()):
            merged = list(aggregate(plan.merge, merged, schema, exchange.budget))
            assert merged[0].schema.equals(schema)
        results += list(aggregate(plan.final, merged, schema, exchange.budget))
    columns = ", ".join(f"{text} AS {name}" for name, text in AGGREGATES.items())
    assert multiset(rows_of(results)) == multiset(sql(f"SELECT k, k2, {columns} FROM t GROUP BY k, k2", t=whole))
    if results:
        assert results[0].schema.equals(next(aggregate(plan.full, [whole], whole.schema, exchange.budget)).schema)


@examples(15)
@given(data=st.data())
def test_group_by_of_what_cannot_be_halved(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards("string"))
    whole = pa.concat_tables(given_shards)
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")))
    buckets = data.draw(PARTITIONS)
    plan = plan_aggregates(["k"], {"d": "count(DISTINCT x)", "md": "median(x)", "n": "count(*)"}, whole.schema)
    assert plan.partial is None
    runs = exchange.map(given_shards, lambda item: HashPartitioner(("k",), buckets))
    results = []
    for partition in each_bucket(runs):
        results += list(aggregate(plan.full, exchange.rows(runs, partition), whole.schema, exchange.budget))
    assert multiset(rows_of(results)) == multiset(sql("SELECT k, count(DISTINCT x), median(x), count(*) FROM t GROUP BY k", t=whole))


KEEPS = {
    "first": "row ASC",
    "last": "row DESC",
    "any": "row ASC",
    "min:f": "f ASC NULLS LAST, row ASC",
    "max:f": "f DESC NULLS LAST, row ASC",
}


@ofkind
@examples(16)
@given(data=st.data())
def test_dedup(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards(kind))
    whole = pa.concat_tables(given_shards)
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")), memory_bytes=data.draw(st.sampled_from([64 << 20, 1 << 10])))
    buckets = data.draw(PARTITIONS)
    keep = data.draw(st.sampled_from(list(KEEPS)))
    placed = [with_place(shard, item, range(shard.num_rows)) for item, shard in enumerate(given_shards)]
    if data.draw(st.booleans()):  # mappers that dedup what they have
        placed = [pa.concat_tables(dedup([one], one.schema, ["k"], Keep.of(keep), exchange.budget, places=True)) for one in placed]
    runs = exchange.map(placed, lambda item: HashPartitioner(("k",), buckets))
    results = []
    for partition in each_bucket(runs):
        results += list(dedup(exchange.rows(runs, partition), placed[0].schema, ["k"], Keep.of(keep), exchange.budget))
    wanted = sql(f"SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY {KEEPS[keep]}) = 1", t=whole)
    assert multiset(rows_of(results)) == multiset(wanted)


HOWS = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])


@ofkind
@examples(16)
@given(data=st.data())
def test_join(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    kind = data.draw(st.sampled_from(list(KEYS))) if kind == "any" else kind
    left_shards, right_shards = data.draw(shards(kind, most=15)), data.draw(shards(kind, most=15))
    left, right = pa.concat_tables(left_shards), pa.concat_tables(right_shards).rename_columns(["k", "x", "g", "row"])
    right_shards = [shard.rename_columns(right.schema.names) for shard in right_shards]
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")))
    buckets = data.draw(PARTITIONS)
    how: How = data.draw(HOWS)
    plan = plan_join(left.schema, right.schema, ["k"], how=how)
    one = exchange.map(left_shards, lambda item: HashPartitioner(plan.left_keys, buckets, spread_nulls=True), "l")
    two = exchange.map(right_shards, lambda item: HashPartitioner(plan.right_keys, buckets, spread_nulls=True), "r")
    sides = [[sum(column) for column in zip(*(run.index.bucket_bytes() for run in runs), strict=True)] for runs in (one, two)]
    target = max(1, sum(map(sum, sides)) // data.draw(st.integers(1, 12)))
    decision = hash_partitions(sides, target_bytes=target, operation=f"join:{how}", runs=(len(one), len(two)))
    results = []
    for partition in decision.partitions:
        a, b = exchange.rows(one, partition, 0), exchange.rows(two, partition, 1)
        results += list(join(plan, a, left.schema, b, right.schema, exchange.budget))
    key = "coalesce(l.k, r.k)" if how in ("right", "full") else "l.k"
    extra = "" if how in ("semi", "anti") else ", r.x, r.g, r.row"
    wanted = sql(f"SELECT {key}, l.x, l.f, l.row{extra} FROM l {how.upper()} JOIN r ON l.k = r.k", l=left, r=right)
    assert multiset(rows_of(results)) == multiset(wanted)
    assert all(table.schema.names == list(plan.columns) for table in results)


@ofscalar
@examples(40)
@given(data=st.data())
def test_sort(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards(kind, two_keys=True, among=SCALARS))
    whole = pa.concat_tables(given_shards)
    exchange = Exchange(
        str(tmp_path_factory.mktemp("scratch")),
        memory_bytes=data.draw(st.sampled_from([64 << 20, 2 << 10])),
        writer_bytes=data.draw(st.sampled_from([1 << 20, 2 << 10])),
    )
    columns = data.draw(st.sampled_from([("k",), ("k", "k2"), ("k2", "k"), ("x", "k")]))
    keys = [SortKey(name, data.draw(st.booleans()), data.draw(st.sampled_from(["first", "last"]))) for name in columns]
    runs = exchange.map_sorted(given_shards, keys)
    decision = ranges(runs, data.draw(PARTITIONS))
    order = ", ".join(f"{key.column} {'DESC' if key.descending else 'ASC'} NULLS {key.nulls}" for key in keys)
    wanted = sql(f"SELECT * FROM t ORDER BY {order}, row", t=whole)
    assert rows_of(exchange.sort(runs, whole.schema, keys, decision)) == wanted


@examples(20)
@given(data=st.data())
def test_map_groups(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards(data.draw(st.sampled_from(list(KEYS)))))
    whole = pa.concat_tables(given_shards)
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")))
    buckets = data.draw(PARTITIONS)
    runs = exchange.map(given_shards, lambda item: HashPartitioner(("k",), buckets))
    results = []
    for partition in each_bucket(runs):
        results += list(
            map_groups(
                exchange.rows(runs, partition),
                ["k"],
                lambda group: pa.table({"n": [group.num_rows], "rows": [group.column("row").to_pylist()]}),
                exchange.budget,
            )
        )
    assert multiset(rows_of(results)) == multiset(sql("SELECT count(*), list(row ORDER BY row) FROM t GROUP BY k", t=whole))


@examples(10)
@given(data=st.data())
def test_reduce_sql(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards("int64"))
    whole = pa.concat_tables(given_shards)
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")), memory_bytes=data.draw(st.sampled_from([64 << 20, 1 << 10])))
    buckets = data.draw(PARTITIONS)
    runs = exchange.map(given_shards, lambda item: HashPartitioner(("k",), buckets))
    query = (
        "SELECT k, row, sum(x) OVER (PARTITION BY k ORDER BY row) AS running, (SELECT count(*) FROM {0} u WHERE u.k = t.k) AS n FROM {0} t"
    )
    results = []
    for partition in each_bucket(runs):
        results += list(reduce_sql(query.format("partition"), exchange.rows(runs, partition), whole.schema, exchange.budget))
    assert multiset(rows_of(results)) == multiset(sql(query.format("w"), w=whole))


@examples(10)
@given(data=st.data())
def test_repartition_keeps_all_rows_and_fills_evenly(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    given_shards = data.draw(shards("string"))
    exchange = Exchange(str(tmp_path_factory.mktemp("scratch")))
    buckets = data.draw(PARTITIONS)
    runs = exchange.map(given_shards, lambda item: RoundRobinPartitioner(buckets, start=item))
    results = [list(exchange.rows(runs, partition)) for partition in each_bucket(runs)]
    assert multiset(rows_of([table for one in results for table in one])) == multiset(rows_of(given_shards))
    for run in runs:
        counts = [one.rows for one in run.index.slices] + [0] * (buckets - len(run.index.slices))
        assert max(counts) - min(counts) <= 1


def test_a_run_costs_one_object_and_each_reducer_one_read_of_it(tmp_path: Path) -> None:
    exchange = Exchange(str(tmp_path), writer_bytes=4 << 10)
    shard = pa.table({"k": list(range(5000)), "row": list(range(5000))})
    runs = exchange.map([shard.slice(begin, 1000) for begin in range(0, 5000, 1000)], lambda item: HashPartitioner(("k",), 64))
    sides = [[sum(column) for column in zip(*(run.index.bucket_bytes() for run in runs), strict=True)]]
    decision = hash_partitions(sides, target_bytes=sum(sides[0]) // 8, operation="dedup", runs=(5,))
    seen = [table for partition in decision.partitions for table in exchange.rows(runs, partition)]
    assert sum(table.num_rows for table in seen) == 5000
    assert sum(len(page.objects) for page in exchange.store.list()) == 5
    assert exchange.store.gets <= 5 * len(decision.partitions)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("hot_side", [0, 1])
def test_a_hot_key_of_a_join_is_divided_where_that_is_right(how: How, hot_side: int, tmp_path: Path) -> None:
    hot = pa.table({"k": [7] * 300 + list(range(100)), "v": list(range(400))})
    cold = pa.table({"k": list(range(5, 60)), "w": list(range(55))})
    tables = [hot, cold] if hot_side == 0 else [cold, hot]
    exchange = Exchange(str(tmp_path))
    plan = plan_join(tables[0].schema, tables[1].schema, ["k"], how=how)
    runs = [
        exchange.map([table.slice(begin, 50) for begin in range(0, table.num_rows, 50)], lambda item: HashPartitioner(("k",), 16), name)
        for name, table in zip("lr", tables, strict=True)
    ]
    sides = [[sum(column) for column in zip(*(run.index.bucket_bytes() for run in one), strict=True)] for one in runs]
    decision = hash_partitions(sides, target_bytes=1000, operation=f"join:{how}", runs=tuple(map(len, runs)))
    assert any(one.parts > 1 for one in decision.partitions) == (hot_side in DIVISIBLE[how])
    results = []
    for partition in decision.partitions:
        a, b = (list(exchange.rows(one, partition, side)) for side, one in enumerate(runs))
        results += list(join(plan, a, tables[0].schema, b, tables[1].schema, exchange.budget))
    names = [name if name != "k" else ("coalesce(l.k, r.k)" if how in ("right", "full") else "l.k") for name in plan.columns]
    wanted = sql(f"SELECT {', '.join(names)} FROM l {how.upper()} JOIN r ON l.k = r.k", l=tables[0], r=tables[1])
    assert multiset(rows_of(results)) == multiset(wanted)


def test_a_hot_key_of_a_sort_is_a_range_of_its_own_and_stays_in_input_order(tmp_path: Path) -> None:
    table = pa.table({"k": [n % 50 if n % 2 else 7 for n in range(2000)], "row": list(range(2000))})
    exchange = Exchange(str(tmp_path), writer_bytes=8 << 10)
    keys = [SortKey("k", descending=True)]
    runs = exchange.map_sorted([table.slice(begin, 500) for begin in range(0, 2000, 500)], keys)
    decision = ranges(runs, 8)
    assert any(one.parts > 1 for one in decision.partitions)
    assert rows_of(exchange.sort(runs, table.schema, keys, decision)) == sql("SELECT * FROM t ORDER BY k DESC, row", t=table)
