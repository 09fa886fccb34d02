"""What is said at the end: numbers for people and machines, and what must not be overlooked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudshard.cli.ending import json_of, remarks, render, tell_end
from cloudshard.observe.report import RunReport
from cloudshard.recipe import Summary
from tests.observe.builder import BuiltRun


def report(**changes: Any) -> RunReport:
    values: dict[str, Any] = {"url": "u", "run_id": "r", "pipeline": "p", "complete": True, "output": "o", "items": 2, "committed": 2}
    return RunReport(**{**values, "rows_in": 10, "rows_out": 5, **changes})


def test_a_run_with_zero_rows_says_so_loudly() -> None:
    assert "NO ROWS: all 10 rows were filtered" in remarks(report(rows_out=0), 0)[0]
    assert "NO ROWS: the input has no rows" in remarks(report(rows_out=0, rows_in=0), 0)[0]
    assert remarks(report(), 0) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "incomplete: 1 work item left"), (2, "cloudshard retry u --all-failed"), (3, "run the same command again")],
)
def test_every_other_ending_says_how_to_go_on(code: int, words: str) -> None:
    assert words in remarks(report(complete=False, committed=1), code)[0]


def test_quarantine_is_pointed_at() -> None:
    assert remarks(report(quarantined=3), 0) == ["3 rows went to quarantine, with the reason: u/quarantine/"]


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


@pytest.fixture
def complete(tmp_path: Path) -> BuiltRun:
    return BuiltRun(folder=f"file://{tmp_path}").complete()


def test_the_summary_is_a_table_on_stdout(complete: BuiltRun, capfd: pytest.CaptureFixture[str]) -> None:
    summary = Summary("select sum(n) as total from output", "Totals")
    code = tell_end(complete.store.url, 0, was_complete=False, as_json=False, quiet=False, summary=summary)
    said = capfd.readouterr()
    assert (code, said.err) == (0, "")
    assert said.out.endswith("\nTotals\ntotal\n  112\n")


def test_a_summary_that_fails_is_a_warning_and_the_run_still_done(complete: BuiltRun, capfd: pytest.CaptureFixture[str]) -> None:
    summary = Summary("select x from output")
    assert tell_end(complete.store.url, 0, was_complete=False, as_json=False, quiet=False, summary=summary) == 0
    assert "warning: " in capfd.readouterr().err


def test_nothing_to_do_is_said_first(complete: BuiltRun, capfd: pytest.CaptureFixture[str]) -> None:
    tell_end(complete.store.url, 0, was_complete=True, as_json=False, quiet=True)
    assert capfd.readouterr() == ("", "nothing to do: the run was complete already\n")
