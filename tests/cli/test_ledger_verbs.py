"""status, verify, retry, gc and query on a real folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cloudshard.ledger import keys
from tests.cli.calling import Caller, process
from tests.observe.builder import BuiltRun


@pytest.fixture
def complete(tmp_path: Path) -> BuiltRun:
    """A complete run of two stages in a folder."""
    return BuiltRun(items=(3, 2), folder=f"file://{tmp_path}").complete()


@pytest.fixture
def failed(tmp_path: Path) -> BuiltRun:
    """A run with one committed, one dead and two untouched items."""
    run = BuiltRun(folder=f"file://{tmp_path}")
    run.commit(0)
    run.die(1)
    run.worker()
    return run


def test_status_of_a_complete_run(cloudshard: Caller, complete: BuiltRun) -> None:
    said = cloudshard("status", complete.store.url)
    assert said.code == 0
    assert "built  complete" in said.out
    assert said.err == ""


def test_status_takes_a_plain_path(cloudshard: Caller, complete: BuiltRun) -> None:
    assert cloudshard("status", complete.store.url.removeprefix("file://")).code == 0


def test_status_of_a_failed_run_says_what_to_do(cloudshard: Caller, failed: BuiltRun) -> None:
    said = cloudshard("status", failed.store.url)
    assert said.code == 2
    assert "2 attempts of 1 item, 1 dead (0/1): error: ValueError in 00-filter: bad value 17" in said.out
    assert "at file:///in/1.jsonl, byte 17" in said.out
    assert f"cloudshard retry {failed.store.url} --all-failed" in said.out


def test_status_json_has_a_stable_schema(cloudshard: Caller, failed: BuiltRun) -> None:
    status = json.loads(cloudshard("status", failed.store.url, "--json", "--all").out)
    assert set(status) == {
        *("version", "url", "run_id", "pipeline", "state", "server_time", "age_seconds", "took_seconds", "bytes_per_second", "eta_seconds"),
        *("stages", "workers", "claims", "failures", "items"),
    }
    assert status["version"] == 1
    assert status["stages"][0]["items"] == {"pending": 2, "running": 0, "stale": 0, "done": 1, "failed": 1}
    assert [item["state"] for item in status["items"]] == ["done", "failed", "pending", "pending"]


def test_status_all_names_every_item(cloudshard: Caller, failed: BuiltRun) -> None:
    out = cloudshard("status", failed.store.url, "--all").out
    assert all(f"0/{item}" in out for item in range(4))


def test_watch_ends_with_the_run(cloudshard: Caller, complete: BuiltRun) -> None:
    assert cloudshard("status", complete.store.url, "--watch", "--interval", "0.2").code == 0


def test_verify_says_what_it_proved(cloudshard: Caller, complete: BuiltRun) -> None:
    said = cloudshard("verify", complete.store.url)
    assert said.code == 0
    assert "ok: 20 rows in 2 parts" in said.out
    assert json.loads(cloudshard("verify", complete.store.url, "--json", "--fast").out)["ok"] is True


def test_verify_names_the_damaged_object(cloudshard: Caller, complete: BuiltRun) -> None:
    key = complete.commits[1, 0].parts[0].key
    complete.output.put(key, b"x" * complete.commits[1, 0].parts[0].bytes)
    said = cloudshard("verify", complete.store.url)
    assert said.code == 2
    assert f"{complete.output.url}/{key}: its bytes have the checksum" in said.out
    assert "WRONG" in said.out


def test_verify_of_a_run_under_way_exits_1(cloudshard: Caller, failed: BuiltRun) -> None:
    said = cloudshard("verify", failed.store.url)
    assert said.code == 1
    assert "incomplete: 1 of 4 items are committed" in said.out


def test_retry_revives_and_says_what(cloudshard: Caller, failed: BuiltRun) -> None:
    said = cloudshard("retry", failed.store.url, "--all-failed")
    assert said.code == 0
    assert "revived 0/1: 2 failed attempts up to epoch 2 no longer count" in said.out
    assert cloudshard("status", failed.store.url).code == 1
    assert "nothing to retry" in cloudshard("retry", failed.store.url, "--all-failed").out


def test_retry_of_items_and_its_json(cloudshard: Caller, failed: BuiltRun) -> None:
    said = json.loads(cloudshard("retry", failed.store.url, "--item", "0/1", "--item", "0/2", "--json").out)
    assert said["revived"] == [{"stage": 0, "item": 1, "epoch": 2, "failures": 2}]
    assert said["untouched"] == ["0/2"]


@pytest.mark.parametrize("arguments", [[], ["--all-failed", "--item", "0/1"], ["--item", "1"], ["--item", "0/0"], ["--item", "0/9"]])
def test_retry_refuses_what_makes_no_sense(cloudshard: Caller, failed: BuiltRun, arguments: list[str]) -> None:
    said = cloudshard("retry", failed.store.url, *arguments)
    assert said.code == 2
    assert said.err.startswith("error: ")


def test_gc_is_a_dry_run_unless_told(cloudshard: Caller, complete: BuiltRun) -> None:
    said = cloudshard("gc", complete.store.url)
    assert said.code == 0
    assert "spill: 3 objects" in said.out
    assert "nothing was deleted" in said.out
    assert json.loads(cloudshard("gc", complete.store.url, "--json").out)["deleted"] is False
    assert "deleted 3 things" in cloudshard("gc", complete.store.url, "--yes").out
    assert "nothing to delete" in cloudshard("gc", complete.store.url).out
    assert cloudshard("verify", complete.store.url).code == 0


def test_gc_aborts_pending_uploads_of_a_folder(cloudshard: Caller, complete: BuiltRun) -> None:
    upload = complete.output.begin_upload(keys.part_name(0, 0, complete.tag, ".parquet"), part_size=5 << 20)
    complete.output.upload_part(upload, 1, b"lost")
    assert "losing upload: 1 upload" in cloudshard("gc", complete.store.url, "--yes").out
    assert not list(complete.output.list_uploads())


def test_query_prints_a_table_json_csv_and_parquet(cloudshard: Caller, complete: BuiltRun, tmp_path: Path) -> None:
    sql = "select stage, sum(rows_out) as rows_out, any_value(steps) as steps from stages group by stage order by stage"
    run = ("--run", complete.store.url)
    assert cloudshard("query", sql, *run).out.splitlines()[0].split() == ["stage", "rows_out", "steps"]
    lines = [json.loads(line) for line in cloudshard("query", sql, *run, "--json").out.splitlines()]
    assert lines == [{"stage": 0, "rows_out": 24, "steps": ["00-filter"]}, {"stage": 1, "rows_out": 20, "steps": ["01-filter"]}]
    rows = list(csv.reader(io.StringIO(cloudshard("query", sql, *run, "--csv").out)))
    assert rows == [["stage", "rows_out", "steps"], ["0", "24", '["00-filter"]'], ["1", "20", '["01-filter"]']]
    target = tmp_path / "answer.parquet"
    assert cloudshard("query", sql, *run, "--parquet", str(target)).code == 0
    assert pq.read_table(target)["rows_out"].to_pylist() == [24, 20]


def test_query_reads_a_folder_of_runs_and_sql_from_stdin(complete: BuiltRun, tmp_path: Path) -> None:
    said = process("query", "-", "--run", str(tmp_path), "--json", input="select count(*) as runs from runs")
    assert said == (0, '{"runs":1}\n', "")


@pytest.mark.parametrize("sql", ["drop table runs", "select * from nothing", "select * from read_text('/etc/hostname')"])
def test_query_refuses_in_one_sentence(cloudshard: Caller, complete: BuiltRun, sql: str) -> None:
    said = cloudshard("query", sql, "--run", complete.store.url)
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_query_formats_exclude_each_other(cloudshard: Caller, complete: BuiltRun) -> None:
    assert cloudshard("query", "select 1", "--run", complete.store.url, "--json", "--csv").code == 2
