"""Progress: lines now and then when stderr is no terminal, an ETA by bytes that knows of other workers."""

from __future__ import annotations

import dataclasses
import io
import threading

import pytest
from rich.console import Console

from cloudshard.cli.progress import Estimate, _Lines, display, told
from cloudshard.worker.events import ChildOutput, Note, Progress, StageSealed, StageStarted

STARTED = StageStarted(stage=0, stages=2, steps=("00-map", "01-filter"), items=10, bytes_total=1000)
PROGRESS = Progress(
    stage=0, items=10, committed=0, dead=0, running=2, waiting=0, rows=0, bytes=0, committed_here=0, bytes_committed=0, elapsed_seconds=0.0
)
SEALED = StageSealed(stage=0, rows_in=100, rows_out=90, filtered=10, dropped=0, quarantined=0, parts=10, bytes=2048, final=True)


def at(**changes: object) -> Progress:
    return dataclasses.replace(PROGRESS, **changes)  # type: ignore[arg-type]


def test_nothing_can_be_told_at_the_beginning() -> None:
    assert Estimate(STARTED).update(PROGRESS) == (None, None)


def test_alone_it_goes_by_this_workers_bytes() -> None:
    estimate = Estimate(STARTED)
    assert estimate.update(at(bytes=100, elapsed_seconds=10)) == (10.0, 90.0)
    assert estimate.update(at(bytes=250, bytes_committed=200, committed=2, committed_here=2, elapsed_seconds=10)) == (25.0, 30.0)


def test_items_of_others_count_with_the_mean_size_of_ones_own() -> None:
    estimate = Estimate(STARTED)
    estimate.update(PROGRESS)
    rate, eta = estimate.update(at(committed=4, committed_here=2, bytes=200, bytes_committed=200, elapsed_seconds=10))
    assert (rate, eta) == (40.0, 15.0)


def test_what_was_committed_before_this_worker_came_is_done_and_tells_nothing_about_speed() -> None:
    estimate = Estimate(STARTED)
    estimate.update(at(committed=5))
    assert estimate.update(at(committed=6, committed_here=1, bytes=100, bytes_committed=100, elapsed_seconds=10)) == (10.0, 40.0)


def test_an_unknown_total_has_no_eta() -> None:
    estimate = Estimate(dataclasses.replace(STARTED, bytes_total=None))
    assert estimate.update(at(bytes=100, elapsed_seconds=10)) == (None, None)


def test_lines_come_now_and_then_and_notes_at_once() -> None:
    clock = [0.0]
    said: list[str] = []
    lines = _Lines(lambda: clock[0], said.append)
    lines(STARTED)
    for second in range(25):
        clock[0] = float(second)
        lines(at(bytes=second * 10, elapsed_seconds=second))
    lines(Note("warning", "a child died"))
    lines(ChildOutput("child-1", "hello"))
    lines(SEALED)
    assert said[0] == "stage 0 of 2: 10 items, 1000 B: 00-map → 01-filter"
    assert [line for line in said if line.startswith("stage 0: 0 of 10 items")] == said[1:3]
    assert said[3:] == ["warning: a child died", "[child-1] hello", "stage 0 complete: 100 rows in, 90 out, 10 parts, 2.0 KiB"]


def test_what_is_told_names_failures_and_stopping() -> None:
    words = told(at(dead=1, committed=3, rows=5, draining=True), 10.0, 5.0)
    assert words == "2 running · 4 to do · 1 FAILED · 5 rows · 0 B · 10 B/s · stopping"


def test_quiet_keeps_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    with display(quiet=True) as observer:
        for event in (STARTED, PROGRESS, SEALED, Note("info", "x"), ChildOutput("c", "y"), Note("error", "broken")):
            observer(event)
    assert capfd.readouterr() == ("", "error: broken\n")


def test_bars_are_drawn_on_a_terminal_and_no_thread_starts_before_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    threads = threading.active_count()
    with display(quiet=False) as observer:
        assert threading.active_count() == threads
        moving = at(committed=3, rows=7, elapsed_seconds=1)
        for event in (STARTED, moving, Note("warning", "[bold]not markup"), ChildOutput("c", "hi"), SEALED):
            observer(event)
    drawn = screen.getvalue()
    assert "[bold]not markup" in drawn
    assert "[c] hi" in drawn
    assert "stage 0 complete: 100 rows in" in drawn
