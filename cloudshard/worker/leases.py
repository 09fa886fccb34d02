"""Keeping leases while attempts move, and letting go in time when they do not."""

from __future__ import annotations

import time

from cloudshard.worker.crew import Member
from cloudshard.worker.desk import Desk
from cloudshard.worker.floor import Floor
from cloudshard.worker.task import Task
from cloudshard.worker.telling import Telling
from cloudshard.worker.watch import Watch


class Leases:
    """Goes through all held claims; called with every round of the watch."""

    def __init__(self, desk: Desk, floor: Floor, watch: Watch, telling: Telling) -> None:
        self._desk = desk
        self._floor = floor
        self._watch = watch
        self._telling = telling

    def keep(self, member: Member, now: float) -> None:
        """Renew what has moved; stop what has lost its lease; take back what has not begun in a third of its lease."""
        last = member.born.pulse.ticket
        behind: list[Task] = []
        for ticket, task in list(member.tasks.items()):
            begun = ticket <= last
            if begun:
                if task.began_at is None:
                    task.began_at = now
                self._floor.pace.learn_at_least(now - task.began_at)
                self._telling.long_running(task, member, now)
            if self._desk.expired(task):
                self.stop(member, task)
                if member.killed is not None:
                    return
            elif self._desk.renewal_due(task):
                if not begun and member.ready and not member.single:
                    behind.append(task)
                elif self._watch.alive(member, task.renewed_beats):
                    task.renewed_beats = member.born.pulse.beats
                    self._desk.renew(task)
        if behind:
            self._floor.take_back(member, behind)

    def keep_waiting(self, now: float) -> None:
        """Claims whose turn has not come: given back, unless they wait for their second run or for the machine alone."""
        for task in list(self._floor.waiting):
            if self._desk.expired(task):
                self._floor.waiting.remove(task)
                self._desk.forget(task)
            elif self._desk.renewal_due(task):
                if task.runs or task.single:
                    self._desk.renew(task)
                else:
                    self._floor.pace.learn_at_least(now - task.claimed_at)
                    self._floor.waiting.remove(task)
                    self._desk.release(task)

    def lost(self, task: Task) -> None:
        """The ledger says that the lease is over."""
        member = self._floor.member_of(task)
        if member is not None:
            self.stop(member, task)
        elif task in self._floor.waiting:
            self._floor.waiting.remove(task)
            self._desk.forget(task)

    def stop(self, member: Member, task: Task) -> None:
        """End an attempt at once: others may take over from here on."""
        if task.ticket <= member.born.pulse.ticket:
            self._desk.tell("warning", f"item {task.item}: its lease could not be kept ({_why_lost(member)}); the attempt is stopped")
            self._floor.crew.kill(member, "lease")
        else:
            self._floor.crew.withdraw(member, [task])
            self._desk.forget(task)


def _why_lost(member: Member) -> str:
    call = member.born.pulse.call()
    if call is not None:
        return f"no row has moved for {call[0]:.0f} s"
    return f"nothing has moved for {time.monotonic() - member.beat_at:.0f} s, or the store did not answer"
