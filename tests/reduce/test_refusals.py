"""What cannot be done says so by type: memory, scratch, groups, SQL, keys, names; and errors of the input come through as themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cloudshard.errors import DiskFull, IntegrityError, RecipeError, SchemaError, StepError
from cloudshard.reduce.aggregate import aggregate, plan_aggregates
from cloudshard.reduce.database import Budget, Feed, named, query
from cloudshard.reduce.dedup import Keep, dedup, first_of_each, with_place
from cloudshard.reduce.errors import CannotSpill, GroupTooLarge, OutOfMemory
from cloudshard.reduce.groups import map_groups, reduce_sql
from cloudshard.reduce.join import join, plan_join
from cloudshard.reduce.ordering import SortKey
from cloudshard.reduce.partition import HashPartitioner
from cloudshard.reduce.sorting import Placed, sort_pieces

ROWS = pa.table({"k": [1, 1, 2], "x": [1.0, 2.0, 3.0]})


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget(memory_bytes=64 << 20, temp_directory=str(tmp_path / "scratch"))


def test_a_partition_that_does_not_fit_is_out_of_memory_and_leaves_no_scratch(tmp_path: Path) -> None:
    small = Budget(memory_bytes=1 << 20, temp_directory=str(tmp_path))
    big = pa.table({"s": [f"{n:0100d}" for n in range(400_000)]})
    with pytest.raises(OutOfMemory, match=r"does not fit into .* fewer threads"):
        list(query("SELECT list(s) FROM rows", {"rows": big}, small))
    assert not list(tmp_path.iterdir())


def test_a_sort_larger_than_its_budget_spills_and_is_right(tmp_path: Path) -> None:
    small = Budget(memory_bytes=32 << 20, temp_directory=str(tmp_path))
    rng = np.random.default_rng(0)
    table = pa.table({"k": rng.integers(0, 50_000, 600_000), "s": [f"{n:080d}" for n in range(600_000)]})
    pieces = [Placed(place, table.slice(place * 100_000, 100_000)) for place in (3, 1, 0, 2, 5, 4)]
    sorted_rows = pa.concat_tables(sort_pieces(pieces, table.schema, [SortKey("k")], small))
    assert sorted_rows.equals(table.take(pa.array(np.argsort(table["k"].to_numpy(), kind="stable"))).combine_chunks())


def test_no_scratch_directory_cannot_spill(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotSpill, match="cannot spill"):
        list(query("SELECT 1", {}, Budget(memory_bytes=1 << 26, temp_directory=str(tmp_path / "file" / "x"))))


@pytest.mark.parametrize("text", ["IO Error: No space left on device", "failed: 'max_temp_directory_size' reached"])
def test_a_full_scratch_disk_is_named(text: str, budget: Budget) -> None:
    import duckdb

    found = named(duckdb.IOException(text), budget, where="partition 3")
    assert isinstance(found, DiskFull)
    assert found.where == budget.temp_directory
    assert isinstance(named(duckdb.IOException("cannot write"), budget, where=""), CannotSpill)
    assert isinstance(named(MemoryError(), budget, where=""), OutOfMemory)


def test_errors_of_the_input_come_through(budget: Budget) -> None:
    def damaged() -> Iterator[pa.Table]:
        yield ROWS
        raise IntegrityError("a slice is damaged", where="object 7")

    plan = plan_aggregates(["k"], {"n": "count(*)"}, ROWS.schema)
    both = plan_join(ROWS.schema, ROWS.schema, ["k"])
    for attempt in (
        lambda: aggregate(plan.full, damaged(), ROWS.schema, budget),
        lambda: reduce_sql("FROM partition", damaged(), ROWS.schema, Budget(memory_bytes=8, temp_directory=budget.temp_directory)),
        lambda: join(both, damaged(), ROWS.schema, [ROWS], ROWS.schema, budget),
        lambda: join(both, [ROWS], ROWS.schema, damaged(), ROWS.schema, budget),
        lambda: sort_pieces((Placed(0, t) for t in damaged()), ROWS.schema, [SortKey("k")], budget),
    ):
        with pytest.raises(IntegrityError, match="a slice is damaged"):
            list(attempt())


def test_sql_sees_nothing_but_its_tables(budget: Budget, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for sql in (f"SELECT * FROM '{tmp_path}/secret.csv'", "SELECT * FROM ROWS_OF_PYTHON", "SELECT nope FROM partition"):
        with pytest.raises(StepError):
            list(reduce_sql(sql, [ROWS], ROWS.schema, budget))
    for sql in ("SET threads = 4", "SELECT 1; SELECT 2", f"COPY partition TO '{tmp_path}/out.csv'", "DROP TABLE partition"):
        with pytest.raises(StepError, match="not one SELECT statement"):
            list(reduce_sql(sql, [ROWS], ROWS.schema, budget))


def test_groups(budget: Budget, tmp_path: Path) -> None:
    tiny = Budget(memory_bytes=ROWS.nbytes, temp_directory=str(tmp_path))
    with pytest.raises(GroupTooLarge, match=r"group \{'k': 1\} with 2 rows"):
        list(map_groups([ROWS], ["k"], lambda group: group, tiny))
    with pytest.raises(GroupTooLarge, match=r"group \{'k': 1\}"):
        list(map_groups([ROWS.slice(0, 2)] * 40, ["k"], lambda group: group, tiny))
    spread = pa.table({"k": list(range(40)), "x": [1.0] * 40})
    with pytest.raises(OutOfMemory, match="the groups of the partition need more") as found:
        list(map_groups([spread] * 10, ["k"], lambda group: group, tiny))
    assert not isinstance(found.value, GroupTooLarge)
    with pytest.raises(StepError, match=r"ZeroDivisionError"):
        list(map_groups([ROWS], ["k"], lambda group: 1 / 0, budget))
    with pytest.raises(StepError, match="returned int"):
        list(map_groups([ROWS], ["k"], lambda group: 1, budget))


@pytest.mark.parametrize("text", ["sum(", "x", "sum(nope)", "1 FROM t", "sum(x), 2", "x -- ", "sum(x); drop table rows"])
def test_aggregates_that_are_none(text: str) -> None:
    with pytest.raises(RecipeError):
        plan_aggregates(["k"], {"n": text}, ROWS.schema)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("median(x)", "median cannot be combined"),
        ("count(DISTINCT x)", "distinct"),
        ("list(x ORDER BY x)", "in an order"),
        ("max(x, 2)", "cannot be combined"),
        ("sum(x) / (SELECT 2)", "subquery"),
    ],
)
def test_why_a_group_by_moves_rows(text: str, why: str) -> None:
    plan = plan_aggregates(["k"], {"n": "count(*)", "m": text}, ROWS.schema)
    assert plan.partial is None
    assert why in plan.whole_because
    assert plan.whole_because.startswith("m: ")


def test_group_by_refusals(budget: Budget) -> None:
    with pytest.raises(SchemaError, match="'z' is not in the rows"):
        plan_aggregates(["z"], {}, ROWS.schema)
    with pytest.raises(RecipeError, match="at least one key"):
        plan_aggregates([], {"n": "count(*)"}, ROWS.schema)
    with pytest.raises(RecipeError, match="has the name of a key"):
        plan_aggregates(["k"], {"k": "count(*)"}, ROWS.schema)
    large = pa.table({"k": [1, 1], "x": [2**62, 2**62]})
    plan = plan_aggregates(["k"], {"s": "sum(x)"}, large.schema)
    assert plan_aggregates(["k"], {}, ROWS.schema).partial is not None
    with pytest.raises(StepError, match="out of range"):
        list(aggregate(plan.full, [large], large.schema, budget))


def test_join_refusals() -> None:
    left = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    with pytest.raises(SchemaError, match=r"'k' \(int64\) and 'k' \(string\) have types that are never equal"):
        plan_join(left, pa.schema([("k", pa.string())]), ["k"])
    with pytest.raises(SchemaError, match="'j' is not in the right side"):
        plan_join(left, left, [("k", "j")])
    with pytest.raises(RecipeError, match="at least one key"):
        plan_join(left, left, [])
    with pytest.raises(RecipeError, match="unknown"):
        plan_join(left, left, ["k"], how="outer")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="two columns 'x_right'"):
        plan_join(left.append(pa.field("x_right", pa.int64())), left, ["k"])
    assert plan_join(left, left, ["k"], suffix="_b").columns == ("k", "x", "x_b")
    assert plan_join(left, left.append(pa.field("j", pa.int8())), [("k", "j")]).columns == ("k", "x", "k_right", "x_right")


def test_equal_values_of_different_widths_join_across_runs(budget: Budget) -> None:
    left = pa.table({"k": pa.array([1, 200, None], pa.uint8()), "s": pa.array(["a", "b", "c"], pa.large_string())})
    right = pa.table({"k": pa.array([200, 1], pa.int64()), "s": pa.array(["b", "a"]).dictionary_encode()})
    plan = plan_join(left.schema, right.schema, ["k", "s"])
    found = pa.concat_tables(join(plan, [left], left.schema, [right], right.schema, budget))
    assert sorted(found.column("k").to_pylist()) == [1, 200]
    a, b = (HashPartitioner(plan.left_keys, 1 << 20).assign(table).tolist() for table in (left, right))
    assert (a[0], a[1]) == (b[1], b[0])


def test_keep() -> None:
    for text in ("newest", "min", "min:", "first:x", ""):
        with pytest.raises(RecipeError, match="unknown"):
            Keep.of(text)
    assert Keep.of("any") == Keep.of("first")
    placed = with_place(ROWS, 0, [0, 1, 2])
    with pytest.raises(SchemaError, match="may not have the name"):
        with_place(placed, 0, [0, 1, 2])
    with pytest.raises(SchemaError, match="'z' is not in the rows"):
        next(dedup([placed], placed.schema, ["k"], Keep.of("min:z"), Budget(memory_bytes=1, temp_directory="x")))


def test_dedup_by_hash_alone_keeps_the_first_of_each() -> None:
    rng = np.random.default_rng(0)
    one = rng.integers(0, 50, 1000).astype(np.uint64)
    two = rng.integers(0, 3, 1000).astype(np.uint64)
    seen: set[object] = set()
    wanted = [row for row, value in enumerate(one.tolist()) if not (value in seen or seen.add(value))]
    assert first_of_each([one]).tolist() == wanted
    pairs: set[object] = set()
    wanted = [row for row, pair in enumerate(zip(one.tolist(), two.tolist(), strict=True)) if not (pair in pairs or pairs.add(pair))]
    assert first_of_each([one, two]).tolist() == wanted
    assert first_of_each([np.empty(0, np.uint64)]).tolist() == []


def test_a_feed_ends_with_its_own_error() -> None:
    feed = Feed(ROWS.schema, iter([ROWS]))
    assert feed.reader().read_all().num_rows == 3
    assert feed.error is None
