"""One simulated run: several workers, a misbehaving bucket, and monitors that know the truth."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cloudshard.errors import CloudshardError, IntegrityError, LeaseLost, RunFailed, StoreError, Transient
from cloudshard.ledger import keys
from cloudshard.ledger.claims import Claim
from cloudshard.ledger.election import elect
from cloudshard.ledger.ledger import Hooks, Ledger
from cloudshard.ledger.records import (
    CommitRecord,
    FailureRecord,
    InputRange,
    PartRecord,
    RevivedRecord,
    RowCounts,
    RunSettings,
    SealRecord,
    StepCounts,
    WorkItem,
    encode,
)
from cloudshard.ledger.stage import StageLedger, Surroundings, WorkerIdentity
from cloudshard.plan.values import Plan, SinkSpec, SourceSpec, StageSpec
from cloudshard.store.reliable import ReliableStore
from tests.simulation.world import Bucket, Chaos, Killed, Process, Scheduler, SimulatedStore

RUN_PREFIX = "run/"
OUT_PREFIX = "out/"
MODULUS = 5  # rows whose number is divisible by this are filtered


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated. ``poison``: items that fail whenever they are tried (until cured)."""

    seed: int
    workers: int = 4
    items: int = 5
    stages: int = 1
    overwrite: bool = False
    poison: int = 0
    drain: float = 0.0
    lease_seconds: float = 60.0
    chaos: Chaos = field(default_factory=Chaos)
    max_crashes: int = 12
    max_takeovers: int = 5
    max_retries: int = 3
    work: bool = True  # attempts take up to 1.5 leases
    cheat: bool = False  # one attempt commits a record that has lost a row: the stage must never be sealed


@dataclass
class SimPlan:
    """What an elected planner hands over."""

    plan: Plan
    items: tuple[WorkItem, ...]
    pickles: dict[str, bytes] = field(default_factory=dict)
    fingerprint: str = "f" * 32
    fields: dict[str, Any] = field(default_factory=dict)


def rows_of(item: int) -> list[int]:
    """The rows of an input shard: unique numbers."""
    return [item * 100 + j for j in range(item % 4 + 1)]


def next_items(_stage: StageSpec, commits: Iterable[CommitRecord], url: str) -> Sequence[WorkItem]:
    """Each materialised run is a shard of the next stage."""
    parts = [part for record in commits for part in record.parts]
    return [
        WorkItem(index, "shard", (InputRange(f"{url}/{part.key}", part.bytes, part.checksum, 0, part.rows, "rows"),), part.bytes)
        for index, part in enumerate(parts)
    ]


