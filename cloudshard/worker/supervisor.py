"""The supervisor: one loop that brings claims to children and results to the ledger.

It owns every decision of a worker and does no work of its own: children run user code, threads call the store, the watch looks at memory
and stalls. Nothing in the loop waits for anything but the selector.
"""

from __future__ import annotations

import pickle
import random
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudshard.errors import (
    EXIT_DONE,
    EXIT_INCOMPLETE,
    EXIT_PREEMPTED,
    CloudshardError,
    DiskFull,
    PermissionDenied,
    Preempted,
    StepError,
    Transient,
    Unavailable,
)
from cloudshard.ledger.claims import Claim
from cloudshard.ledger.ledger import Ledger
from cloudshard.ledger.records import SealRecord
from cloudshard.ledger.stage import StageLedger
from cloudshard.plan.values import StageSpec
from cloudshard.store.port import Store
from cloudshard.worker import resources
from cloudshard.worker.aftermath import Aftermath
from cloudshard.worker.calls import StoreCalls
from cloudshard.worker.crew import Crew, Heard, Member
from cloudshard.worker.desk import Desk
from cloudshard.worker.events import ChildOutput, Level, Note, Observer, StageSealed
from cloudshard.worker.floor import Floor
from cloudshard.worker.leases import Leases
from cloudshard.worker.messages import Dropped, Failed, Finished, Ready, Setup, SetupFailed, Trouble
from cloudshard.worker.pacing import Pace
from cloudshard.worker.roster import Roster, State
from cloudshard.worker.signals import StopSignals
from cloudshard.worker.task import MAX_POISON_ROWS, Task
from cloudshard.worker.telling import Telling
from cloudshard.worker.watch import HANG_SECONDS, WATCH_SECONDS, Watch
from cloudshard.worker.zygote import Zygote

#: A stopped worker is gone soon after this, whatever happens: spot notices and Slurm give 30 s or more.
EXIT_SECONDS = 16.0
_LEAVE_SECONDS = 10.0
_LEAVE_SECONDS_PREEMPTED = 3.0
#: How often to look again when nothing is free: a bucket's LIST costs money, a local folder's does not.
POLL_SECONDS = 2.0
LOCAL_POLL_SECONDS = 0.3
#: Requests in flight for the ledger. A local folder answers in 50 µs: more threads would only wait for each other.
STORE_THREADS = 16
LOCAL_STORE_THREADS = 3


@dataclass(frozen=True)
class Options:
    """How one worker works. ``grace_seconds``: how long running attempts may go on once it is asked to stop."""

    max_shards: int | None = None
    poll_interval: float | None = None
    hang_seconds: float = HANG_SECONDS
    grace_seconds: float = 10.0
    max_poison_rows_per_item: int = MAX_POISON_ROWS
    executor: str = "cloudshard.worker.stage_executor:make_executor"


