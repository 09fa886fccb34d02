"""After the end of a child: why it ended, and what becomes of each task that it had.

Tasks that it had not begun go to others without a word. Of those that it had begun (several, when batches span items) every one is
suspect and takes the ladder of :mod:`cloudshard.worker.task`; the innocent ones pass their careful run and are committed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Protocol

from cloudshard.errors import ChildCrashed, CloudshardError
from cloudshard.worker import resources
from cloudshard.worker.crew import Ended, Member
from cloudshard.worker.desk import Desk
from cloudshard.worker.events import Level
from cloudshard.worker.task import DeathKind, Task, after_death
from cloudshard.worker.watch import Watch

_MAX_SETUP_CRASHES = 3


class Surroundings(Protocol):
    """What the supervisor offers."""

    @property
    def draining(self) -> bool:
        """Whether the worker is being stopped."""
        ...

    def requeue(self, tasks: Iterable[Task]) -> None:
        """Run these again; while stopping: give them back."""

    def fatal(self, error: CloudshardError) -> None:
        """The worker cannot go on."""

    def note(self, level: Level, text: str) -> None:
        """Tell a person."""


class Aftermath:
    """Keeps count of what has died here. ``oom_kills``: reads the container's counter of kills for lack of memory."""

    def __init__(
        self,
        desk: Desk,
        watch: Watch,
        shares: resources.Shares,
        around: Surroundings,
        max_poison_rows: int,
        oom_kills: Callable[[], int | None] = resources.oom_kills,
    ) -> None:
        self._desk = desk
        self._watch = watch
        self._shares = shares
        self._around = around
        self._max_poison_rows = max_poison_rows
        self._read_oom_kills = oom_kills
        self._oom_kills = oom_kills()
        self._setup_crashes = 0

    def set_up(self) -> None:
        """A child has set a stage up."""
        self._setup_crashes = 0

    def ended(self, event: Ended) -> None:
        """Deal with the end of a child."""
        member = event.member
        finding = self._watch.forget(member)
        begun, waiting = member.begun(), member.waiting()
        member.tasks = {}
        if member.killed == "lease":
            over = [task for task in begun if self._desk.expired(task)]
            for task in over:
                self._desk.forget(task)
            begun = [task for task in begun if task not in over]
        if self._around.draining or member.killed in ("lease", "zygote", "drain"):
            self._around.requeue([*begun, *waiting])
            return
        self._around.requeue(waiting)
        if member.stopping and not begun:
            return
        kind, detail = (finding.kind, finding.detail) if finding is not None else self._cause(event)
        if not begun:
            self._unprovoked(member, kind, detail)
        for task in begun:
            self._triage(member, task, kind, detail)

    def _cause(self, event: Ended) -> tuple[DeathKind, str]:
        before, self._oom_kills = self._oom_kills, self._read_oom_kills()
        if not os.WIFSIGNALED(event.status):
            return "crash", f"it ended with exit status {os.waitstatus_to_exitcode(event.status)}"
        number = os.WTERMSIG(event.status)
        if number == signal.SIGKILL and before is not None and self._oom_kills is not None and self._oom_kills > before:
            return "oom", f"the kernel killed it when it had held {event.peak_memory_bytes >> 20} MiB"
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        return "crash", f"it was killed by signal {number} ({name})"

    def _unprovoked(self, member: Member, kind: DeathKind, detail: str) -> None:
        """No attempt had begun: the child was idle, or setting a stage up."""
        if member.ready:
            self._around.note("warning", f"{member.name} ended while it was idle: {detail}")
            return
        self._setup_crashes += 1
        self._around.note("warning", f"{member.name} died while it set its steps up: {detail}")
        if self._setup_crashes >= _MAX_SETUP_CRASHES:
            last = " | ".join(list(member.tail)[-3:])
            mend = f"It said: {last}" if last else "Does a step's setup crash, or take more memory than a child has?"
            self._around.fatal(ChildCrashed(f"children die again and again while they set their steps up: {detail}", kind=kind, mend=mend))

    def _triage(self, member: Member, task: Task, kind: DeathKind, detail: str) -> None:
        place = member.born.pulse.row_in_hand() if task.careful else None
        verdict = after_death(
            task,
            kind,
            detail,
            place,
            output="\n".join(member.tail),
            may_grow=self._may_grow(task),
            max_poison_rows=self._max_poison_rows,
        )
        if verdict.failure is not None:
            self._desk.fail(task, verdict.failure)
            return
        if place is not None:
            how = f"without the row that did it ({place.object}, position {place.position})"
        else:
            how = "row by row, to find the one that does it" if task.careful else "alone, with all of the memory"
        self._around.note("warning", f"item {task.item}: its process died ({kind}: {detail}); it is run again, {how}")
        self._around.requeue([task])

    def out_of_memory(self, task: Task) -> bool:
        """A failed attempt ran out of memory inside its process: whether it gets another run, alone."""
        if task.alone or not self._may_grow(task):
            return False
        task.memory_class = 2
        return True

    def _may_grow(self, task: Task) -> bool:
        return self._shares.processes > 1 or self._shares.limit(2) > self._shares.limit(task.memory_class)
