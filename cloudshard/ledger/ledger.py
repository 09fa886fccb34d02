"""The ledger of one run as one worker uses it: which stage is current, and the way from one stage to the next."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cloudshard.errors import AlreadyExists, NotFound
from cloudshard.ledger import keys
from cloudshard.ledger.items import decode_items, encode_items
from cloudshard.ledger.records import CommitRecord, RunRecord, SealRecord, StageRecord, WorkItem, decode, encode
from cloudshard.ledger.seal import seal_stage
from cloudshard.ledger.stage import StageLedger, Surroundings, WorkerIdentity
from cloudshard.plan.values import Plan, StageSpec
from cloudshard.store.port import Store


class TimedStore(Store, Protocol):
    """A store that also knows the server's time without asking (:class:`cloudshard.store.reliable.ReliableStore`)."""

    def now(self) -> float:
        """Server time, never ahead of the truth."""
        ...


@dataclass(frozen=True)
class Hooks:
    """What the ledger needs from the rooms above it.

    ``next_items``: the next stage's work items from this stage's commit records (pure). ``open_output``: the store rooted at the
    final sink's URL. ``empty_part``: (file name, bytes, checksum) of a typed part without rows, or None when the format has none.
    """

    next_items: Callable[[StageSpec, Iterable[CommitRecord], str], Sequence[WorkItem]]
    open_output: Callable[[StageSpec], Store]
    empty_part: Callable[[StageSpec, str], tuple[str, bytes, str] | None] = lambda _stage, _tag: None


def run_tag(run: RunRecord) -> str:
    """Eight characters in the names of this run's output files: tells them from those of other runs."""
    return run.nonce[:8]


class Ledger:
    """One run. ``store`` is rooted at the run's prefix."""

    def __init__(
        self,
        store: TimedStore,
        run: RunRecord,
        identity: WorkerIdentity,
        hooks: Hooks,
        *,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.store = store
        self.run = run
        self.plan = msgspec.json.decode(bytes(run.plan), type=Plan)
        self.identity = identity
        self._hooks = hooks
        self._around = surroundings or Surroundings()
        self._seals: dict[int, SealRecord] = {}
        self._stages: dict[int, StageLedger] = {}
        self._rows_in: dict[int, int | None] = {}
        self._lock = threading.RLock()

    @property
    def tag(self) -> str:
        """See :func:`run_tag`."""
        return run_tag(self.run)

    def seal(self, stage: int) -> SealRecord | None:
        """The seal of a stage, if it has one."""
        if stage not in self._seals:
            try:
                body = self.store.get(keys.sealed(stage))
            except NotFound:
                return None
            self._seals[stage] = decode(SealRecord, body, where=f"{self.store.url}/{keys.sealed(stage)}")
        return self._seals[stage]

    def current_stage(self) -> StageLedger | None:
        """The first stage that is not sealed; its list of work items is created if nobody has. None: the run is complete."""
        with self._lock:
            for spec in self.plan.stages:
                if self.seal(spec.index) is None:
                    return self._open(spec)
        return None

    def stage(self, number: int) -> StageLedger:
        """A stage that has begun (for reading its records)."""
        with self._lock:
            return self._open(self.plan.stages[number])

    def _open(self, spec: StageSpec) -> StageLedger:
        if spec.index not in self._stages:
            record = self._stage_record(spec)
            if record.items is not None:
                items: Sequence[WorkItem] = record.items
            else:
                key = record.items_key or ""
                items = decode_items(self.store.get(key), key)
            self._rows_in[spec.index] = record.rows_in
            self._stages[spec.index] = StageLedger(
                self.store, spec, items, self.run.settings, self.identity, server_now=self.store.now, surroundings=self._around
            )
        return self._stages[spec.index]

    def _stage_record(self, spec: StageSpec) -> StageRecord:
        key = keys.stage_record(spec.index)
        where = f"{self.store.url}/{key}"
        try:
            return decode(StageRecord, self.store.get(key), where=where)
        except NotFound:
            made = self._make_stage_record(spec)
        try:
            self.store.create(key, encode(made))
        except AlreadyExists:
            return decode(StageRecord, self.store.get(key), where=where)
        return made

    def _make_stage_record(self, spec: StageSpec) -> StageRecord:
        """The first stage's items were planned before the run was created; a later stage's follow from the commits before it."""
        if spec.index == 0:
            return StageRecord(stage=0, item_count=self.run.item_count, items_key=self.run.items_key)
        before = self._open(self.plan.stages[spec.index - 1])
        items = self._hooks.next_items(before.spec, before.records(), self.store.url)
        rows_in = sum(_rows_to_read(item) for item in items)
        body, suffix = encode_items(items)
        items_key = f"{keys.stage(spec.index)}items{suffix}"
        with contextlib.suppress(AlreadyExists):  # derived from the same commit records: the same items
            self.store.create(items_key, body)
        return StageRecord(stage=spec.index, item_count=len(items), rows_in=rows_in, items_key=items_key)

    def try_seal(self, stage: StageLedger) -> SealRecord | None:
        """Seal the stage if every item is committed. None: not yet. Raises RunFailed when dead items make it impossible."""
        sealed = self.seal(stage.number)
        if sealed is not None:
            return sealed
        if not stage.complete:
            if stage.stuck:
                raise stage.failed()
            return None
        final = stage.number == len(self.plan.stages) - 1
        output = self._hooks.open_output(stage.spec) if final and stage.spec.sink.url else None
        sealed = seal_stage(
            stage,
            run_id=self.run.run_id,
            run_tag=self.tag,
            rows_in=self._rows_in[stage.number],
            final=final,
            output=output,
            replaces=self._replaces() if output is not None else (),
            empty_part=lambda: self._hooks.empty_part(stage.spec, self.tag),
            nonce=self._around.nonce(),
            worker=self.identity.worker,
            now=self.store.now(),
            parallel_map=self._around.parallel_map,
        )
        self._seals[stage.number] = sealed
        return sealed

    def _replaces(self) -> Sequence[str]:
        if self.run.replaces_key is None:
            return ()
        return msgspec.json.decode(self.store.get(self.run.replaces_key), type=list[str])


def _rows_to_read(item: WorkItem) -> int:
    return sum(piece.end - piece.start for piece in item.inputs if piece.unit == "rows")