class Supervisor:
    """Works on a run until it is complete, failed, or this worker is asked to stop. ``output_of``: the store at a stage's sink."""

    def __init__(
        self,
        ledger: Ledger,
        zygote: Zygote,
        shares: resources.Shares,
        options: Options,
        output_of: Callable[[StageSpec], Store],
        *,
        observer: Observer,
        store_options: Mapping[str, Mapping[str, Any]] | None = None,
        scratch: resources.Scratch | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.ledger = ledger
        self.shares = shares
        self.options = options
        self.error: CloudshardError | None = None
        self.seal: SealRecord | None = None
        self._finished = False
        self._need_stage = True
        self._rng = rng or random.Random()
        self._store_options = pickle.dumps(dict(store_options)) if store_options else b""
        self._scratch = scratch
        self._observer = observer
        self._selector = selectors.DefaultSelector()
        local = ledger.store.url.startswith(("file:", "memory:"))
        self._calls = StoreCalls(LOCAL_STORE_THREADS if local else STORE_THREADS)
        self._selector.register(self._calls, selectors.EVENT_READ, lambda _mask: None)
        self.crew = Crew(zygote, self._selector, lambda child, text: observer(ChildOutput(child, text)))
        self.desk = Desk(ledger, self._calls, self, output_of, settings=ledger.run.settings, rng=self._rng)
        self.roster = Roster(ledger, shares.processes, self.desk.totals, self.crew.all_requests)
        self._floor = Floor(self.crew, shares, self._setup_of, self.fatal, ledger.run.settings.lease_seconds)
        self._telling = Telling(observer, self.crew, len(ledger.plan.stages))
        self._watch = Watch(options.hang_seconds)
        self._leases = Leases(self.desk, self._floor, self._watch, self._telling)
        self._aftermath = Aftermath(self.desk, self._watch, shares, self, options.max_poison_rows_per_item)
        self._attempts = 0
        self._dry_until = 0.0
        self._next_watch = 0.0
        self._drain_since: float | None = None
        self._grace_over = False
        self._abort = False
        self._poll = options.poll_interval if options.poll_interval is not None else (LOCAL_POLL_SECONDS if local else POLL_SECONDS)

    @property
    def draining(self) -> bool:
        """Whether the worker has been asked to stop."""
        return self._drain_since is not None

    # ------------------------------------------------------------ the loop

    def run(self) -> int:
        """Work; returns the exit code. What ended the work early is in ``error``, not raised."""
        with StopSignals() as signals:
            self._selector.register(signals, selectors.EVENT_READ, lambda _mask: self._heard_signals(signals.take()))
            try:
                self._write_roster("running")
                while not self._over():
                    self._turn()
                code = self._exit_code()
                self._leave(code)
            finally:
                self.crew.shut()
                self._selector.unregister(signals)
                self._calls.close()
                self._selector.close()
        return code

    def _turn(self) -> None:
        now = time.monotonic()
        for key, mask in self._selector.select(self._timeout(now)):
            key.data(mask)
        self._calls.deliver()
        for event in self.crew.hear():
            if isinstance(event, Heard):
                self._heard(event)
            else:
                self._aftermath.ended(event)
        now = time.monotonic()
        if now >= self._next_watch:
            self._next_watch = now + WATCH_SECONDS
            self._look_around(now)
        if self._drain_since is not None:
            self._drain(now - self._drain_since)
        elif self.error is None and not self._finished:
            self._advance(now)
        self._telling.progress(self.desk, self._floor.waiting, now, draining=self.draining)

    def _timeout(self, now: float) -> float:
        if self._floor.held() or self.draining or self.desk.busy:
            return max(0.0, self._next_watch - now)
        waits = [at - now for at in (self._dry_until, self.desk.weather.closed_until) if at > now]
        return min(min(waits, default=WATCH_SECONDS), 1.0)

    def _over(self) -> bool:
        if self._abort or self.error is not None:
            return True
        if self._drain_since is not None:
            return not (self._floor.held() or self._calls.pending) or time.monotonic() - self._drain_since > EXIT_SECONDS
        return self._finished

    def _exit_code(self) -> int:
        if self.draining:
            if self.error is None:
                self.error = Preempted(
                    "stopped before the run was complete", where=self.ledger.store.url, mend="Run the same command again."
                )
            return EXIT_PREEMPTED
        if self.error is not None:
            if isinstance(self.error, (Transient, DiskFull)):
                self.error.exit_code = EXIT_INCOMPLETE  # nothing is wrong with the run: another worker, or a better day, continues it
            return self.error.exit_code
        return EXIT_DONE

    def _leave(self, code: int) -> None:
        """Give back what is held, end the children, write the last record."""
        if self._abort:
            return
        for member in list(self.crew.members):
            if member.tasks:
                self.crew.kill(member, "drain")
                self._floor.waiting.extend(member.tasks.values())
                member.tasks = {}
        for task in self._floor.take_waiting():
            self.desk.release(task)
        seconds = _LEAVE_SECONDS_PREEMPTED if self.draining else _LEAVE_SECONDS
        self.crew.close(seconds)
        self._write_roster("ended", code)
        self._calls.wait(seconds)

    def _write_roster(self, state: State, code: int | None = None) -> None:
        def done(problem: str | None) -> None:
            if problem is not None:
                self.note("warning", problem)

        def failed(error: Exception) -> None:
            raise error

        self._calls.submit(lambda: self.roster.try_write(state, code), done, failed)

    # ------------------------------------------------------------ outcomes from the desk

    def opened(self, stage: StageLedger | None) -> None:
        """The current stage is known; None: the run is complete."""
        self._need_stage = False
        if stage is None:
            self.seal = self.ledger.seal(self.ledger.plan.stages[-1].index)
            self._finished = True
            return
        spans = any(step.params.get("span_shards") for step in stage.spec.steps)
        self._floor.pace = Pace(self.ledger.run.settings.lease_seconds, spans_items=spans)
        self._dry_until = 0.0
        self.crew.preload(modules_of(stage.spec))
        self._telling.started(stage, time.monotonic())

    def claimed(self, claims: list[Claim]) -> None:
        """Claims have come, or nothing is free."""
        stage = self.desk.stage
        if stage is None:
            return
        now = time.monotonic()
        self._floor.waiting.extend(Task.of(claim, stage, now) for claim in claims)
        if claims:
            self._telling.busy()
            return
        free = stage.seconds_until_free()
        pause = self._poll * (0.75 + self._rng.random() / 2)
        self._dry_until = now + (pause if free is None else max(0.05, min(pause, free)))

    def settled(self, task: Task, outcome: str) -> None:
        """An attempt is over."""
        if outcome in ("committed", "retry", "dead"):
            self._attempts += 1
        if outcome == "committed":
            self._telling.committed(task)
        elif outcome != "dead":
            self._dry_until = min(self._dry_until, time.monotonic() + 0.05)  # it may be free again

    def lease_lost(self, task: Task) -> None:
        """An attempt must stop: its lease cannot be kept."""
        self._leases.lost(task)

    def sealed(self, seal: SealRecord) -> None:
        """The stage is complete: on to the next."""
        counts = seal.counts
        self._observer(
            StageSealed(
                stage=seal.stage,
                rows_in=counts.rows_in,
                rows_out=counts.rows_out,
                filtered=counts.filtered,
                dropped=counts.dropped,
                quarantined=counts.quarantined,
                parts=seal.parts,
                bytes=seal.bytes,
                final=seal.final,
            )
        )
        if seal.final:
            self.seal = seal
            self._finished = True
        else:
            self._need_stage = True

    def note(self, level: Level, text: str) -> None:
        """Tell a person."""
        self._observer(Note(level, text))

    def fatal(self, error: CloudshardError) -> None:
        """The worker ends with this error."""
        if self.error is None:
            self.error = error

    # ------------------------------------------------------------ getting work

    def _advance(self, now: float) -> None:
        if now >= self.roster.next_at:
            self.roster.next_at = now + 60.0
            self._write_roster("running")
        self.desk.tick()
        self._floor.fill()
        stage = self.desk.stage
        if self.desk.opening or self.desk.sealing or now < self.desk.weather.closed_until:
            return
        if self._need_stage or stage is None:
            self.desk.open_stage()
            return
        self._floor.rebalance()
        if not self._floor.held() and not self.desk.busy:
            if stage.complete:
                self.desk.seal()
                return
            if self._quota() == 0:
                self._finished = True
                return
            if stage.stuck and not self.desk.acquiring and now < self._dry_until:
                self.desk.seal()  # raises RunFailed, which names the dead items
                return
        self._claim(stage, now)

    def _quota(self) -> int | None:
        """Attempts that this worker may still begin (``--max-shards``)."""
        if self.options.max_shards is None:
            return None
        return max(0, self.options.max_shards - self._attempts - self._floor.held() - self.desk.committing)

    def _claim(self, stage: StageLedger, now: float) -> None:
        if self.desk.acquiring or now < self._dry_until or self._floor.reserved():
            if not self._floor.held():
                self._telling.waiting(stage, now)
            return
        held, idle = self._floor.held(), self._floor.idle()
        progress = stage.progress()
        wanted = self._floor.pace.claims_wanted(
            children=self.shares.processes, held=held, idle=idle, unclaimed=max(0, progress.pending - progress.live)
        )
        if not held and not self.desk.busy:
            wanted = max(1, wanted)  # all seems to be done or dead: look again, it may have been revived
        quota = self._quota()
        if quota is not None:
            wanted = min(wanted, quota)
        if wanted > 0:
            self.desk.acquire(wanted)

    def _setup_of(self, task: Task) -> Setup:
        return Setup(
            stage=task.stage.spec,
            run_url=self.ledger.store.url,
            run_tag=self.ledger.tag,
            executor=self.options.executor,
            options=self._store_options,
            careful=task.careful,
            patience_seconds=self.options.hang_seconds,
            scratch=self._scratch.open() if self._scratch is not None else "",
        )

    # ------------------------------------------------------------ results from children

    def _heard(self, event: Heard) -> None:
        member, message = event
        if isinstance(message, Ready):
            member.ready = True
            member.beat_at = time.monotonic()
            self._aftermath.set_up()
        elif isinstance(message, Finished):
            self._attempt_finished(member, message)
        elif isinstance(message, Failed):
            task = member.tasks.pop(message.ticket, None)
            if task is not None:
                self._attempt_failed(task, message.trouble)
                self._end_single(member)
        elif isinstance(message, Dropped):
            self.requeue([task for ticket in message.tickets if (task := member.tasks.pop(ticket, None)) is not None])
        elif isinstance(message, SetupFailed):
            member.stopping = True
            tasks, member.tasks = list(member.tasks.values()), {}
            self._setup_failed(message.trouble)
            self.requeue(tasks)

    def _attempt_finished(self, member: Member, message: Finished) -> None:
        task = member.tasks.pop(message.ticket, None)
        if task is None:
            if self.desk.stage is not None:
                self.desk.discard(self.desk.stage, message.output)
            return
        if message.output.stats.runtime_seconds is not None:
            self._floor.pace.learn(message.output.stats.runtime_seconds)
        if task.found:
            rows = "a row that kills its process was" if len(task.found) == 1 else f"{len(task.found)} rows that kill their process were"
            self.note("warning", f"item {task.item}: {rows} quarantined")
        self.desk.commit(task, message.output)
        self._end_single(member)

    def _end_single(self, member: Member) -> None:
        if member.single and not member.tasks:
            self.crew.stop(member)

    def _attempt_failed(self, task: Task, trouble: Trouble) -> None:
        if trouble.infrastructure:
            self.desk.release(task, because=_infrastructure(trouble))
        elif self.draining:
            self.desk.release(task)  # a scheduler that signals all processes may have hit a program that the user's code has started
        elif trouble.kind == "oom" and self._aftermath.out_of_memory(task):
            self.requeue([task])
        else:
            self.desk.fail(task, trouble)

    def _setup_failed(self, trouble: Trouble) -> None:
        if trouble.infrastructure:
            self.desk.bad_weather(_infrastructure(trouble))
            return
        what = f"a step cannot be set up on this machine: {trouble.error_type}: {trouble.message}"
        self.fatal(StepError(what, step=trouble.step, where=trouble.where or trouble.step, traceback=trouble.traceback))

    def requeue(self, tasks: Iterable[Task]) -> None:
        """Run these again; while the worker is being stopped: give them back."""
        if self.draining:
            for task in tasks:
                self.desk.release(task)
        else:
            self._floor.requeue(tasks)

    # ------------------------------------------------------------ the watch

    def _look_around(self, now: float) -> None:
        self._watch.next_round()
        for member in list(self.crew.members):
            if member.killed is not None:
                continue
            finding = self._watch.look(member, now)
            if finding is not None:
                self.crew.kill(member, finding.kind)
            else:
                self._leases.keep(member, now)
        self._leases.keep_waiting(now)

    # ------------------------------------------------------------ stopping

    def _heard_signals(self, signals: list[signal.Signals]) -> None:
        for number in signals:
            if not self.draining:
                self._begin_drain(number)
            elif number == signal.SIGINT:
                self._abort = True

    def _begin_drain(self, number: signal.Signals) -> None:
        self._drain_since = time.monotonic()
        again = " (Ctrl-C again: at once)" if number == signal.SIGINT else ""
        self.note("info", f"{number.name}: no new claims; running attempts have {self.options.grace_seconds:g} s to end{again}")
        for member in self.crew.members:
            self.crew.stop(member)
        self._write_roster("draining")

    def _drain(self, since: float) -> None:
        self.desk.tick()
        for task in self._floor.take_waiting():
            self.desk.release(task)
        if not self._grace_over and since > self.options.grace_seconds:
            self._grace_over = True
            for member in self.crew.members:
                if member.tasks:
                    self.crew.kill(member, "drain")


def _infrastructure(trouble: Trouble) -> CloudshardError:
    return (PermissionDenied if trouble.denied else Unavailable)(trouble.message, where=trouble.where)


def modules_of(spec: StageSpec) -> list[str]:
    """Modules worth importing once, in the zygote, for all of this stage's children."""
    found = ["cloudshard.engine.driver"]
    formats = (spec.source.format, spec.sink.format)
    if any(step.kind == "sql" for step in spec.steps):
        found.append("duckdb")
    if "parquet" in formats:
        found.append("pyarrow.parquet")
    if "csv" in formats:
        found.append("pyarrow.csv")
    if any(step.params.get("as") == "pandas" for step in spec.steps):
        found.append("pandas")
    return found