class Run:
    """The world of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.seed)
        self.scheduler = Scheduler(self.rng)
        self.bucket = Bucket(self.scheduler)
        self.crashes = 0
        self.finished: list[str] = []
        self.failed: list[str] = []
        self.errors: list[BaseException] = []
        self.task_failures: set[tuple[int, int, int]] = set()
        self.cured = False
        self.commits: dict[str, CommitRecord] = {}
        self.released: set[str] = set()
        self.looks: dict[tuple[str, str], float] = {}  # (worker, claim) -> how old the lease was when that worker last looked
        self.lost_races = 0
        self.claims = 0
        self.sealed_at: float | None = None
        self.born = 0
        self.processes: list[Process] = []
        self.old = [f"{OUT_PREFIX}old-{i}" for i in range(3)] if scenario.overwrite else []
        for key in self.old:
            self.bucket.memory.put(key, b"old")
        self.bucket.monitors.append(self._watch)
        stages = tuple(
            StageSpec(
                index=number,
                source=SourceSpec(format="jsonl" if number == 0 else "runs"),
                steps=(),
                sink=SinkSpec(
                    format="jsonl",
                    url="memory://sim/out" if number == scenario.stages - 1 else None,
                    mode="overwrite" if scenario.overwrite else "error",
                ),
                boundary=None if number == scenario.stages - 1 else "checkpoint",
            )
            for number in range(scenario.stages)
        )
        items = tuple(
            WorkItem(index, "shard", (InputRange(f"memory://in/{index}", 10, "e", 0, 10),), 10) for index in range(scenario.items)
        )
        self.planned = SimPlan(Plan(name="sim", stages=stages), items)
        self.settings = RunSettings(
            lease_seconds=scenario.lease_seconds,
            lease_margin_seconds=5.0,
            max_retries=scenario.max_retries,
            max_takeovers=scenario.max_takeovers,
        )

    # ------------------------------------------------------------ monitors: the truth, at the moment of each write

    def _watch(self, verb: str, key: str, result: Any) -> None:
        if verb == "put" and key.startswith(RUN_PREFIX) and "/claims/" not in key and "/runs/" not in key and "/plan/" not in f"/{key}":
            raise Violation(f"4: {key} was overwritten")
        if verb == "create" and "/commits/" in key:
            record = msgspec.json.decode(self.bucket.memory.get(key), type=CommitRecord)
            if key in self.commits:
                raise Violation(f"1: two commit records for {key}")
            self.commits[key] = record
        elif verb == "finish_upload" and key.startswith(OUT_PREFIX):
            if key[len(OUT_PREFIX) :] not in {part.key for record in self.commits.values() for part in record.parts}:
                raise Violation(f"2: {key} appeared before its commit record")
        elif verb == "create" and key.endswith("/sealed.json"):
            self._check_seal(msgspec.json.decode(self.bucket.memory.get(key), type=SealRecord))
        elif verb == "head" and "/claims/" in key:
            self.looks[self.bucket.actor, key] = self.scheduler.now - result.last_modified
        elif verb == "create" and "/claims/" in key:
            self._check_takeover(key)
        elif verb == "create" and "/dead/" in key:
            failures = self._keys(key.rpartition(".")[0].replace("/dead/", "/failures/") + ".")
            if len(failures) <= self.scenario.max_retries:
                raise Violation(f"7: {key} was declared dead after {len(failures)} failures")
        elif verb == "create" and "/failures/" in key:
            self._check_failure(msgspec.json.decode(self.bucket.memory.get(key), type=FailureRecord))
        elif verb == "delete" and key.startswith(OUT_PREFIX):
            self._check_switch(key)
        elif verb == "put" and "/claims/" in key:
            metadata = self.bucket.memory.head(key).metadata or {}
            if metadata.get("state") == "released":
                self.released.add(key)

    def _check_seal(self, seal: SealRecord) -> None:
        stage = f"{RUN_PREFIX}stages/{seal.stage:02d}/"
        committed = [record for key, record in self.commits.items() if key.startswith(stage)]
        if len(committed) != seal.item_count or {record.item for record in committed} != set(range(seal.item_count)):
            raise Violation(f"3: stage {seal.stage} sealed with {len(committed)} of {seal.item_count} items committed")
        rows = sum(record.counts.rows_in for record in committed)
        out = sum(record.counts.rows_out + record.counts.filtered for record in committed)
        if rows != out or rows != seal.counts.rows_in:
            raise Violation(f"3: stage {seal.stage} sealed though rows are not conserved")
        if seal.final:
            self._check_output("at the seal")
            self.sealed_at = self.scheduler.now

    def _check_takeover(self, key: str) -> None:
        entry = keys.parse_entry(key)
        before = f"{key.rpartition('.')[0]}.{(entry.epoch or 0) - 1:05d}"
        if (
            entry.epoch == 1
            or before in self.released
            or before.replace("/claims/", "/failures/") in self._keys(before.replace("/claims/", "/failures/"))
        ):
            return
        # What counts is the lease as the taker last saw it: a holder whose clock stood still may renew between the look and the claim,
        # which costs double work and nothing else. 2 s: a grain of the clock and some drift; holders stop 5 s before.
        age = self.looks.get((self.bucket.actor, before))
        if age is None or age < self.scenario.lease_seconds - 2.0:
            raise Violation(f"4: {key} took over a lease that was {age} s old when its taker looked")

    def _check_failure(self, record: FailureRecord) -> None:
        if record.kind == "takeovers":
            claims = self._keys(RUN_PREFIX + keys.item_prefix(record.stage, "claims", record.item))
            vanished = [k for k in claims if k not in self.released]
            if len(vanished) <= self.scenario.max_takeovers:
                raise Violation(f"7: item {record.item} was charged for {len(vanished)} takeovers")
        elif (record.stage, record.item, record.epoch) not in self.task_failures:
            raise Violation(f"7: a failure was recorded that was not the task's: {record}")

    def _check_switch(self, key: str) -> None:
        if key not in self.old:
            raise Violation(f"2: {key} of the output was deleted")
        if not self._keys(f"{OUT_PREFIX}_cloudshard/"):
            raise Violation("2: old data was deleted before the new data was switched on")
        self._check_output("when old data was deleted")

    def _keys(self, prefix: str) -> list[str]:
        return [info.key for page in self.bucket.memory.list(prefix) for info in page.objects]

    def expected_rows(self) -> Counter[int]:
        rows = [row for item in range(self.scenario.items) for row in rows_of(item)]
        for _ in range(self.scenario.stages):
            rows = [row for row in rows if row % MODULUS]
        return Counter(rows)

    def _check_output(self, when: str, *, complete: bool = True) -> None:
        found: Counter[int] = Counter()
        last = f"{RUN_PREFIX}stages/{self.scenario.stages - 1:02d}/commits/"
        named = {OUT_PREFIX + part.key for key, record in self.commits.items() if key.startswith(last) for part in record.parts}
        for key in self._keys(f"{OUT_PREFIX}part-"):
            if key not in named:
                raise Violation(f"2: {key} is no committed part ({when})")
            found.update(json.loads(self.bucket.memory.get(key)))
        expected = self.expected_rows()
        if found != expected if complete else found - expected:
            raise Violation(f"2: the output {when} is not the set of rows: missing {expected - found}, too many {found - expected}")

    # ------------------------------------------------------------ workers

    def spawn(self, delay: float = 0.0) -> None:
        self.born += 1
        name = f"w{self.born}"
        self.scheduler.spawn(lambda: self._worker(name), delay)

    def _worker(self, name: str) -> None:
        chaos = self.scenario.chaos
        if self.crashes >= self.scenario.max_crashes:
            chaos = replace(chaos, crash=0.0)
        process = Process(self.scheduler, chaos, name)
        self.processes.append(process)
        try:
            if self._live(process):
                self.finished.append(name)
            else:
                self.spawn(self.rng.uniform(0.0, 30.0))
        except Killed:
            self.crashes += 1
            self.spawn(self.rng.uniform(0.0, 30.0))
        except RunFailed:
            self.failed.append(name)
        except Transient:
            self.spawn(self.rng.uniform(0.0, 30.0))
        except Exception as error:
            self.errors.append(error)

    def _store(self, process: Process, prefix: str) -> ReliableStore:
        return ReliableStore(
            SimulatedStore(self.bucket, process, prefix),
            monotonic=process.monotonic,
            sleep=process.pause,
            rng=self.rng,
            deadline_seconds=30.0,
        )

    def _live(self, process: Process) -> bool:
        """A worker's life; False: it was drained and leaves before the run is complete."""
        store = self._store(process, RUN_PREFIX)
        output = self._store(process, OUT_PREFIX)
        around = Surroundings(
            monotonic=process.monotonic,
            nonce=lambda: f"{self.rng.getrandbits(64):016x}",
            rng=self.rng,
            parallel_map=lambda call, values: [call(value) for value in values],
        )
        identity = WorkerIdentity(process.name, "host", 1)
        replaces = [key[len(OUT_PREFIX) :] for key in self.old]
        run, _ = elect(store, self.planned, self.settings, identity, replaces=replaces, surroundings=around)
        ledger = Ledger(store, run, identity, Hooks(next_items, lambda _stage: output), surroundings=around)
        while True:
            stage = ledger.current_stage()
            if stage is None:
                return True
            before = stage.lost_races
            claims = stage.acquire(self.rng.randint(1, 3))
            self.lost_races += stage.lost_races - before
            self.claims += len(claims)
            if not claims and ledger.try_seal(stage) is None:
                process.pause(self.rng.uniform(1.0, 5.0))
            for number, claim in enumerate(claims):
                if self.scenario.drain and self.rng.random() < self.scenario.drain:
                    for held in claims[number:]:
                        stage.release(held)
                    return False
                self._attempt(process, ledger, stage, claim, store, output)

    def _attempt(
        self, process: Process, ledger: Ledger, stage: StageLedger, claim: Claim, store: ReliableStore, output: ReliableStore
    ) -> None:
        started = store.now()
        try:
            for _ in range(self.rng.randint(0, 3) if self.scenario.work else 0):
                process.pause(self.rng.uniform(0.0, 0.5) * claim.lease_seconds)
                if claim.expired(process.monotonic):
                    raise LeaseLost("stopped by its own clock")
                if process.monotonic() >= claim.renew_at:
                    stage.renew(claim)
            if self.rng.random() < self.scenario.chaos.infrastructure_error:
                raise StoreError("the disk is full")
            poisoned = claim.item < self.scenario.poison and not self.cured and stage.number == 0
            if poisoned or self.rng.random() < self.scenario.chaos.task_failure:
                self.task_failures.add((stage.number, claim.item, claim.epoch))
                stage.fail(claim, self._failure(stage, claim, process, started))
                return
            record = self._execute(ledger, stage, claim, store, output, process, started)
        except LeaseLost:
            stage.forget(claim)
            return
        except Transient:
            raise
        except StoreError:
            stage.release(claim)
            return
        for last in (False, True):
            try:
                stage.commit(claim, record, output)
                return
            except Transient:
                if last:
                    raise

    def _failure(self, stage: StageLedger, claim: Claim, process: Process, started: float) -> FailureRecord:
        return FailureRecord(
            stage=stage.number,
            item=claim.item,
            epoch=claim.epoch,
            nonce=claim.nonce,
            worker=process.name,
            host="host",
            started=started,
            finished=started,
            kind="error",
            error_type="ValueError",
            message="no",
        )

    def _execute(
        self,
        ledger: Ledger,
        stage: StageLedger,
        claim: Claim,
        store: ReliableStore,
        output: ReliableStore,
        process: Process,
        started: float,
    ) -> CommitRecord:
        if stage.number == 0:
            rows = rows_of(claim.item)
        else:
            piece = claim.work.inputs[0]
            rows = json.loads(store.get(piece.url.removeprefix(f"{store.url}/")))
        kept = [row for row in rows if row % MODULUS]
        body = json.dumps(kept).encode()
        parts: tuple[PartRecord, ...] = ()
        if kept and stage.spec.sink.url is None:
            key = keys.run_data(stage.number, claim.item, claim.nonce, 0, ".json")
            store.put(key, body)
            parts = (PartRecord(key=key, rows=len(kept), bytes=len(body), checksum="x", base="run"),)
        elif kept:
            key = keys.part_name(claim.item, 0, ledger.tag, ".json")
            upload = output.begin_upload(key, part_size=1 << 20)
            sent = output.upload_part(upload, 1, body)
            parts = (PartRecord(key=key, rows=len(kept), bytes=len(body), checksum="x", upload=upload, upload_parts=(sent,)),)
        lost = 1 if self.scenario.cheat and claim.item == 0 and stage.number == 0 else 0
        counts = RowCounts(rows_in=len(rows) + lost, rows_out=len(kept), filtered=len(rows) - len(kept))
        step = StepCounts(step="filter", rows_in=len(rows), rows_out=len(kept), filtered=len(rows) - len(kept))
        return CommitRecord(
            stage=stage.number,
            item=claim.item,
            epoch=claim.epoch,
            nonce=claim.nonce,
            worker=process.name,
            host="host",
            started=started,
            finished=started,
            parts=parts,
            counts=counts,
            steps=(step,),
        )

    # ------------------------------------------------------------ the whole story

    def play(self) -> None:
        """Run to the end, wake every zombie, and check all invariants. Raises Violation."""
        for _ in range(self.scenario.workers):
            self.spawn(self.rng.uniform(0.0, 2.0))
        if self.scenario.cheat:
            self._play_cheat()
            return
        self._until_done()
        if self.scenario.poison and not self.finished:
            if not self.failed:
                raise Violation("5: a run with dead items did not end as failed")
            self._check_output("of a failed run", complete=False)
            self._retry()
            self._until_done(though_failed=True)  # a worker from before the retry may still end as failed
        if self.failed and not self.finished and self._only_charged_deaths():
            return
        if not self.finished:
            raise Violation(f"5: the run did not end: {self.scheduler.now:.0f} s, {self.errors}, failed {self.failed}")
        self.scheduler.drain(max_seconds=1000.0)
        self._raise_errors()
        self._check_output("after the end")
        for key in self.old:
            if key in self._keys(OUT_PREFIX):
                raise Violation("2: replaced data is still there")

    def _play_cheat(self) -> None:
        self.scheduler.run(until=lambda: bool(self.finished or self.failed or self.errors), max_seconds=120 * self.scenario.lease_seconds)
        if self.failed and self._only_charged_deaths():
            return
        if self.finished or not any(isinstance(error, IntegrityError) for error in self.errors):
            raise Violation(f"3: a lost row was not noticed: {self.errors}")

    def _until_done(self, *, though_failed: bool = False) -> None:
        def done() -> bool:
            return bool(self.finished or self.errors or (self.failed and not though_failed))

        self.scheduler.run(until=done, max_seconds=120 * self.scenario.lease_seconds)
        self._raise_errors()

    def _raise_errors(self) -> None:
        for error in self.errors:
            if isinstance(error, (Violation, CloudshardError)):
                raise Violation(f"a worker saw an impossible thing: {error!r}") from error
            raise error

    def _only_charged_deaths(self) -> bool:
        """With very many random failures an item may die rightly: every death must be covered by counted failures."""
        dead = [key for stage in ("00", "01") for key in self._keys(f"{RUN_PREFIX}stages/{stage}/dead/")]
        revived = {key.replace("/revived/", "/dead/") for key in self._keys(f"{RUN_PREFIX}stages/00/revived/")}
        dead = [key for key in dead if key not in revived]
        for key in dead:
            failures = self._keys(key.rpartition(".")[0].replace("/dead/", "/failures/") + ".")
            if len(failures) <= self.scenario.max_retries:
                raise Violation(f"7: {key} is dead after {len(failures)} failures")
        return bool(dead)

    def _retry(self) -> None:
        self.cured = True
        self.failed.clear()
        for key in self._keys(f"{RUN_PREFIX}stages/00/dead/"):
            entry = keys.parse_entry(key)
            assert entry.epoch is not None
            record = RevivedRecord(stage=0, item=entry.item, epoch=entry.epoch, nonce=f"{self.rng.getrandbits(64):016x}", by="test")
            self.bucket.memory.put(RUN_PREFIX + keys.entry(0, "revived", entry.item, entry.epoch), encode(record))
        for _ in range(self.scenario.workers):
            self.spawn(self.rng.uniform(0.0, 2.0))


STORM = Chaos(
    lost_request=0.02,
    lost_answer=0.03,
    throttled=0.02,
    conflict=0.02,
    duplicate=0.03,
    crash=0.004,
    freeze=0.004,
    frozen_clock=0.3,
    task_failure=0.03,
    infrastructure_error=0.02,
)


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed: 3–6 workers, up to two stages, with or without overwriting, dead items, drains."""
    rng = random.Random(seed ^ 0x5EED)
    cheat = rng.random() < 0.04
    return Scenario(
        seed=seed,
        cheat=cheat,
        workers=rng.randint(3, 6),
        items=rng.randint(1, 5),
        stages=rng.choice((1, 1, 1, 2)),
        overwrite=rng.random() < 0.2,
        poison=0 if cheat else rng.choice((0, 0, 0, 0, 0, 0, 1)),
        drain=rng.choice((0.0, 0.0, 0.05)),
        chaos=STORM if rng.random() < 0.8 else replace(STORM, crash=0.02, freeze=0.02, lost_answer=0.1),
    )


def play(seed: int) -> Run:
    """Play one seed; raises Violation with the seed in its text."""
    run = Run(scenario_of(seed))
    try:
        run.play()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
    return run
