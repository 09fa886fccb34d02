"""A claimed item on its way through this worker, and what becomes of it when the process that ran it dies: pure decisions.

The ladder of an attempt whose process died, always under the same claim::

    normal ── crash or hang ──────────────► careful ── dies at row r ──► careful, without r ── … up to `max_poison_rows` ──► failed
       └───── out of memory ──► alone ── out of memory ──┘   └─ dies outside any row ──► failed

*Careful*: in a process of its own, row by row, each row's place written down before it is touched. *Alone*: with the memory of the whole
machine, nothing else running. A careful run that passes is committed like any other; the rows found on the way are quarantined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cloudshard.ledger.claims import Claim
from cloudshard.ledger.records import PoisonRow
from cloudshard.ledger.stage import StageLedger
from cloudshard.worker.messages import Assign, Trouble
from cloudshard.worker.pulse import RowPlace

DeathKind = Literal["crash", "oom", "hang"]

#: A row that kills its process is the exception. More than these in one item, and the item's failure is the better news.
MAX_POISON_ROWS = 16


@dataclass(eq=False)
class Task:
    """``ticket``: of the present run (0: not assigned). ``runs``: how many there were. ``found``: poison rows found under this claim."""

    claim: Claim
    stage: StageLedger
    ticket: int = 0
    runs: int = 0
    careful: bool = False
    memory_class: int = 0
    found: list[PoisonRow] = field(default_factory=list)
    claimed_at: float = 0.0
    began_at: float | None = None
    renewed_beats: int = -1
    renewing: bool = False
    stalled_told: bool = False

    @classmethod
    def of(cls, claim: Claim, stage: StageLedger, now: float) -> Task:
        """A fresh task. Items that made several holders vanish start carefully and alone."""
        memory_class = 2 if claim.isolate else claim.memory_class
        return cls(claim, stage, careful=claim.isolate, memory_class=memory_class, claimed_at=now)

    @property
    def item(self) -> int:
        """Index of the work item."""
        return self.claim.item

    @property
    def single(self) -> bool:
        """Whether it needs a child of its own: a careful one, or one with another memory limit."""
        return self.careful or self.memory_class > 0

    @property
    def alone(self) -> bool:
        """Whether nothing else may run meanwhile."""
        return self.memory_class >= 2

    def assignment(self, ticket: int) -> Assign:
        """The next run of this task. Each run under one claim has a nonce of its own, so that no two write the same object."""
        self.ticket = ticket
        nonce = self.claim.nonce if self.runs == 0 else f"{self.claim.nonce}{chr(ord('a') + min(self.runs, 26) - 1)}{self.runs}"
        self.runs += 1
        known = [
            PoisonRow(object, position, self.claim.poison_reasons.get((object, position), "")) for object, position in self.claim.poison
        ]
        return Assign(ticket=ticket, work=self.claim.work, epoch=self.claim.epoch, nonce=nonce, poison=(*known, *self.found))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a task whose process died: run it again (the task says how), or record ``failure``."""

    failure: Trouble | None = None


def describe_death(kind: DeathKind, detail: str) -> str:
    """One clause about a dead process."""
    return {
        "crash": f"the process died: {detail}",
        "oom": f"the process ran out of memory: {detail}",
        "hang": f"the process hung: {detail}",
    }[kind]


def after_death(
    task: Task,
    kind: DeathKind,
    detail: str,
    place: RowPlace | None,
    *,
    output: str = "",
    may_grow: bool = True,
    max_poison_rows: int = MAX_POISON_ROWS,
) -> Verdict:
    """Decide for a task that its process had begun. ``place``: the row in hand, known in careful mode only.

    ``may_grow``: there is more memory than the limit that it died of. Changes how the task will run next.
    """
    said = describe_death(kind, detail)
    if not task.careful:
        if kind == "oom" and not task.alone and may_grow:
            task.memory_class = 2
        else:
            task.careful = True
        return Verdict()
    if place is None:
        return Verdict(_trouble(task, kind, f"{said}, outside any row", output))
    row = PoisonRow(place.object, place.position, said, place.step)
    if any((known.object, known.position) == (row.object, row.position) for known in task.found):
        return Verdict(_trouble(task, kind, f"{said} again at a row that was to be skipped", output, row))
    task.found.append(row)
    if len(task.found) > max_poison_rows:
        return Verdict(_trouble(task, kind, f"{said}; more than {max_poison_rows} rows of this item kill their process", output, row))
    return Verdict()


def _trouble(task: Task, kind: DeathKind, message: str, output: str, row: PoisonRow | None = None) -> Trouble:
    where = f"{row.object}, position {row.position}" if row is not None else f"item {task.item}"
    names = {"crash": "ProcessCrashed", "oom": "OutOfMemory", "hang": "ProcessHung"}
    return Trouble(
        error_type=names[kind], message=message, where=where, step=row.step if row is not None else "", traceback=output, kind=kind
    )
