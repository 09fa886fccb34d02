"""Runs steps over rows in this process, the way a child does, and gives back all that came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow.parquet as pq

from cloudshard.engine.attempt import AttemptContext, AttemptFailure, AttemptResult
from cloudshard.engine.block import Block
from cloudshard.engine.convert import rows_of
from cloudshard.engine.driver import Driver
from cloudshard.functions import Loaded
from cloudshard.ledger.records import InputRange, PartRecord, WorkItem
from cloudshard.ledger.seal import check_conserved
from cloudshard.plan.values import FunctionRef, SinkSpec, SourceSpec, StageSpec, StepSpec
from cloudshard.store.memory import MemoryStore

NO_FUNCTION = FunctionRef(kind="import", name="none:none", digest="0")


def step(kind: str, function: Any = None, *, name: str | None = None, on_error: str = "raise", **params: Any) -> tuple[StepSpec, Any]:
    """A step and its function."""
    reference = None if function is None else FunctionRef(kind="import", name=f"test:{id(function)}", digest="0")
    spec = StepSpec(kind=kind, name=name or kind, function=reference, params=params, on_error=on_error)  # type: ignore[arg-type]
    return spec, function


class Collected:
    """Output kept in memory, by item; ``parts`` claim what was written so that conservation can be checked."""

    def __init__(self) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.blocks: list[Block] = []
        self.aborted: set[int] = set()
        self.quarantine: dict[int, list[dict[str, Any]]] = {}

    def open(self, item: WorkItem, attempt: AttemptContext) -> _Output:
        self.rows[item.index] = []
        return _Output(self, item.index)


class _Output:
    def __init__(self, collected: Collected, item: int) -> None:
        self.collected = collected
        self.item = item

    def write(self, block: Block, bad_row: Any = None) -> None:
        self.collected.blocks.append(block)
        self.collected.rows[self.item] += block.rows if block.rows is not None else rows_of(block.table)

    def keep_quarantine(self, file: Any, size: int) -> str | None:
        self.collected.quarantine[self.item] = pq.read_table(file).to_pylist()
        return f"quarantine/{self.item}"

    def finish(self) -> tuple[PartRecord, ...]:
        rows = len(self.collected.rows[self.item])
        return (PartRecord(key=f"p{self.item}", rows=rows, bytes=1, checksum=""),) if rows else ()

    def abort(self) -> None:
        self.collected.aborted.add(self.item)
        self.collected.rows.pop(self.item, None)


class Bench:
    """A compiled stage over JSON lines in memory."""

    def __init__(
        self,
        steps: Sequence[tuple[StepSpec, Any]],
        items: Sequence[Iterable[Mapping[str, Any]]] | Sequence[bytes],
        *,
        sink: SinkSpec | None = None,
        source: SourceSpec | None = None,
        careful: bool = False,
        before_row: Callable[[str, int, str], None] | None = None,
        exact_limits: bool = False,
        error_budget: int | None = None,
    ) -> None:
        self.store = MemoryStore("engine")
        self.bodies = [body if isinstance(body, bytes) else b"".join(orjson.dumps(row) + b"\n" for row in body) for body in items]
        functions = {spec.function.name: function for spec, function in steps if spec.function is not None}
        self.out = Collected()
        self.driver = Driver(
            StageSpec(
                index=0,
                source=source or SourceSpec(format="jsonl"),
                steps=tuple(spec for spec, _ in steps),
                sink=sink or SinkSpec(format="jsonl"),
            ),
            open_object=lambda url: (self.store, url.rpartition("/")[2]),
            load_function=lambda reference: Loaded(functions[reference.name]),
            output=self.out,
            careful=careful,
            before_row=before_row,
            exact_limits=exact_limits,
            error_budget=error_budget,
        )
        self.work = [self._item(index, body) for index, body in enumerate(self.bodies)]

    def _item(self, index: int, body: bytes) -> WorkItem:
        info = self.store.put(f"{index}.jsonl", body)
        return WorkItem(index, "shard", (InputRange(f"memory://engine/{index}.jsonl", len(body), info.etag, 0, len(body)),), len(body))

    def run_item(self, index: int, **attempt: Any) -> None:
        self.driver.run_item(self.work[index], AttemptContext(0, index, 1, f"nonce-{index}", "tag", **attempt))

    def run(self, **attempt: Any) -> dict[int, AttemptResult | AttemptFailure]:
        """All items, one after the other, then a drain; results by item. Conservation is checked for each that succeeded."""
        try:
            for index in range(len(self.work)):
                self.run_item(index, **attempt)
            self.driver.drain()
            ended = {result.item: result for result in self.driver.finished}
        finally:
            self.driver.close()
        assert set(ended) == set(range(len(self.work))), "every item gets exactly one result"
        for result in ended.values():
            if isinstance(result, AttemptResult):
                check_conserved(_as_commit(result), "test")
        return ended


def _as_commit(result: AttemptResult) -> Any:
    from cloudshard.ledger.records import CommitRecord

    return CommitRecord(
        stage=0,
        item=result.item,
        epoch=1,
        nonce=result.nonce,
        worker="w",
        host="h",
        started=0,
        finished=0,
        parts=result.parts,
        counts=result.counts,
        steps=result.steps,
    )


__all__ = ["AttemptFailure", "AttemptResult", "Bench", "Collected", "step"]
