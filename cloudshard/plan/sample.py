"""Deciding schemas once, before the run: declared, or learnt from samples, so that all parts of an output have the same.

Samples come from the head and tail of up to ``SAMPLE_FILES`` objects that are spread evenly over the input. Where the output's columns
follow from user code, that code runs on the sampled rows, in this process: **planning may call your functions** on a few hundred rows. A
declared ``schema=`` on the sink avoids it. JSON lines need no schema: without boundaries nothing is sampled for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from cloudshard.engine.block import Block
from cloudshard.errors import RecipeError
from cloudshard.formats.registry import get_format
from cloudshard.formats.schema import encode_schema, infer_block, unify
from cloudshard.plan.inputs import InputObject
from cloudshard.plan.stages import Chain
from cloudshard.plan.values import SinkSpec, SourceSpec, StageSpec, StepSpec

#: Objects and rows of each: at first, and again when no row comes through the steps.
SAMPLE_FILES = 16
SAMPLE_ROWS = 200
_WIDER_FILES = 64
_WIDER_ROWS = 1000
#: Sinks that write rows as they are.
_SCHEMALESS = ("jsonl",)
#: Steps that leave a row's columns, and its form, as they are.
_NEUTRAL = ("sample", "limit", "row_number")
#: Steps that only choose rows: left out of the trial, where each row is precious.
_CHOOSING = ("sample", "limit")


@dataclass(frozen=True, slots=True)
class StageSchemas:
    """Schemas of one stage, encoded; None where none is needed. ``warnings`` are for the plan."""

    input: str | None = None
    output: str | None = None
    warnings: tuple[str, ...] = ()


def decide_schemas(
    source: SourceSpec, chains: Sequence[Chain], sink: SinkSpec, objects: Sequence[InputObject], pickles: Mapping[str, bytes]
) -> tuple[StageSchemas, ...]:
    """One :class:`StageSchemas` per chain.

    Raises SchemaError naming the files when columns cannot be widened to one type, StepError when user code raises on a sampled row and the
    step's policy is "raise", RecipeError when the output's columns cannot be learnt.
    """
    declared = _declared(chains, sink)
    needs_output = [
        schema is None and (chain.boundary is not None or sink.format not in _SCHEMALESS)
        for chain, schema in zip(chains, declared, strict=True)
    ]
    needs_input = source.schema is None and _needs_input_schema(source, chains[0].steps)
    if not needs_input and not any(needs_output):
        return tuple(StageSchemas(input=before, output=after) for before, after in zip((source.schema, *declared), declared, strict=False))
    last = max((at for at, needed in enumerate(needs_output) if needed), default=-1)
    _refuse_expensive([step for chain in chains[: last + 1] for step in chain.steps])
    found: tuple[StageSchemas, ...] = ()
    for files, rows in ((SAMPLE_FILES, SAMPLE_ROWS), (_WIDER_FILES, _WIDER_ROWS)):
        blocks = sample_blocks(source, objects, files=files, rows=rows)
        found, starved = _learn(source, chains, declared, blocks, pickles, needs_input=needs_input, last=last)
        if starved is None:
            return found
        read = sum(len(block) for block in blocks)
        if not read:  # nothing to learn from, and nothing to write
            return found
    raise RecipeError(
        f"none of the {read:,} sampled rows comes through {starved}, so the columns of the output cannot be learnt",
        mend="Declare them: schema= on the sink, or schema: {column: type} in a recipe",
    )


def _declared(chains: Sequence[Chain], sink: SinkSpec) -> list[str | None]:
    """The declared output schema of each chain: the sink's, also for the stages before it from which rows are only chosen."""
    schemas = [sink.schema]
    for later in reversed(chains[1:]):
        schemas.append(schemas[-1] if all(step.kind in _CHOOSING for step in later.steps) else None)
    return schemas[::-1]


def sample_blocks(source: SourceSpec, objects: Sequence[InputObject], *, files: int, rows: int) -> list[Block]:
    """Rows of the head and tail of up to ``files`` objects, evenly spread, in input order."""
    kind = get_format(source.format)
    chosen = spread([found for found in objects if found.info.size], files)
    if not chosen:
        return []
    with ThreadPoolExecutor(min(8, len(chosen))) as pool:
        sampled = pool.map(lambda found: list(kind.sample(found.store, found.info, found.url, source.options, rows=rows)), chosen)
        return [block for blocks in sampled for block in blocks]


def spread(objects: Sequence[InputObject], count: int) -> list[InputObject]:
    """Up to ``count`` of them at equal distances, the first and the last among them."""
    if len(objects) <= count:
        return list(objects)
    return [objects[round(at * (len(objects) - 1) / (count - 1))] for at in range(count)]


def _needs_input_schema(source: SourceSpec, steps: Sequence[StepSpec]) -> bool:
    """Tables need one schema over all files; rows as dicts need one only where they become tables before any function sees them."""
    if not get_format(source.format).row_oriented:
        return True
    first = next((step for step in steps if step.kind not in _NEUTRAL), None)
    return first is not None and (first.kind == "sql" or (first.kind == "map_batches" and first.params.get("as") != "rows"))


def _refuse_expensive(steps: Iterable[StepSpec]) -> None:
    for step in steps:
        if step.kind == "map_async" or step.long_call_seconds is not None:
            raise RecipeError(
                f"the columns of the output would have to be learnt by running {step.name}, which is expensive",
                mend="Declare them: schema= on the sink, or schema: {column: type} in a recipe",
            )


def _learn(
    source: SourceSpec,
    chains: Sequence[Chain],
    schemas: Sequence[str | None],
    blocks: Sequence[Block],
    pickles: Mapping[str, bytes],
    *,
    needs_input: bool,
    last: int,
) -> tuple[tuple[StageSchemas, ...], str | None]:
    """(schemas, name of the stage or step that let no row through, or None)."""
    from cloudshard.plan.trial import try_stage

    learnt = schema_of(blocks) if needs_input else None
    input_schema = source.schema if learnt is None else encode_schema(learnt)
    found: list[StageSchemas] = []
    starved = None
    for at, chain in enumerate(chains):
        declared = schemas[at]
        stage_source = source if at == 0 else SourceSpec(format="runs")
        if input_schema is not None:
            stage_source = msgspec.structs.replace(stage_source, schema=input_schema)
        if at > last:
            found.append(StageSchemas(input=input_schema, output=declared))
            input_schema = declared
            continue
        steps = tuple(step for step in chain.steps if step.kind not in _CHOOSING)
        stage = StageSpec(index=at, source=stage_source, steps=steps, sink=SinkSpec(format="runs", schema=declared))
        blocks = try_stage(stage, blocks, pickles)
        if starved is None and not any(len(block) for block in blocks):
            starved = ", ".join(step.name for step in steps) or f"stage {at}"
        output = schema_of(blocks)
        warnings = tuple(
            f"column {field.name} is null in all sampled rows; declare the schema if it can be something else"
            for field in output
            if field.type == pa.null()
        )
        encoded = declared or encode_schema(output)
        found.append(StageSchemas(input=input_schema, output=encoded, warnings=warnings if declared is None else ()))
        input_schema = encoded
    return tuple(found), starved


def schema_of(blocks: Iterable[Block]) -> pa.Schema:
    """One schema for all blocks; a conflict names the objects. No blocks: no columns."""
    return unify((block.origin.object, infer_block(block.rows, block.table)) for block in blocks)
