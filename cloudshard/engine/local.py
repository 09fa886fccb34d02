"""Local execution: the fused plan in this process, lazily, in input order, without a run.

Stages follow each other as generators. Behind a boundary rows get the identity that they would have in a run, so that a sample taken there
is the same here. Quarantined and dropped rows are told of in the log (logger ``cloudshard``): nobody else would.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from cloudshard.engine.attempt import AttemptContext, AttemptFailure
from cloudshard.engine.block import Block, Origin
from cloudshard.engine.driver import Driver, run_name
from cloudshard.engine.output import MemoryOutput
from cloudshard.functions import load
from cloudshard.ledger.records import RowCounts, WorkItem
from cloudshard.plan.logical import Pipeline
from cloudshard.plan.values import SinkSpec, SourceSpec, StageSpec

#: Without a boundary the size of work items does not matter, and small ones let ``take`` read little.
_PIECE_BYTES = 32 << 20
_LOG = logging.getLogger("cloudshard")


def iter_blocks(pipeline: Pipeline) -> Iterator[Block]:
    """The output of the pipeline, block by block. A limit is exact; reading stops when it is reached."""
    from cloudshard.plan.build import cut, source_spec, step_specs
    from cloudshard.plan.inputs import list_inputs
    from cloudshard.plan.sample import decide_schemas
    from cloudshard.plan.split import pack
    from cloudshard.plan.stages import Chain, fuse

    objects = list_inputs(pipeline.source.urls, pipeline.source.storage_options, pipeline.source.options)
    steps, pickles = step_specs(pipeline.steps)
    source = source_spec(pipeline.source)
    shards, target = pipeline.num_shards, pipeline.target_shard_bytes
    items: Sequence[WorkItem]
    if any(step is None or step.kind == "limit" for step in steps):
        items = pack(cut(objects, source, num_shards=shards, target_bytes=target), num_shards=shards, target_bytes=target)
    else:
        pieces = cut(objects, source, num_shards=None, target_bytes=_PIECE_BYTES)
        items = [WorkItem(index, "shard", (piece,), piece.end - piece.start) for index, piece in enumerate(pieces)]
    chains, _ = fuse(steps, item_count=len(items))
    (schemas,) = decide_schemas(source, (Chain(chains[0].steps),), SinkSpec(format="jsonl"), objects, pickles)
    sink = SinkSpec(format="jsonl")
    first = StageSpec(
        index=0, source=msgspec.structs.replace(source, schema=schemas.input or source.schema), steps=chains[0].steps, sink=sink
    )
    blocks = _from_input(first, items, pickles)
    for index, chain in enumerate(chains[1:], 1):
        stage = StageSpec(index=index, source=SourceSpec(format="runs"), steps=chain.steps, sink=sink)
        blocks = _from_blocks(stage, _as_runs(blocks, index - 1), pickles)
    return blocks


def _driver(stage: StageSpec, pickles: Mapping[str, bytes], ready: list[Block]) -> Driver:
    from cloudshard.store.registry import open_object

    return Driver(
        stage,
        open_object=lambda url: open_object(url, stage.source.store_options),
        load_function=lambda reference: load(reference, pickles.__getitem__),
        output=MemoryOutput(ready.append),
        exact_limits=True,
    )


def _from_input(stage: StageSpec, items: Sequence[WorkItem], pickles: Mapping[str, bytes]) -> Iterator[Block]:
    ready: list[Block] = []
    driver = _driver(stage, pickles, ready)
    told = _Told()
    try:
        for item in items:
            if driver.satisfied:
                break
            for _ in driver.iter_item(item, AttemptContext(0, item.index, 1, "local", "local")):
                yield from _handed_over(ready)
            told.take(driver)
            yield from _handed_over(ready)
        driver.drain()
        told.take(driver)
        yield from _handed_over(ready)
    finally:
        driver.close()
        told.tell()


def _from_blocks(stage: StageSpec, blocks: Iterable[Block], pickles: Mapping[str, bytes]) -> Iterator[Block]:
    ready: list[Block] = []
    driver = _driver(stage, pickles, ready)
    told = _Told()
    try:
        for _ in driver.iter_blocks(WorkItem(0, "shard", ()), AttemptContext(stage.index, 0, 1, "local", "local"), blocks):
            yield from _handed_over(ready)
        driver.drain()
        told.take(driver)
        yield from _handed_over(ready)
    finally:
        driver.close()
        told.tell()


def _handed_over(ready: list[Block]) -> list[Block]:
    """What has come out, leaving nothing behind."""
    out = ready[:]
    ready.clear()
    return out


def _as_runs(blocks: Iterable[Block], stage: int) -> Iterator[Block]:
    """The blocks as the next stage would read them from the runs of ``stage``: rows are known by their number in their item's run."""
    rows: dict[int, int] = {}
    for block in blocks:
        item = block.origin.item
        first = rows.get(item, 0)
        rows[item] = first + len(block)
        origin = Origin(0, run_name(stage, item, 0), "row")
        yield Block(origin, range(first, rows[item]), rows=block.rows, table=block.table, nbytes=block.nbytes)


class _Told:
    """Results of local items: a failure is raised, suppressed rows are counted and told of."""

    def __init__(self) -> None:
        self._counts = RowCounts()

    def take(self, driver: Driver) -> None:
        """Take the driver's results. Raises the first failure."""
        from cloudshard.ledger.seal import add_counts

        while driver.finished:
            ended = driver.finished.popleft()
            if isinstance(ended, AttemptFailure):
                raise ended.error
            self._counts = add_counts(self._counts, ended.counts)

    def tell(self) -> None:
        """Log what was suppressed."""
        counts = self._counts
        if counts.quarantined or counts.dropped:
            _LOG.warning(
                "%d rows were quarantined and %d dropped after an error (a run keeps the quarantined ones)",
                counts.quarantined,
                counts.dropped,
            )
