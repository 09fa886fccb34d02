"""Local execution: the fused plan in this process, lazily, in input order, without a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloudshard.engine.attempt import AttemptContext, AttemptFailure
from cloudshard.engine.block import Block
from cloudshard.engine.driver import Driver
from cloudshard.engine.output import MemoryOutput
from cloudshard.functions import load
from cloudshard.ledger.records import InputRange, WorkItem
from cloudshard.plan.logical import Checkpoint, Pipeline
from cloudshard.plan.values import SinkSpec, StageSpec, StepSpec


def iter_blocks(pipeline: Pipeline) -> Iterator[Block]:
    """The output of the pipeline, block by block. A limit is exact; reading stops when it is reached."""
    from cloudshard.plan.build import cut, source_spec, step_specs
    from cloudshard.plan.inputs import list_inputs

    listed = list_inputs(pipeline.source.urls, pipeline.source.storage_options, pipeline.source.options)
    steps, pickles = step_specs([step for step in pipeline.steps if not isinstance(step, Checkpoint)])
    source = source_spec(pipeline.source)
    pieces = cut(listed, source, num_shards=None, target_bytes=32 << 20)
    yield from _run(pieces, StageSpec(index=0, source=source, steps=(), sink=SinkSpec(format="jsonl")), steps, pickles)


def _run(pieces: Sequence[InputRange], stage: StageSpec, steps: Sequence[StepSpec | None], pickles: dict[str, bytes]) -> Iterator[Block]:
    import msgspec

    from cloudshard.store.registry import open_object

    named = tuple(step for step in steps if step is not None)
    ready: list[Block] = []
    driver = Driver(
        msgspec.structs.replace(stage, steps=named),
        open_object=open_object,
        load_function=lambda reference: load(reference, pickles.__getitem__),
        output=MemoryOutput(ready.append),
        exact_limits=True,
    )
    try:
        for index, piece in enumerate(pieces):
            item = WorkItem(index, "shard", (piece,), piece.end - piece.start)
            for _ in driver.iter_item(item, AttemptContext(0, index, 1, "local", "local")):
                yield from ready
                ready.clear()
            _raise_failures(driver)
            if driver.satisfied:
                break
        driver.drain()
        yield from ready
        _raise_failures(driver)
    finally:
        driver.close()


def _raise_failures(driver: Driver) -> None:
    """A failed item ends local execution with its error."""
    while driver.finished:
        ended = driver.finished.popleft()
        if isinstance(ended, AttemptFailure):
            raise ended.error
