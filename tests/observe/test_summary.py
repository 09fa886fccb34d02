"""The summary at the end of a run: SQL over the parts that the ledger names, whatever the store and the format."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from cloudshard.errors import RecipeError
from cloudshard.ledger import keys
from cloudshard.ledger.records import encode
from cloudshard.observe import summary
from cloudshard.observe.report import read_report
from cloudshard.plan.values import Plan
from tests.observe.builder import BuiltRun, checksum


def with_format(run: BuiltRun, form: str, bodies: list[bytes], suffix: str) -> BuiltRun:
    """The run, as if it had written ``bodies`` in another format."""
    plan = msgspec.json.decode(bytes(run.run.plan), type=Plan)
    stage = msgspec.structs.replace(plan.stages[0], sink=msgspec.structs.replace(plan.stages[0].sink, format=form))
    raw = msgspec.Raw(msgspec.json.encode(msgspec.structs.replace(plan, stages=(stage,))))
    run.store.put(keys.RUN, encode(msgspec.structs.replace(run.run, plan=raw)))
    for item, body in enumerate(bodies):
        record = run.commit(item)
        name = keys.part_name(item, 0, run.tag, suffix)
        run.output.put(name, body)
        part = msgspec.structs.replace(record.parts[0], key=name, bytes=len(body), checksum=checksum(body))
        run.commits[0, item] = msgspec.structs.replace(record, parts=(part,))
        run.store.put(keys.commit(0, item), encode(run.commits[0, item]))
    return run


@pytest.mark.parametrize("folder", [True, False])
def test_parquet_parts_are_one_table(folder: bool, tmp_path: Path) -> None:
    run = BuiltRun(folder=f"file://{tmp_path}" if folder else None).complete()
    answer = summary.summarise(run.store, run.open_output, "select count(*) as rows, sum(n) as total, min(n) as low from output")
    assert answer is not None
    assert answer.to_pylist() == [{"rows": 32, "total": 4 * 28, "low": 0}]


def test_an_object_that_no_commit_record_names_is_not_in_it() -> None:
    run = BuiltRun().complete()
    run.output.put("part-999999-000-other.parquet", b"rubbish")
    answer = summary.summarise(run.store, run.open_output, "select count(*) as rows from output")
    assert answer is not None
    assert answer.to_pylist() == [{"rows": 32}]


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines_parts(folder: bool, suffix: str, tmp_path: Path) -> None:
    bodies = [b'{"n": 1}\n{"n": 2}\n', b'{"n": 3, "late": "x"}\n']
    bodies = [gzip.compress(body) for body in bodies] if suffix.endswith("gz") else bodies
    run = with_format(BuiltRun(items=(2,), folder=f"file://{tmp_path}" if folder else None), "jsonl", bodies, suffix)
    answer = summary.summarise(run.store, run.open_output, "select sum(n)::int as n, max(late) as late from output")
    assert answer is not None
    assert answer.to_pylist() == [{"n": 6, "late": "x"}]


def test_csv_parts(tmp_path: Path) -> None:
    run = with_format(BuiltRun(items=(1,), folder=f"file://{tmp_path}"), "csv", [b"n,t\n1,a\n2,b\n"], ".csv")
    answer = summary.summarise(run.store, run.open_output, "select sum(n)::int as n from output")
    assert answer is not None
    assert answer.to_pylist() == [{"n": 3}]


def test_parts_in_a_bucket_that_would_have_to_be_fetched_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "FETCH_BYTES", 5)
    run = with_format(BuiltRun(items=(1,)), "jsonl", [b'{"n": 1}\n'], ".jsonl")
    with pytest.raises(RecipeError, match="would fetch 9 bytes"):
        summary.summarise(run.store, run.open_output, "select 1 from output")


def test_a_wrong_statement_says_that_the_output_is_complete() -> None:
    run = BuiltRun().complete()
    with pytest.raises(RecipeError, match=r"summary failed.*output itself is complete"):
        summary.summarise(run.store, run.open_output, "select nothing from output")


def test_no_parts_no_summary() -> None:
    assert summary.summarise(BuiltRun().store, BuiltRun().open_output, "select 1") is None


def test_the_report_counts_over_stages() -> None:
    run = BuiltRun(items=(3, 2)).complete()
    run.clock.now += 50
    report = read_report(run.store)
    assert (report.complete, report.items, report.committed, report.parts, report.workers) == (True, 5, 5, 2, 1)
    assert (report.rows_in, report.rows_out, report.filtered) == (30, 20, 10)
    assert (report.seconds, report.requests) == (0.0, {"create": 8, "list": 2})


def test_the_report_of_a_run_under_way_counts_what_is_committed() -> None:
    run = BuiltRun()
    run.commit(0)
    run.commit(2)
    run.clock.now += 50
    report = read_report(run.store)
    assert (report.complete, report.items, report.committed, report.rows_out, report.seconds) == (False, 4, 2, 16, 50.0)
