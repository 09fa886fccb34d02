"""One stage of a run as one worker sees it: find free items, claim, renew, commit, fail, release.

Discovery. A worker prefers blocks that nobody has touched (one LIST with delimiter tells which), and works through such a block
in order. When none is left it shares blocks with others, starting at a random item, and looks again after a lost race. So
workers seldom meet, and a worker that meets nobody lists each block twice in its life.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from cloudshard.errors import AlreadyExists, IntegrityError, LeaseLost, NotFound, RunFailed
from cloudshard.ledger import keys
from cloudshard.ledger.claims import RELEASED, Claim, boot_clock
from cloudshard.ledger.decide import Decision, ItemSeen, State, decide, memory_class
from cloudshard.ledger.publish import discard, publish
from cloudshard.ledger.records import (
    ClaimRecord,
    CommitRecord,
    DeadRecord,
    FailureRecord,
    RunSettings,
    WorkItem,
    decode,
    encode,
)
from cloudshard.ledger.view import inspect_lease, items_of, read_block
from cloudshard.plan.values import StageSpec
from cloudshard.store.port import Store

T = TypeVar("T")
U = TypeVar("U")

#: HEADs of other workers' leases in one fruitless pass over the blocks (to see a release before its lease ends).
INSPECTED_LEASES = 32
#: Blocks that one fruitless `acquire` looks into at most: bounds what idle workers cost while others finish a large stage.
BLOCKS_PER_LOOK = 64


def threaded_map(call: Callable[[T], U], values: Iterable[T]) -> Iterable[U]:
    """Map with 16 requests in flight, in order."""
    todo = list(values)
    if len(todo) < 2:
        return [call(value) for value in todo]
    with ThreadPoolExecutor(min(16, len(todo))) as pool:
        return list(pool.map(call, todo))


class WorkerIdentity(msgspec.Struct, frozen=True):
    """Who claims."""

    worker: str
    host: str
    pid: int


@dataclass(frozen=True)
class Surroundings:
    """What the ledger takes from outside: clock, randomness, parallelism. The simulation gives its own."""

    monotonic: Callable[[], float] = boot_clock
    nonce: Callable[[], str] = lambda: secrets.token_hex(8)
    rng: random.Random = random.Random()  # noqa: RUF009 - one generator for all is meant
    parallel_map: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = threaded_map


class StageProgress(NamedTuple):
    """What this worker knows without asking. ``live``: items that it holds itself."""

    total: int
    committed: int
    dead: int
    live: int

    @property
    def pending(self) -> int:
        """Items not known to be committed or dead."""
        return self.total - self.committed - self.dead


class _Candidate(NamedTuple):
    seen: ItemSeen
    decision: Decision


class StageLedger:
    """The work items of one stage. Thread-safe: claims, commits and renewals may come from several threads at once."""

    def __init__(
        self,
        store: Store,
        spec: StageSpec,
        items: Sequence[WorkItem],
        settings: RunSettings,
        identity: WorkerIdentity,
        *,
        server_now: Callable[[], float],
        surroundings: Surroundings,
    ) -> None:
        self.store = store
        self.spec = spec
        self.items = items
        self.settings = settings
        self.lost_races = 0
        self.takeovers = 0
        self._identity = identity
        self._server_now = server_now
        self._around = surroundings
        self._lock = threading.RLock()
        self._acquiring = threading.Lock()
        self._block_count = -(-len(items) // keys.BLOCK_ITEMS)
        self._open_blocks = set(range(self._block_count))
        self._touched: set[int] = set()
        self._committed: dict[int, set[int]] = {block: set() for block in range(self._block_count)}
        self._committed_count = 0
        self._dead: set[int] = set()
        self._held: dict[int, Claim] = {}
        self._records: dict[int, dict[int, bytes]] = {}
        self._queue: deque[_Candidate] = deque()
        self._pass: list[int] | None = None
        self._pass_fruitless = True
        self._pass_shared = False
        self._inspections = 0
        self._free_at: float | None = None

    # ------------------------------------------------------------ what is known

    @property
    def number(self) -> int:
        """Number of the stage."""
        return self.spec.index

    def progress(self) -> StageProgress:
        """Counts from what this worker has seen; no request."""
        with self._lock:
            return StageProgress(len(self.items), self._committed_count, len(self._dead), len(self._held))

    @property
    def complete(self) -> bool:
        """Whether every item is known to be committed."""
        with self._lock:
            return self._committed_count == len(self.items)

    @property
    def stuck(self) -> bool:
        """Whether every item is known to be committed or dead, and at least one is dead."""
        with self._lock:
            return bool(self._dead) and self._committed_count + len(self._dead) >= len(self.items)

    @property
    def dead_items(self) -> tuple[int, ...]:
        """Items seen dead."""
        with self._lock:
            return tuple(sorted(self._dead))

    def seconds_until_free(self) -> float | None:
        """After a fruitless ``acquire``: when the first lease seen ends, in seconds from now; None: no lease was seen."""
        return None if self._free_at is None else max(0.0, self._free_at - self._server_now())

    # ------------------------------------------------------------ claiming

    def acquire(self, limit: int) -> list[Claim]:
        """Claim up to ``limit`` items. An empty list: nothing is free at the moment (all is committed, dead or held)."""
        claims: list[Claim] = []
        with self._acquiring:
            while len(claims) < limit:
                candidate = self._next_candidate()
                if candidate is None:
                    break
                claim = self._try_claim(candidate)
                if claim is not None:
                    claims.append(claim)
        return claims

    def _next_candidate(self) -> _Candidate | None:
        looked = 0
        while not self._queue:
            block = self._next_block() if looked < BLOCKS_PER_LOOK else None
            if block is None:
                return None
            self._look_into(block)
            looked += 1
        return self._queue.popleft()

    def _next_block(self) -> int | None:
        """The next block of this pass; None ends the pass (the next call begins another)."""
        if self._pass is None:
            self._free_at = None
            self._inspections = INSPECTED_LEASES if self._pass_fruitless else 0
            self._pass_fruitless = True
            self._pass_shared = False
            with self._lock:
                self._pass = sorted(self._open_blocks)
            self._around.rng.shuffle(self._pass)
        untouched = self._untouched(self._pass)
        if untouched:
            block = self._around.rng.choice(untouched)
            self._pass.remove(block)
            return block
        if not self._pass_shared:  # from here on others are met: what they have completed meanwhile needs no look
            self._pass_shared = True
            self._refresh_complete()
        while self._pass:
            block = self._pass.pop()
            if block in self._open_blocks:
                return block
        self._pass = None
        return None

    def _refresh_complete(self) -> None:
        """One LIST says which blocks are complete, so that nobody looks into them again."""
        if self._block_count < 2:
            return
        for page in self.store.list(f"{keys.stage(self.number)}blocks/"):
            for info in page.objects:
                self._mark_block_complete(int(info.key.rpartition("-")[2].removesuffix(".jsonl")))

    def _untouched(self, blocks: list[int]) -> list[int]:
        """Blocks without any claim, by one LIST with delimiter; once all have been touched nobody asks again."""
        if len(self._touched) < self._block_count and len(blocks) > 1:
            for page in self.store.list(keys.folder(self.number, "claims"), delimiter="/"):
                self._touched.update(int(prefix.rstrip("/").rpartition("-")[2]) for prefix in page.prefixes)
        return [block for block in blocks if block not in self._touched]

    def _look_into(self, block: int) -> None:
        """List a block and queue what is free in it."""
        with self._lock:
            held = set(self._held)
        view = read_block(self.store, self.number, block, len(self.items), own=held)
        now = self._server_now()
        free: list[_Candidate] = []
        others = False
        for seen in view.values():
            if seen.committed:
                self._mark_committed(seen.item)
                continue
            if seen.item in held:
                continue
            decision = self._decide(seen, now)
            others = others or decision.state is State.BUSY
            if decision.state is State.FREE:
                free.append(_Candidate(seen, decision))
                with self._lock:
                    self._dead.discard(seen.item)
            elif decision.state is State.BUSY:
                self._free_at = decision.free_at if self._free_at is None else min(self._free_at, decision.free_at)
            elif decision.state is State.EXHAUSTED:
                self._write_dead(seen.item, decision.next_epoch, seen.counted_failures, "the retry budget is spent")
            else:
                with self._lock:
                    self._dead.add(seen.item)
        if others and free:
            start = self._around.rng.randrange(len(free))
            free = free[start:] + free[:start]
        self._queue.extend(free)
        self._close_block_if_complete(block)

    def _decide(self, seen: ItemSeen, now: float) -> Decision:
        """Decide; look at a lease itself (HEAD) before calling it over, and at some running ones when there is nothing else to do."""
        decision = decide(seen, now, self.settings)
        newest = seen.newest
        if decision.state is State.BUSY and self._inspections > 0:
            self._inspections -= 1
            inspect_lease(self.store, self.number, seen, newest)
            return decide(seen, now, self.settings)
        if decision.state is State.FREE and newest in decision.vanished:
            inspect_lease(self.store, self.number, seen, newest)
            decision = decide(seen, now, self.settings)
        if decision.state is State.FREE and len(decision.vanished) >= self.settings.max_takeovers:
            for epoch in decision.vanished:
                inspect_lease(self.store, self.number, seen, epoch)
            decision = decide(seen, now, self.settings)
            if decision.state is State.FREE and len(decision.vanished) > self.settings.max_takeovers:
                return self._charge_takeover(seen, decision.vanished[-1], now)
        return decision

    def _charge_takeover(self, seen: ItemSeen, epoch: int, now: float) -> Decision:
        """Alone and careful, and it still made its holder vanish: from now on that is the item's own failure."""
        record = FailureRecord(
            stage=self.number,
            item=seen.item,
            epoch=epoch,
            nonce=self._around.nonce(),
            worker=self._identity.worker,
            host=self._identity.host,
            started=now,
            finished=now,
            kind="takeovers",
            error_type="HolderVanished",
            message=f"more than {self.settings.max_takeovers} holders of this item vanished without a word",
        )
        self._create_or_leave(keys.entry(self.number, "failures", seen.item, epoch), encode(record))
        seen.failures.add(epoch)
        return decide(seen, now, self.settings)

    def _try_claim(self, candidate: _Candidate) -> Claim | None:
        seen, decision = candidate
        with self._lock:
            if seen.item in self._committed[keys.block_of(seen.item)] or seen.item in self._held:
                return None
        record = ClaimRecord(
            stage=self.number,
            item=seen.item,
            epoch=decision.next_epoch,
            worker=self._identity.worker,
            nonce=self._around.nonce(),
            host=self._identity.host,
            pid=self._identity.pid,
            started=self._server_now(),
        )
        claim = Claim(record, self.items[seen.item], self.settings, self.settings.lease_seconds, isolate=decision.isolate)
        asked_at = self._around.monotonic()
        try:
            self.store.create(claim.key, claim.body, metadata=claim.metadata())
        except AlreadyExists:
            self.lost_races += 1
            self._queue.clear()  # what was seen is stale: look again
            if self._pass is not None:
                self._pass.append(keys.block_of(seen.item))
            return None
        claim.extend(asked_at)
        self._pass_fruitless = False
        if seen.newest:
            self.takeovers += seen.newest not in seen.failures
            self._learn_from_failures(claim, seen)
        with self._lock:
            self._held[seen.item] = claim
        return claim

    def _learn_from_failures(self, claim: Claim, seen: ItemSeen) -> None:
        """Earlier failures tell which rows to skip and how much memory was not enough."""
        ooms = 0
        for epoch in sorted(seen.failures):
            key = keys.entry(self.number, "failures", seen.item, epoch)
            record = decode(FailureRecord, self.store.get(key), where=f"{self.store.url}/{key}")
            ooms += record.kind == "oom"
            claim.poison_reasons.update({(row.object, row.position): row.reason for row in record.poison})
        claim.poison = frozenset(claim.poison_reasons)
        claim.failures = seen.counted_failures
        claim.memory_class = memory_class(ooms)

    # ------------------------------------------------------------ holding

    def renew(self, claim: Claim) -> None:
        """Extend the lease. Raises LeaseLost when it ended by this worker's own clock (others may have taken over)."""
        asked_at = self._around.monotonic()
        if claim.expired(self._around.monotonic):
            raise LeaseLost("the lease ended before it was renewed", where=f"stage {self.number}, item {claim.item}, epoch {claim.epoch}")
        self.store.put(claim.key, claim.body, metadata=claim.metadata())
        claim.extend(asked_at)

    def release(self, claim: Claim) -> None:
        """Give the claim back: a successor need not wait for the lease's end."""
        with self._lock:
            self._held.pop(claim.item, None)
        self.store.put(claim.key, claim.body, metadata=claim.metadata(RELEASED))

    def forget(self, claim: Claim) -> None:
        """Stop counting the claim as held (its lease is left to end by itself)."""
        with self._lock:
            self._held.pop(claim.item, None)

    # ------------------------------------------------------------ committing

    def commit(self, claim: Claim, record: CommitRecord, output: Store) -> bool:
        """Make this attempt's output *the* output, then publish its parts. False: another attempt was first; ours is discarded.

        When this raises a Transient error the outcome is unknown: call it again, or leave everything as it is (whoever
        seals the stage finishes the publication). Never discard the parts then.
        """
        key = keys.commit(self.number, claim.item)
        body = encode(record)
        won = True
        try:
            self.store.create(key, body)
        except AlreadyExists:
            found = self.store.get(key)
            winner = decode(CommitRecord, found, where=f"{self.store.url}/{key}")
            won = winner.nonce == claim.nonce
            body = found
        if won and self.spec.sink.mode != "overwrite":
            for part in record.parts:
                publish(output if part.base == "output" else self.store, part)
        if not won:
            discard(output, record.parts)
        with self._lock:
            self._held.pop(claim.item, None)
            self._records.setdefault(keys.block_of(claim.item), {})[claim.item] = body
        self._mark_committed(claim.item)
        self._close_block_if_complete(keys.block_of(claim.item))
        return won

    def _mark_committed(self, item: int) -> None:
        with self._lock:
            known = self._committed[keys.block_of(item)]
            if item not in known:
                known.add(item)
                self._committed_count += 1
                self._dead.discard(item)

    def _mark_block_complete(self, block: int) -> None:
        with self._lock:
            if block in self._open_blocks:
                self._open_blocks.discard(block)
                for item in items_of(block, len(self.items)):
                    self._mark_committed(item)

    def _close_block_if_complete(self, block: int) -> None:
        """All committed: keep the block's records in one object, so that sealing and queries read one instead of 256."""
        with self._lock:
            if block not in self._open_blocks or len(self._committed[block]) < len(items_of(block, len(self.items))):
                return
            self._open_blocks.discard(block)
        self.block_records(block)

    def block_records(self, block: int) -> list[bytes]:
        """The commit records of a complete block in item order, as raw JSON; writes the block's summary if there is none."""
        key = keys.block_summary(self.number, block)
        with self._lock:
            known = self._records.pop(block, {})
        items = items_of(block, len(self.items))
        missing = [item for item in items if item not in known]
        if missing:
            try:
                return self.store.get(key).splitlines()
            except NotFound:
                bodies = self._around.parallel_map(lambda item: self.store.get(keys.commit(self.number, item)), missing)
                known.update(zip(missing, bodies, strict=True))
        records = [known[item] for item in items]
        self._create_or_leave(key, b"\n".join(records) + b"\n")
        return records

    def records(self) -> Iterator[CommitRecord]:
        """All commit records in item order. Raises IntegrityError when one is missing or stands in another's place."""
        for block in range(self._block_count):
            bodies = self.block_records(block)
            items = items_of(block, len(self.items))
            where = f"{self.store.url}/{keys.block_summary(self.number, block)}"
            if len(bodies) != len(items):
                raise IntegrityError(f"{len(bodies)} commit records for {len(items)} items", where=where)
            for item, body in zip(items, bodies, strict=True):
                record = decode(CommitRecord, body, where=where)
                if record.item != item or record.stage != self.number:
                    raise IntegrityError(f"the commit record of item {record.item} stands in the place of item {item}", where=where)
                yield record

    # ------------------------------------------------------------ failing

    def fail(self, claim: Claim, failure: FailureRecord) -> Literal["retry", "dead"]:
        """Record that the attempt failed by the task's own fault; spends the retry budget."""
        self._create_or_leave(keys.entry(self.number, "failures", claim.item, claim.epoch), encode(failure))
        failures = claim.failures + 1
        if failures > self.settings.max_retries:
            self._write_dead(claim.item, claim.epoch, failures, failure.message)
        with self._lock:
            self._held.pop(claim.item, None)
        return "dead" if failures > self.settings.max_retries else "retry"

    def _write_dead(self, item: int, epoch: int, failures: int, message: str) -> None:
        record = DeadRecord(stage=self.number, item=item, epoch=epoch, nonce=self._around.nonce(), failures=failures, message=message)
        self._create_or_leave(keys.entry(self.number, "dead", item, epoch), encode(record))
        with self._lock:
            self._dead.add(item)

    def _create_or_leave(self, key: str, body: bytes) -> None:
        try:
            self.store.create(key, body)
        except AlreadyExists:
            return  # somebody recorded the same fact

    def failed(self) -> RunFailed:
        """The error to raise when the stage is stuck: names the dead items and the first one's last words."""
        dead = self.dead_items
        words = ""
        for page in self.store.list(keys.item_prefix(self.number, "dead", dead[0])) if dead else ():
            for info in page.objects:
                words = decode(DeadRecord, self.store.get(info.key), where=f"{self.store.url}/{info.key}").message
        named = ", ".join(map(str, dead[:5])) + (" …" if len(dead) > 5 else "")
        return RunFailed(
            f"{len(dead)} of {len(self.items)} work items are dead after {self.settings.max_retries + 1} failed attempts each: {words}",
            where=f"{self.store.url}, stage {self.number}, items {named}",
            mend="See `cloudshard status`, mend the cause, then `cloudshard retry --all-failed` and run again.",
        )
