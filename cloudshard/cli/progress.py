"""Progress on stderr: bars on a terminal, otherwise one plain line now and then.

The pictures are made from the worker's events alone and cost no request. What other workers do is seen in the items that are committed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cloudshard.cli import text
from cloudshard.worker.events import ChildOutput, Event, Note, Observer, Progress, StageSealed, StageStarted

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

#: Seconds between two plain lines: a log of an hour stays readable.
LINE_SECONDS = 10.0


@contextmanager
def display(*, quiet: bool) -> Iterator[Observer]:
    """An observer for the worker; what it draws is gone from the terminal at the end, but for notes and sealed stages."""
    if quiet:
        yield _Quiet()
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        bars = _Bars(_open_bars)
        try:
            yield bars
        finally:
            bars.close()


class Estimate:
    """How fast the stage goes and when it will be done, by bytes of input; None: cannot be told yet.

    This worker knows the bytes of its own items only. Items that others commit count with the mean size of its own.
    """

    def __init__(self, started: StageStarted) -> None:
        self._total = started.bytes_total
        self._items = started.items
        self._committed_before: int | None = None

    def update(self, now: Progress) -> tuple[float | None, float | None]:
        """(bytes per second of all workers, seconds to go)."""
        if self._committed_before is None:
            self._committed_before = now.committed - now.committed_here
        if not self._total or now.elapsed_seconds <= 0:
            return None, None
        others = max(0, now.committed - now.committed_here - self._committed_before)
        here = max(now.bytes_committed, min(now.bytes, self._total))
        mean = now.bytes_committed / now.committed_here if now.committed_here else self._total / max(1, self._items)
        rate = (here + others * mean) / now.elapsed_seconds
        if rate <= 0:
            return None, None
        left = self._total - here - (others + self._committed_before) * mean
        return rate, max(0.0, left / rate)


def told(now: Progress, rate: float | None, eta: float | None) -> str:
    """The figures beside the bar."""
    waiting = max(0, now.items - now.committed - now.dead - now.running)
    words = [f"{text.count(now.running)} running", f"{text.count(waiting)} to do"]
    if now.dead:
        words.append(f"{text.count(now.dead)} FAILED")
    words += [text.plural(now.rows, "row"), text.size(now.bytes)]
    if rate is not None:
        words.append(f"{text.size(rate)}/s")
    if now.draining:
        words.append("stopping")
    elif eta is not None:
        words.append(f"{text.duration(eta)} to go")
    return " · ".join(words)


def sealed_line(event: StageSealed) -> str:
    """What is left on the screen of a stage."""
    rows = f"{text.count(event.rows_in)} rows in, {text.count(event.rows_out)} out"
    return f"stage {event.stage} complete: {rows}, {text.plural(event.parts, 'part')}, {text.size(event.bytes)}"


class _Quiet:
    def __call__(self, event: Event) -> None:
        if isinstance(event, Note) and event.level != "info":
            click.echo(f"{event.level}: {event.text}", err=True)


class _Lines:
    """Plain lines; a Progress at most every LINE_SECONDS."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, say: Callable[[str], None] | None = None) -> None:
        self._monotonic = monotonic
        self._say = say or (lambda line: click.echo(line, err=True))
        self._lock = threading.Lock()
        self._next = 0.0
        self._estimate: Estimate | None = None

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._estimate = Estimate(event)
            self._next = self._monotonic() + LINE_SECONDS
            self._say(started_line(event))
        elif isinstance(event, Progress):
            rate, eta = self._estimate.update(event) if self._estimate else (None, None)
            if self._monotonic() >= self._next:
                self._next = self._monotonic() + LINE_SECONDS
                self._say(
                    f"stage {event.stage}: {text.count(event.committed)} of {text.count(event.items)} items, {told(event, rate, eta)}"
                )
        elif isinstance(event, StageSealed):
            self._say(sealed_line(event))
        elif isinstance(event, Note):
            self._say(event.text if event.level == "info" else f"{event.level}: {event.text}")
        elif isinstance(event, ChildOutput):
            self._say(f"[{event.child}] {event.text}")


def started_line(event: StageStarted) -> str:
    """The first line of a stage."""
    size = "" if event.bytes_total is None else f", {text.size(event.bytes_total)}"
    return f"stage {event.stage} of {event.stages}: {text.plural(event.items, 'item')}{size}: {' → '.join(event.steps) or 'copy'}"


def _open_bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    figures = TextColumn("{task.fields[told]}", markup=False)
    columns = (TextColumn("stage {task.fields[stage]}"), BarColumn(bar_width=24), MofNCompleteColumn(), figures)
    return Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5)


class _Bars:
    """One bar for the current stage; notes and lines of user code scroll above it.

    The drawing thread starts with the first event: the worker forks its children from a process without threads.
    """

    def __init__(self, opened: Callable[[], Bars]) -> None:
        self._opened = opened
        self._started: Bars | None = None
        self._task: TaskID | None = None
        self._estimate: Estimate | None = None
        self._lock = threading.Lock()

    @property
    def _bars(self) -> Bars:
        if self._started is None:
            self._started = self._opened()
            self._started.start()
        return self._started

    def close(self) -> None:
        """Take the bar from the screen."""
        if self._started is not None:
            self._started.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self._estimate = Estimate(event)
            self._end_bar()
            self._task = self._bars.add_task("", total=event.items, stage=f"{event.stage} of {event.stages}", told="starting")
        elif isinstance(event, Progress):
            if self._task is not None and self._estimate is not None:
                self._bars.update(self._task, completed=event.committed, told=told(event, *self._estimate.update(event)))
        elif isinstance(event, StageSealed):
            self._end_bar()
            self._print(sealed_line(event))
        elif isinstance(event, Note):
            style = {"info": "", "warning": "yellow", "error": "bold red"}[event.level]
            self._print(event.text if event.level == "info" else f"{event.level}: {event.text}", style)
        elif isinstance(event, ChildOutput):
            self._print(f"[{event.child}] {event.text}", "dim")

    def _print(self, line: str, style: str = "") -> None:
        from rich.text import Text

        self._bars.console.print(Text(line, style=style))

    def _end_bar(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
