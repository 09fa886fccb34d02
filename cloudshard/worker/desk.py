"""The supervisor's desk at the ledger: claims, renewals, commits, failures, releases and seals, all beside the computing.

Every call of the store runs in a thread; its outcome comes back into the supervisor's loop through :meth:`StoreCalls.deliver`. No
method here waits. Infrastructure errors never reach an item's record: the claim is released, and the worker holds back for a while.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cloudshard.errors import CloudshardError, LeaseLost, StoreError
from cloudshard.ledger.claims import Claim, boot_clock
from cloudshard.ledger.ledger import Ledger
from cloudshard.ledger.publish import discard
from cloudshard.ledger.records import CommitRecord, FailureRecord, RunSettings, SealRecord
from cloudshard.ledger.stage import StageLedger
from cloudshard.plan.values import StageSpec
from cloudshard.store.port import Store
from cloudshard.worker.budget import ErrorBudget
from cloudshard.worker.calls import StoreCalls
from cloudshard.worker.events import Level
from cloudshard.worker.execution import INFRASTRUCTURE
from cloudshard.worker.messages import AttemptOutput, Trouble
from cloudshard.worker.task import Task
from cloudshard.worker.weather import Weather

#: A renewal that failed is tried again after this long.
RENEW_RETRY_SECONDS = 3.0
#: A commit whose outcome is unknown is tried again after this long.
COMMIT_RETRY_SECONDS = 2.0
MAX_TRACEBACK = 20_000


class Listener(Protocol):
    """Who is told of outcomes (the supervisor)."""

    def opened(self, stage: StageLedger | None) -> None:
        """The current stage; None: the run is complete."""

    def claimed(self, claims: list[Claim]) -> None:
        """The outcome of asking for claims; empty: nothing is free."""

    def settled(self, task: Task, outcome: str) -> None:
        """``task`` is over for this worker: committed | lost | retry | dead | released | forgotten."""

    def lease_lost(self, task: Task) -> None:
        """``task`` must stop: its lease cannot be kept."""

    def sealed(self, seal: SealRecord) -> None:
        """The stage is complete."""

    def note(self, level: Level, text: str) -> None:
        """Something that a person should know."""

    def fatal(self, error: CloudshardError) -> None:
        """The worker cannot go on."""


@dataclass
class Totals:
    """What this worker has done so far."""

    committed: int = 0
    failed: int = 0
    lost: int = 0
    rows_in: int = 0
    rows_out: int = 0
    bytes_written: int = 0
    suppressed: int = 0


class Desk:
    """Talks to the ledger for one worker. ``output_of``: the store at a stage's sink (the run's own for inner stages)."""

    def __init__(
        self,
        ledger: Ledger,
        calls: StoreCalls,
        listener: Listener,
        output_of: Callable[[StageSpec], Store],
        *,
        settings: RunSettings,
        rng: random.Random | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.ledger = ledger
        self.stage: StageLedger | None = None
        self.totals = Totals()
        self.weather = Weather(rng)
        self.acquiring = False
        self.opening = False
        self.sealing = False
        self.committing = 0
        self._calls = calls
        self._listener = listener
        self.tell = listener.note
        self._output_of = output_of
        self._clock = clock
        self._retry_at: dict[Task, float] = {}
        self._uncertain: list[tuple[float, Task, CommitRecord]] = []
        self._budget = ErrorBudget(settings)

    # ------------------------------------------------------------ errors

    def _trouble(self, error: Exception) -> None:
        """An error of a call that concerns no item in particular."""
        if isinstance(error, INFRASTRUCTURE):
            self.bad_weather(error)
        elif isinstance(error, CloudshardError):
            self._listener.fatal(error)
        else:
            raise error  # a bug: the loop's edge reports it

    def bad_weather(self, error: CloudshardError) -> None:
        """The store or the machine fails: hold back, or give up when there is no hope."""
        now = time.monotonic()
        if self.weather.clear:
            self._listener.note("warning", f"{error}; waiting for it to get better")
        self.weather.failure(error, now)
        hopeless = self.weather.hopeless(now)
        if hopeless is not None:
            self._listener.fatal(hopeless)

    # ------------------------------------------------------------ stages

    def open_stage(self) -> None:
        """Find the first stage that is not sealed."""
        self.opening = True

        def done(stage: StageLedger | None) -> None:
            self.opening = False
            self.weather.success()
            self.stage = stage
            if stage is not None:
                self._budget.begin(stage)
            self._listener.opened(stage)

        def failed(error: Exception) -> None:
            self.opening = False
            self._trouble(error)

        self._calls.submit(self.ledger.current_stage, done, failed)

    def seal(self) -> None:
        """Seal the current stage if it is complete; RunFailed becomes fatal."""
        stage = self.stage
        if stage is None or self.sealing:
            return
        self.sealing = True

        def call() -> SealRecord | None:
            if stage.complete:
                self._budget.check_all(stage)
            return self.ledger.try_seal(stage)

        def done(seal: SealRecord | None) -> None:
            self.sealing = False
            self.weather.success()
            if seal is not None:
                self._listener.sealed(seal)

        def failed(error: Exception) -> None:
            self.sealing = False
            self._trouble(error)

        self._calls.submit(call, done, failed)

    # ------------------------------------------------------------ claims

    def acquire(self, count: int) -> None:
        """Ask for up to ``count`` claims."""
        stage = self.stage
        if stage is None or self.acquiring:
            return
        self.acquiring = True

        def done(claims: list[Claim]) -> None:
            self.acquiring = False
            self.weather.success()
            self._listener.claimed(claims)

        def failed(error: Exception) -> None:
            self.acquiring = False
            self._trouble(error)

        self._calls.submit(lambda: stage.acquire(count), done, failed)

    def renew(self, task: Task) -> None:
        """Extend a lease whose attempt has moved."""
        if task.renewing or self._retry_at.get(task, 0.0) > self._clock():
            return
        task.renewing = True

        def done(_: None) -> None:
            task.renewing = False
            self._retry_at.pop(task, None)

        def failed(error: Exception) -> None:
            task.renewing = False
            if isinstance(error, LeaseLost):
                self._listener.lease_lost(task)
            else:
                self._retry_at[task] = self._clock() + RENEW_RETRY_SECONDS
                self._trouble(error)

        self._calls.submit(lambda: task.stage.renew(task.claim), done, failed)

    def expired(self, task: Task) -> bool:
        """Whether the attempt must stop by this worker's own clock."""
        return task.claim.expired(self._clock)

    def renewal_due(self, task: Task) -> bool:
        """Whether a third of the lease is over."""
        return self._clock() >= task.claim.renew_at

    # ------------------------------------------------------------ ends of attempts

    def commit(self, task: Task, output: AttemptOutput) -> None:
        """Make the attempt's output *the* output; an expired attempt's is discarded instead."""
        if self.expired(task):
            self.discard(task.stage, output)
            task.stage.forget(task.claim)
            self._settle(task, "forgotten")
            return
        claim = task.claim
        record = CommitRecord(
            stage=task.stage.number,
            item=claim.item,
            epoch=claim.epoch,
            nonce=claim.nonce,
            worker=claim.record.worker,
            host=claim.record.host,
            started=claim.record.started,
            finished=max(self.ledger.store.now(), claim.record.started),
            parts=output.parts,
            counts=output.counts,
            steps=output.steps,
            quarantine_key=output.quarantine_key,
            schema=output.schema,
            stats=output.stats,
        )
        self._commit(task, record)

    def _commit(self, task: Task, record: CommitRecord) -> None:
        self.committing += 1

        def done(won: bool) -> None:
            self.committing -= 1
            self.weather.success()
            if won:
                self._count(record)
            self._settle(task, "committed" if won else "lost")
            if won:
                exceeded = self._budget.add(record, task.claim.work.weight)
                if exceeded is not None:
                    self._listener.fatal(exceeded)

        def failed(error: Exception) -> None:
            self.committing -= 1
            self._commit_failed(task, record, error)

        self._calls.submit(lambda: task.stage.commit(task.claim, record, self._output_of(task.stage.spec)), done, failed)

    def _commit_failed(self, task: Task, record: CommitRecord, error: Exception) -> None:
        """Its outcome may be unknown: try again while the lease lasts, then leave all as it is. Never discard the parts here."""
        if isinstance(error, INFRASTRUCTURE) and not self.expired(task):
            self._uncertain.append((time.monotonic() + COMMIT_RETRY_SECONDS, task, record))
            self.bad_weather(error)
            return
        task.stage.forget(task.claim)
        self._settle(task, "forgotten")
        self._trouble(error)

    def fail(self, task: Task, trouble: Trouble) -> None:
        """Record that the attempt failed by the task's own fault."""
        claim = task.claim
        kind = trouble.kind if trouble.kind in ("error", "crash", "oom", "hang") else "error"
        failure = FailureRecord(
            stage=task.stage.number,
            item=claim.item,
            epoch=claim.epoch,
            nonce=claim.nonce,
            worker=claim.record.worker,
            host=claim.record.host,
            started=claim.record.started,
            finished=max(self.ledger.store.now(), claim.record.started),
            kind=kind,  # type: ignore[arg-type]  # narrowed by the line above
            error_type=trouble.error_type,
            message=trouble.message,
            where=trouble.where,
            step=trouble.step,
            traceback=trouble.traceback[-MAX_TRACEBACK:],
            poison=tuple(task.found),
        )

        def done(verdict: str) -> None:
            self.weather.success()
            self.totals.failed += 1
            where = f" ({trouble.where})" if trouble.where else ""
            what = f"item {claim.item} failed in attempt {claim.failures + 1}: {trouble.error_type}: {trouble.message}{where}"
            self._listener.note("error" if verdict == "dead" else "warning", f"{what}; {_next_step(verdict)}")
            self._settle(task, verdict)

        def failed(error: Exception) -> None:
            # the record may be there or not; the next holder sees the same failure soon enough
            task.stage.forget(task.claim)
            self._settle(task, "forgotten")
            self._trouble(error)

        self._calls.submit(lambda: task.stage.fail(claim, failure), done, failed)

    def release(self, task: Task, *, because: CloudshardError | None = None) -> None:
        """Give a claim back, so that nobody waits for its lease to end."""
        if because is not None:
            self.bad_weather(because)

        def done(_: None) -> None:
            self._settle(task, "released")

        def failed(error: Exception) -> None:
            self._settle(task, "forgotten")  # the lease will end by itself
            if not isinstance(error, INFRASTRUCTURE):
                self._trouble(error)

        self._calls.submit(lambda: task.stage.release(task.claim), done, failed)

    def forget(self, task: Task) -> None:
        """The lease is over: somebody else may hold the item now. No request."""
        task.stage.forget(task.claim)
        self._settle(task, "forgotten")

    def discard(self, stage: StageLedger, output: AttemptOutput) -> None:
        """Abort the pending uploads of an attempt for which no commit was ever sent."""
        store = self._output_of(stage.spec)

        def ignore(error: Exception) -> None:
            if not isinstance(error, StoreError):
                self._trouble(error)  # an upload that is left over is found by `gc`

        self._calls.submit(lambda: discard(store, output.parts), lambda _: None, ignore)

    def tick(self) -> None:
        """Try uncertain commits again."""
        now = time.monotonic()
        due = [entry for entry in self._uncertain if entry[0] <= now]
        if due:
            self._uncertain = [entry for entry in self._uncertain if entry[0] > now]
            for _, task, record in due:
                self._commit(task, record)

    @property
    def busy(self) -> bool:
        """Whether commits are on their way or to be tried again."""
        return self.committing > 0 or bool(self._uncertain)

    def _settle(self, task: Task, outcome: str) -> None:
        self._retry_at.pop(task, None)
        self._listener.settled(task, outcome)

    def _count(self, record: CommitRecord) -> None:
        totals, counts = self.totals, record.counts
        totals.committed += 1
        totals.rows_in += counts.rows_in
        totals.rows_out += counts.rows_out
        totals.bytes_written += sum(part.bytes for part in record.parts)
        totals.suppressed += counts.dropped + counts.quarantined + counts.nulled


def _next_step(verdict: str) -> str:
    return "its retry budget is spent" if verdict == "dead" else "it will be tried again"
