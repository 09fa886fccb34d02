"""Ledger SQL: typed columns always, joins that tell what became of each attempt, only what is asked for is read."""

from __future__ import annotations

import time
from unittest import mock

import pytest

from cloudshard.errors import RecipeError
from cloudshard.ledger import keys
from cloudshard.observe.query import query_ledger, views_named
from cloudshard.observe.tables import COLUMNS, schema
from cloudshard.observe.views import ledger_tables
from cloudshard.store.memory import MemoryStore
from cloudshard.store.prefixed import PrefixedStore
from tests.observe.builder import BuiltRun


def ask(run: BuiltRun, sql: str) -> list[tuple[object, ...]]:
    answer = query_ledger(sql, [run.store.url], open_store=run.open_store)
    return [tuple(row.values()) for row in answer.to_pylist()]


def test_every_view_has_its_columns_and_types_also_when_empty() -> None:
    run = BuiltRun()
    for tables in (ledger_tables([run.store.url], open_store=run.open_store),):
        assert list(tables) == list(COLUMNS)
        for name, table in tables.items():
            assert table.schema == schema(name), name
    full = ledger_tables([run.complete().store.url], open_store=run.open_store)
    for name, table in full.items():
        assert table.schema == schema(name), name


def test_a_complete_run_in_numbers() -> None:
    run = BuiltRun(items=(3, 2)).complete()
    run.summarise(0)
    assert ask(run, "select complete, items, stages, output, parameters from runs") == [(True, 3, 2, run.output.url, '{"lang":"en"}')]
    assert ask(run, "select stage, rows_in, rows_out, parts, sealed from stages order by stage") == [
        (0, 30, 24, 3, True),
        (1, 24, 20, 2, True),
    ]
    assert ask(run, "select count(*), sum(rows_out), sum(cpu_seconds) from commits where stage = 0") == [(3, 24, 4.5)]
    assert ask(run, "select sum(rows) from outputs where final") == [(20,)]
    assert ask(run, "select verb, sum(requests) from requests group by verb order by verb") == [("create", 8), ("list", 2)]
    assert ask(run, "select worker, items_committed from workers") == [("w1", 3)]
    assert ask(run, "select state, count(*) from items group by state") == [("done", 5)]


def test_attempts_tell_what_became_of_them() -> None:
    run = BuiltRun(items=(7,))
    run.claim(0)  # vanished, taken over, committed
    run.claim(3)  # frozen holder that commits after all
    run.claim(5)  # vanished and nobody came
    run.claim(6, state="released")
    run.clock.now += 100
    run.commit(0, epoch=2)
    run.fail(1)
    run.commit(1, epoch=2)
    run.commit(2)
    run.claim(3, epoch=2)
    run.commit(3, epoch=1)
    run.claim(4)
    outcomes = ask(run, "select item, epoch, outcome from attempts order by item, epoch")
    assert outcomes == [
        (0, 1, "vanished"),
        (0, 2, "committed"),
        (1, 1, "failed"),
        (1, 2, "committed"),
        (2, 1, "committed"),
        (3, 1, "committed"),
        (3, 2, "lost"),
        (4, 1, "running"),
        (5, 1, "vanished"),
        (6, 1, "released"),
    ]
    failed = ask(run, "select error_type, message from attempts where outcome = 'failed'")
    assert failed == [("ValueError", "bad value 17")]


def test_failures_say_whether_they_still_count() -> None:
    run = BuiltRun()
    run.die(0)
    run.revive(0, epoch=2)
    run.fail(0, epoch=3)
    found = ask(run, "select epoch, revived, dead, place from failures order by epoch")
    place = "file:///in/0.jsonl, byte 17"
    assert found == [(1, True, False, place), (2, True, True, place), (3, False, False, place)]


def test_many_runs_and_a_folder_of_runs() -> None:
    bucket = MemoryStore("bucket")
    for name in ("a", "b"):
        run = BuiltRun(name=name).complete()
        for page in run.store.list():
            for info in page.objects:
                bucket.put(f"runs/{name}/{info.key}", run.store.get(info.key))
    bucket.put("runs/notes/readme.txt", b"no run")

    def open_store(url: str) -> PrefixedStore:
        return PrefixedStore(bucket, url.removeprefix("memory://bucket/"))

    sql = "select run, sum(rows_out) as rows from commits group by run order by run"
    for urls in (["memory://bucket/runs"], ["memory://bucket/runs/a", "memory://bucket/runs/b"]):
        answer = query_ledger(sql, urls, open_store=open_store).to_pylist()
        assert answer == [{"run": "memory://bucket/runs/a", "rows": 32}, {"run": "memory://bucket/runs/b", "rows": 32}]
    with pytest.raises(RecipeError, match="no run"):
        query_ledger(sql, ["memory://bucket/runs/notes"], open_store=open_store)


@pytest.mark.parametrize(
    "sql",
    [
        "drop table commits",
        "create table x as select 1",
        "copy commits to '/tmp/x.csv'",
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "attach '/tmp/x.db'",
        "install httpfs",
        "select 1; select 2",
        "set enable_external_access = true",
        "select nonsense from commits",
        "selec 1",
        "",
    ],
)
def test_only_one_reading_statement_and_nothing_outside(sql: str) -> None:
    with pytest.raises(RecipeError):
        ask(BuiltRun(), sql)


@pytest.mark.parametrize("sql", ["show tables", "describe commits", "summarize stages", "explain select * from runs", "values (1)"])
def test_looking_around_works(sql: str) -> None:
    assert ask(BuiltRun(), sql)


def test_only_the_views_that_are_named_are_read() -> None:
    run = BuiltRun().complete()
    with mock.patch.object(run.store, "get", wraps=run.store.get) as get:
        ask(run, "select count(*) from workers")
    assert not [call for call in get.call_args_list if "/commits/" in call.args[0] or "/claims/" in call.args[0]]
    assert views_named('select * from "Items" where commits > 1') == {"items", "commits"}


def test_block_summaries_are_preferred() -> None:
    run = BuiltRun(items=(256,)).complete()
    run.summarise(0)
    with mock.patch.object(run.store, "get", wraps=run.store.get) as get:
        assert ask(run, "select count(*) from commits") == [(256,)]
    assert not [call for call in get.call_args_list if "/commits/" in call.args[0]]


def test_a_parquet_list_of_work_items_is_a_view_too() -> None:
    run = BuiltRun(items=(2500,))
    assert run.run.items_key.endswith(".parquet")
    assert ask(run, "select count(*), sum(weight), min(input), max(inputs) from items") == [
        (2500, 100 * 2500 * 2501 // 2, "file:///in/0.jsonl", 1)
    ]


def test_five_thousand_commit_records_take_seconds() -> None:
    run = BuiltRun(items=(5000,))
    body = msgspec_bytes(run)
    for item in range(5000):
        run.store.put(keys.commit(0, item), body.replace(b'"item":0', b'"item":%d' % item))
    start = time.perf_counter()
    assert ask(run, "select count(distinct item), sum(rows_in) from commits") == [(5000, 50000)]
    assert time.perf_counter() - start < 10


def msgspec_bytes(run: BuiltRun) -> bytes:
    run.commit(0)
    return run.store.get(keys.commit(0, 0))
