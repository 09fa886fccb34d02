"""What the worker says about itself: progress a few times a second, and who waits for what when it takes long."""

from __future__ import annotations

from collections.abc import Collection

from cloudshard.ledger.stage import StageLedger
from cloudshard.worker.crew import Crew, Member
from cloudshard.worker.desk import Desk
from cloudshard.worker.events import Note, Observer, Progress, StageStarted
from cloudshard.worker.task import Task

PROGRESS_SECONDS = 0.25
#: A wait of a minute is worth a sentence; the next one comes after twice the time.
FIRST_WAIT_SECONDS = 60.0
MAX_WAIT_SECONDS = 960.0
LONG_RUNNING_SECONDS = 600.0
#: Adding up the weights of more items than this takes longer than a person wants to wait for a progress bar.
_MAX_ITEMS_ADDED = 20_000


class Telling:
    """Collects what the observer is told."""

    def __init__(self, observer: Observer, crew: Crew, stages: int) -> None:
        self._observer = observer
        self._crew = crew
        self._stages = stages
        self._stage: StageLedger | None = None
        self._began = 0.0
        self._rows_before = 0
        self._bytes_before = 0
        self._committed = 0
        self._bytes_committed = 0
        self._next_progress = 0.0
        self._waiting_since: float | None = None
        self._next_wait = FIRST_WAIT_SECONDS
        self._long_told: dict[tuple[int, int], float] = {}

    def started(self, stage: StageLedger, now: float) -> None:
        """A stage begins."""
        self._stage, self._began = stage, now
        self._rows_before, self._bytes_before = self._crew.rows(), self._crew.nbytes()
        self._committed = self._bytes_committed = 0
        items = len(stage.items)
        total = sum(item.weight for item in stage.items) if items <= _MAX_ITEMS_ADDED else None
        steps = tuple(step.name for step in stage.spec.steps)
        self._observer(StageStarted(stage=stage.number, stages=self._stages, steps=steps, items=items, bytes_total=total))

    def committed(self, task: Task) -> None:
        """An item of this worker is committed."""
        self._committed += 1
        self._bytes_committed += task.claim.work.weight

    def progress(self, desk: Desk, waiting: Collection[Task], now: float, *, draining: bool, force: bool = False) -> None:
        """Tell the counts, if the last time is long enough ago."""
        stage = self._stage
        if stage is None or (now < self._next_progress and not force):
            return
        self._next_progress = now + PROGRESS_SECONDS
        known = stage.progress()
        assigned = sum(len(member.tasks) for member in self._crew.members)
        running = sum(bool(member.tasks) for member in self._crew.members)
        self._observer(
            Progress(
                stage=stage.number,
                items=known.total,
                committed=known.committed,
                dead=known.dead,
                running=running,
                waiting=len(waiting) + assigned - running,
                rows=self._crew.rows() - self._rows_before,
                bytes=self._crew.nbytes() - self._bytes_before,
                committed_here=self._committed,
                bytes_committed=self._bytes_committed,
                elapsed_seconds=now - self._began,
                draining=draining,
            )
        )

    def busy(self) -> None:
        """This worker has something to do again."""
        self._waiting_since, self._next_wait = None, FIRST_WAIT_SECONDS

    def waiting(self, stage: StageLedger, now: float) -> None:
        """Nothing is free: after a while, say who waits for what."""
        if self._waiting_since is None:
            self._waiting_since = now
        waited = now - self._waiting_since
        if waited < self._next_wait:
            return
        self._next_wait = waited + min(MAX_WAIT_SECONDS, self._next_wait)
        known = stage.progress()
        free = stage.seconds_until_free()
        when = "no lease of theirs has been seen lately" if free is None else f"the first lease seen ends in {free:.0f} s"
        dead = f", {known.dead} are dead" if known.dead else ""
        held = f"{known.pending} of {known.total} items of stage {stage.number} are held by other workers{dead}"
        self._observer(Note("info", f"waiting for {waited:.0f} s: {held}; {when}. `cloudshard status` shows who holds them"))

    def long_running(self, task: Task, member: Member, now: float) -> None:
        """An attempt that has been running for very long."""
        if task.began_at is None:
            return
        key = (task.stage.number, task.item)
        seconds = now - task.began_at
        if seconds < self._long_told.get(key, LONG_RUNNING_SECONDS):
            return
        self._long_told[key] = seconds * 2
        text = (
            f"item {task.item} has been running in {member.name} for {seconds / 60:.0f} min ({member.memory_bytes >> 20} MiB); it is moving"
        )
        self._observer(Note("info", text))
