"""The shop floor: tasks that wait, and which child gets which.

Normal tasks go to any child with room. A *single* one (careful, or with another memory limit) gets a fresh child of its own; one that
must run *alone* waits until all others have finished, and nothing else is begun meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from cloudshard.errors import ChildCrashed, CloudshardError
from cloudshard.worker.crew import Crew, Member
from cloudshard.worker.messages import Setup
from cloudshard.worker.pacing import Pace
from cloudshard.worker.resources import Shares
from cloudshard.worker.task import Task

#: Work shorter than this is not worth moving to an idle child when it is the only piece queued.
_WORTH_MOVING_SECONDS = 0.02


class Floor:
    """``waiting``: claimed, not assigned. ``setup_of``: what a child must be told before it can run the task."""

    def __init__(
        self, crew: Crew, shares: Shares, setup_of: Callable[[Task], Setup], fatal: Callable[[CloudshardError], None], lease_seconds: float
    ) -> None:
        self.crew = crew
        self.shares = shares
        self.pace = Pace(lease_seconds)
        self.waiting: deque[Task] = deque()
        self._setup_of = setup_of
        self._fatal = fatal
        self._tickets = 0

    # ------------------------------------------------------------ what is on the floor

    def held(self) -> int:
        """Tasks that wait or are assigned."""
        return len(self.waiting) + sum(len(member.tasks) for member in self.crew.members)

    def busy(self) -> int:
        """Children that have work."""
        return sum(bool(member.tasks) for member in self.crew.members)

    def idle(self) -> int:
        """Children (present or still to be made) without work."""
        return max(0, self.shares.processes - self.busy())

    def reserved(self) -> bool:
        """Whether the machine belongs to one task that runs alone, or is about to."""
        return any(task.alone for task in self.waiting) or self._alone_is_running()

    def _alone_is_running(self) -> bool:
        return any(task.alone for member in self.crew.members for task in member.tasks.values())

    def requeue(self, tasks: Iterable[Task]) -> None:
        """To the front of the queue, in order."""
        for task in reversed(list(tasks)):
            task.ticket = 0
            self.waiting.appendleft(task)

    def take_waiting(self) -> list[Task]:
        """Empty the queue."""
        tasks = list(self.waiting)
        self.waiting.clear()
        return tasks

    # ------------------------------------------------------------ handing out

    def fill(self) -> None:
        """Hand waiting tasks to children, as far as there is room."""
        if self._alone_is_running():
            return
        while self.waiting:
            task = self.waiting[0]
            busy = self.busy()
            if task.single:
                shares = min(task.memory_class + 1, self.shares.processes)
                if busy and (task.alone or busy + shares > self.shares.processes):
                    return
                member = self._hire(single=True, memory_class=task.memory_class)
            else:
                member = self._member_with_room(task, busy)
            if member is None:
                return
            self.waiting.popleft()
            self._assign(member, task)

    def _member_with_room(self, task: Task, busy: int) -> Member | None:
        stage = task.stage.number
        usable = [
            member
            for member in self.crew.members
            if not (member.single or member.stopping or member.killed) and (member.stage == stage or not member.tasks)
        ]
        for member in usable:
            if not member.tasks:
                return member
        if busy < self.shares.processes:
            return self._hire()
        best = min(usable, key=lambda member: len(member.tasks), default=None)
        return best if best is not None and len(best.tasks) < self.pace.depth() else None

    def _hire(self, *, single: bool = False, memory_class: int = 0) -> Member | None:
        if len(self.crew.members) > 2 * self.shares.processes + 1:
            return None  # many are on their way out: a child that will not end must not make the machine fill up with others
        try:
            member = self.crew.hire(single=single)
        except ChildCrashed as error:
            self._fatal(error)
            return None
        member.limit_bytes = self.shares.limit(memory_class)
        return member

    def _assign(self, member: Member, task: Task) -> None:
        if member.stage != task.stage.number:
            self.crew.set_up(member, self._setup_of(task))
        self._tickets += 1
        task.began_at = None
        task.renewed_beats = -1
        self.crew.assign(member, task, task.assignment(self._tickets))

    def rebalance(self) -> None:
        """Take work that has not begun from the child that has most of it queued, when another child has nothing at all."""
        if self.waiting or not self.idle():
            return
        sharing = [member for member in self.crew.members if member.ready and not member.single and not member.killed]
        richest = max(sharing, key=lambda member: len(member.waiting()), default=None)
        queued = richest.waiting() if richest is not None else []
        if richest is None or not queued or (len(queued) == 1 and (self.pace.item_seconds or 0.0) < _WORTH_MOVING_SECONDS):
            return
        self.take_back(richest, queued[len(queued) // 2 :])

    def take_back(self, member: Member, tasks: list[Task]) -> None:
        """Withdraw assigned tasks that have not begun; they wait again."""
        self.crew.withdraw(member, tasks)
        for task in tasks:
            task.ticket = 0
        self.waiting.extend(tasks)

    def member_of(self, task: Task) -> Member | None:
        """The child that has the task."""
        return next((member for member in self.crew.members if member.tasks.get(task.ticket) is task), None)
