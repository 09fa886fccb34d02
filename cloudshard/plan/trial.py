"""Running sampled rows through a stage's steps in this process, to learn the columns of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cloudshard.engine.attempt import AttemptContext, AttemptFailure
from cloudshard.engine.block import Block, Origin
from cloudshard.engine.driver import Driver
from cloudshard.engine.output import MemoryOutput
from cloudshard.functions import load
from cloudshard.ledger.records import WorkItem
from cloudshard.plan.values import SinkSpec, StageSpec
from cloudshard.store.registry import open_object


def try_stage(stage: StageSpec, blocks: Sequence[Block], pickles: Mapping[str, bytes]) -> list[Block]:
    """The blocks that come out of the stage's steps. The sink's schema is not applied. Raises what the steps' policies let through."""
    out: list[Block] = []
    bare = msgspec.structs.replace(stage, sink=SinkSpec(format="runs"))
    driver = Driver(
        bare,
        open_object=open_object,
        load_function=lambda reference: load(reference, pickles.__getitem__),
        output=MemoryOutput(out.append),
    )
    try:
        moved = [
            Block(Origin(0, block.origin.object, block.origin.unit), block.positions, block.rows, block.table, block.nbytes)
            for block in blocks
        ]
        driver.run_blocks(WorkItem(0, "shard", ()), AttemptContext(stage.index, 0, 1, "trial", "trial"), moved)
        driver.drain()
        for ended in driver.finished:
            if isinstance(ended, AttemptFailure):
                raise ended.error
    finally:
        driver.close()
    return out
