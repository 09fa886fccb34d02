"""What is said at the end: numbers for people and machines, and what must not be overlooked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudshard.cli.ending import is_complete, json_of, remarks, render, tell_end
from cloudshard.observe.report import RunReport
from cloudshard.recipe import Summary
from tests.observe.builder import BuiltRun


def report(**changes: Any) -> RunReport:
    values: dict[str, Any] = {"url": "u", "run_id": "r", "pipeline": "p", "complete": True, "output": "o", "items": 2, "committed": 2}
    return RunReport(**{**values, "rows_in": 10, "rows_out": 5, **changes})


def test_a_run_with_zero_rows_says_so_loudly() -> None:
    assert "NO ROWS: all 10 rows were filtered" in remarks(report(rows_out=0), 0, False)[0]
    assert "NO ROWS: the input has no rows" in remarks(report(rows_out=0, rows_in=0), 0, False)[0]
    assert remarks(report(), 0, False) == []


def test_nothing_to_do_is_said() -> None:
    assert remarks(report(), 0, True) == ["nothing to do: the run was complete already"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "incomplete: 1 work item left"), (2, "cloudshard retry u --all-failed"), (3, "run the same command again")],
)
def test_every_other_ending_says_how_to_go_on(code: int, words: str) -> None:
    assert words in remarks(report(complete=False, committed=1), code, False)[0]


def test_quarantine_is_pointed_at() -> None:
    assert remarks(report(quarantined=3), 0, False) == ["3 rows went to quarantine, with the reason: u/quarantine/"]


def test_the_report_in_lines() -> None:
    lines = render(
        report(filtered=4, quarantined=1, added=0, parts=1, bytes=2048, seconds=65, workers=2, requests={"get": 9, "create": 1000})
    )
    assert lines == [
        "run       r (complete)",
        "ledger    u",
        "rows      10 in → 5 out (4 filtered, 1 quarantined)",
        "output    1 part, 2.0 KiB, o",
        "time      65 s, 2 workers",
        "requests  1,000 create, 9 get",
    ]


def test_the_report_in_json() -> None:
    told = json.loads(json_of(report(), 0, True))
    assert (told["rows_out"], told["exit_code"], told["nothing_to_do"]) == (5, 0, True)


def test_the_summary_is_a_table_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    run = BuiltRun().complete()
    # the output's URL is in the plan: it is opened through the registry
    from cloudshard.store.registry import open_store

    for page in run.output.list():
        for info in page.objects:
            open_store(run.output.url).put(info.key, run.output.get(info.key))
    code = tell_end(
        run.store, 0, was_complete=False, as_json=False, quiet=False, summary=Summary("select sum(n) as total from output", "Totals")
    )
    out = capfd.readouterr().out
    assert code == 0
    assert out.endswith("\nTotals\ntotal\n  112\n")


def test_a_summary_that_fails_is_a_warning_and_the_run_still_done(capfd: pytest.CaptureFixture[str]) -> None:
    run = BuiltRun().complete()
    assert tell_end(run.store, 0, was_complete=False, as_json=False, quiet=False, summary=Summary("select x from output")) == 0
    assert "warning: " in capfd.readouterr().err


def test_complete_means_that_the_last_stage_is_sealed() -> None:
    run = BuiltRun(items=(1, 1))
    assert not is_complete(run.store)
    run.commit(0)
    run.seal(0)
    assert not is_complete(run.store)
    run.begin_stage(1)
    run.commit(0, stage=1, rows_in=8)
    run.seal(1)
    assert is_complete(run.store)
    assert not is_complete(run.output)
