"""A run on a local folder with the fake executor: real ledger, real processes."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudshard.ledger.election import elect
from cloudshard.ledger.ledger import Hooks, Ledger
from cloudshard.ledger.records import FailureRecord, InputRange, RunSettings, WorkItem, decode
from cloudshard.ledger.stage import WorkerIdentity
from cloudshard.plan.boundary import next_items
from cloudshard.plan.values import Plan, SinkSpec, SourceSpec, StageSpec, StepSpec
from cloudshard.store.registry import open_store
from cloudshard.worker.events import Event, Note
from cloudshard.worker.resources import Shares
from cloudshard.worker.supervisor import Options, Supervisor
from cloudshard.worker.zygote import start_zygote

EXECUTOR = "tests.worker.fake_executor:make"


@dataclass
class FakePlan:
    plan: Plan
    items: tuple[WorkItem, ...]
    pickles: dict[str, bytes] = field(default_factory=dict)
    fingerprint: str = "f" * 64
    fields: dict[str, Any] = field(default_factory=dict)


def plan_of(folder: Path, items: int, rows: int, params: dict[str, Any]) -> FakePlan:
    stage = StageSpec(
        index=0,
        source=SourceSpec(format="jsonl"),
        steps=(StepSpec(kind="map", name="00-map-fake", params=params),),
        sink=SinkSpec(format="jsonl", url=f"file://{folder}/out"),
    )
    work = tuple(
        WorkItem(i, "shard", (InputRange(f"fake:///object-{i}", 10_000, "x", i * rows, (i + 1) * rows),), weight=rows) for i in range(items)
    )
    return FakePlan(Plan(name="fake", stages=(stage,)), work)


class Run:
    """``params``: see the fake executor. ``work`` is one worker in this process; its children are real."""

    def __init__(self, folder: Path, *, items: int = 6, rows: int = 10, settings: RunSettings | None = None, **params: Any) -> None:
        self.folder = folder
        self.rows = items * rows
        self.events: list[Event] = []
        self.store = open_store(f"file://{folder}/run")
        self.plan = plan_of(folder, items, rows, params)
        self.settings = settings or RunSettings()
        self.identity = WorkerIdentity("w-test", "host", os.getpid())
        self.record, _ = elect(self.store, self.plan, self.settings, self.identity)

    def ledger(self, worker: str = "w-test") -> Ledger:
        hooks = Hooks(next_items=next_items, open_output=lambda spec: open_store(spec.sink.url or ""))
        return Ledger(self.store, self.record, WorkerIdentity(worker, "host", os.getpid()), hooks)

    def supervisor(self, *, processes: int = 2, child_bytes: int = 1 << 30, budget_bytes: int = 4 << 30, **options: Any) -> Supervisor:
        return Supervisor(
            self.ledger(),
            start_zygote(("tests.worker.fake_executor",)),
            Shares(processes, child_bytes, budget_bytes),
            Options(executor=EXECUTOR, **options),
            lambda spec: open_store(spec.sink.url or ""),
            observer=self.events.append,
        )

    def work(self, **options: Any) -> int:
        self.last = self.supervisor(**options)
        return self.last.run()

    def output(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for path in sorted((self.folder / "out").glob("part-*.jsonl")):
            found.update(map(int, path.read_text().split()))
        return found

    def missing(self) -> list[int]:
        found = self.output()
        assert all(count == 1 for count in found.values()), "a row is there twice"
        return sorted(set(range(self.rows)) - set(found))

    def failures(self) -> list[FailureRecord]:
        found = []
        for page in self.store.list("stages/00/failures/"):
            found += [decode(FailureRecord, self.store.get(info.key), where=info.key) for info in page.objects]
        return found

    def keys(self, prefix: str) -> list[str]:
        return [info.key for page in self.store.list(prefix) for info in page.objects]

    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Note))
