"""What a worker tells whoever watches it: small frozen values, at most about four :class:`Progress` a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class StageStarted:
    """This worker begins with a stage. ``stages``: how many the run has; ``bytes_total``: estimated input (None: too many to add up)."""

    stage: int
    stages: int
    steps: tuple[str, ...]
    items: int
    bytes_total: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of the current stage as this worker knows them.

    ``committed``, ``dead``: of all workers; ``running``, ``waiting``: items that this worker holds; ``rows``, ``bytes``: read by this
    worker in this stage so far; ``committed_here``, ``bytes_committed``: items that it has committed and their estimated input;
    ``elapsed_seconds``: since it began with the stage.
    """

    stage: int
    items: int
    committed: int
    dead: int
    running: int
    waiting: int
    rows: int
    bytes: int
    committed_here: int
    bytes_committed: int
    elapsed_seconds: float
    draining: bool = False


@dataclass(frozen=True, slots=True)
class StageSealed:
    """A stage is complete (sealed by whichever worker)."""

    stage: int
    rows_in: int
    rows_out: int
    filtered: int
    dropped: int
    quarantined: int
    parts: int
    bytes: int
    final: bool


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence for a person: something failed, is waited for, or is being stopped."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class ChildOutput:
    """A line that user code has printed in a child."""

    child: str
    text: str


Event: TypeAlias = StageStarted | Progress | StageSealed | Note | ChildOutput
Observer: TypeAlias = Callable[[Event], None]


def tell_stderr(event: Event) -> None:
    """The observer of those who bring none: what user code prints and what a person should know, a line each on stderr."""
    if isinstance(event, ChildOutput):
        sys.stderr.write(f"[{event.child}] {event.text}\n")
    elif isinstance(event, Note):
        sys.stderr.write(f"{event.level}: {event.text}\n" if event.level != "info" else f"{event.text}\n")
