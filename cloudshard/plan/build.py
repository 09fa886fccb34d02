"""Planning: from the logical pipeline to the plan, its first work items and its fingerprint.

Two steps, because resuming needs only the first: :func:`survey` lists the input, cuts it and takes the fingerprint; :func:`build` adds the
schemas, for which it may read samples and run user code on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudshard.errors import RecipeError
from cloudshard.formats.registry import get_format
from cloudshard.formats.schema import encode_schema
from cloudshard.ledger.records import InputRange, WorkItem
from cloudshard.plan.fingerprint import fingerprint_fields, fingerprint_of
from cloudshard.plan.inputs import LISTING_OPTIONS, InputObject, list_inputs
from cloudshard.plan.logical import Checkpoint, Pipeline, Sink, Source, Step
from cloudshard.plan.sample import StageSchemas, decide_schemas
from cloudshard.plan.split import DEFAULT_TARGET_BYTES, default_target, pack
from cloudshard.plan.stages import Chain, fuse, step_names
from cloudshard.plan.values import Plan, SinkSpec, SourceSpec, StageSpec, StepSpec
from cloudshard.store.options import public_options, register_options
from cloudshard.store.registry import normalise

#: A run between two stages: an Arrow IPC stream.
RUNS_FORMAT = "runs"

#: An object that cannot be cut and has so many times the target is worth a warning.
_LARGE_OBJECT = 4


class _Nowhere:
    """A byte sink for a writer that is made only to look at its options."""

    def write(self, data: bytes | memoryview) -> int:
        return len(data)


@dataclass(frozen=True)
class Survey:
    """What listing alone tells. ``steps``: None stands for a checkpoint. ``objects``: the input in input order."""

    pipeline: Pipeline
    source: SourceSpec
    steps: tuple[StepSpec | None, ...]
    sink: SinkSpec
    objects: tuple[InputObject, ...]
    items: tuple[WorkItem, ...]
    pickles: Mapping[str, bytes]
    fingerprint: str
    fields: dict[str, Any]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Planned:
    """All that a run needs to begin. ``pickles``: key under the run's prefix → cloudpickle bytes; ``fields``: see the fingerprint."""

    plan: Plan
    items: tuple[WorkItem, ...]
    pickles: Mapping[str, bytes]
    fingerprint: str
    fields: dict[str, Any]


def build(pipeline: Pipeline, *, surveyed: Survey | None = None) -> Planned:
    """The plan of ``pipeline`` over its input as it is now. Raises RecipeError, SchemaError, StepError or StoreError."""
    found = surveyed or survey(pipeline)
    chains, warnings = fuse(found.steps, item_count=len(found.items))
    schemas = decide_schemas(found.source, chains, found.sink, found.objects, found.pickles)
    stages = _stages(found, chains, schemas)
    plan = Plan(
        name=pipeline.name,
        stages=stages,
        parameters=dict(pipeline.parameters),
        sharding=_sharding(pipeline),
        warnings=(*found.warnings, *warnings, *(warning for schema in schemas for warning in schema.warnings)),
    )
    return Planned(plan=plan, items=found.items, pickles=found.pickles, fingerprint=found.fingerprint, fields=found.fields)


def survey(pipeline: Pipeline) -> Survey:
    """List, cut, describe the functions and take the fingerprint. Nothing of the input is read, no user code runs."""
    if pipeline.sink is None:
        raise RecipeError(
            "the pipeline has no sink", where=pipeline.name, mend="End it with write_parquet, write_jsonl, write_csv or write_arrow"
        )
    _keep_secrets(pipeline.source.urls, pipeline.source.storage_options)
    _keep_secrets((pipeline.sink.url,), pipeline.sink.storage_options)
    source, sink = source_spec(pipeline.source), sink_spec(pipeline.sink)
    steps, pickles = step_specs(pipeline.steps)
    objects = tuple(list_inputs(pipeline.source.urls, pipeline.source.storage_options, pipeline.source.options))
    pieces = cut(objects, source, num_shards=pipeline.num_shards, target_bytes=pipeline.target_shard_bytes)
    target = pipeline.target_shard_bytes
    if target is None and pipeline.num_shards is None:
        target = default_target(sum(found.info.size for found in objects))
    items = pack(pieces, num_shards=pipeline.num_shards, target_bytes=target)
    fields = fingerprint_fields(
        source=source,
        declared_schema=source.schema,
        steps=steps,
        sink=sink,
        sink_schema=sink.schema,
        parameters=pipeline.parameters,
        sharding=_sharding(pipeline),
        objects=((found.url, found.info.size, found.info.etag) for found in objects),
    )
    return Survey(
        pipeline=pipeline,
        source=source,
        steps=steps,
        sink=sink,
        objects=objects,
        items=items,
        pickles=pickles,
        fingerprint=fingerprint_of(fields),
        fields=fields,
        warnings=_size_warnings(items, pieces, pipeline.target_shard_bytes),
    )


def cut(objects: Sequence[InputObject], source: SourceSpec, *, num_shards: int | None, target_bytes: int | None) -> list[InputRange]:
    """The ranges of all objects, as their format cuts them; nothing is read."""
    kind = get_format(source.format)
    total = sum(found.info.size for found in objects)
    target = target_bytes or default_target(total)
    if num_shards is not None:
        target = max(1, -(-total // max(1, num_shards)))
    return [piece for found in objects for piece in kind.split(found.store, found.info, found.url, target, source.options)]


def source_spec(source: Source) -> SourceSpec:
    """The source without secrets and without what only the listing needs."""
    return SourceSpec(
        format=get_format(source.format).name,
        urls=tuple(_shown(url) for url in source.urls),
        options={name: value for name, value in source.options.items() if name not in LISTING_OPTIONS},
        schema=None if source.schema is None else encode_schema(source.schema),
        bad_rows=source.bad_rows,
        store_options=public_options(source.storage_options),
    )


def sink_spec(sink: Sink) -> SinkSpec:
    """The sink without secrets, at an absolute URL. Raises RecipeError for options that its format does not know."""
    kind = get_format(sink.format)
    kind.open_writer(_Nowhere(), sink.schema, sink.options)  # looks at the options; nothing is written yet
    return SinkSpec(
        format=kind.name,
        url=normalise(sink.url),
        options=dict(sink.options),
        schema=None if sink.schema is None else encode_schema(sink.schema),
        new_columns=sink.new_columns,
        mode=sink.mode,
        target_part_bytes=sink.target_part_bytes,
        store_options=public_options(sink.storage_options),
    )


def step_specs(steps: Sequence[Step | Checkpoint]) -> tuple[tuple[StepSpec | None, ...], dict[str, bytes]]:
    """The steps as values (None for a checkpoint), and the pickles that they need by key."""
    from cloudshard.functions import describe

    specs: list[StepSpec | None] = []
    pickles: dict[str, bytes] = {}
    for name, step in zip(step_names(steps), steps, strict=True):
        if isinstance(step, Checkpoint):
            specs.append(None)
            continue
        reference = None
        if step.function is not None:
            reference, pickled = describe(step.function, step.arguments)
            if reference.key is not None and pickled is not None:
                pickles[reference.key] = pickled
        specs.append(
            StepSpec(
                kind=step.kind,
                name=name,
                function=reference,
                params=dict(step.params),
                on_error=step.on_error,
                long_call_seconds=step.long_call_seconds,
            )
        )
    return tuple(specs), pickles


def _stages(found: Survey, chains: Sequence[Chain], schemas: Sequence[StageSchemas]) -> tuple[StageSpec, ...]:
    """The chains with their sources and sinks."""
    target = found.pipeline.target_shard_bytes or DEFAULT_TARGET_BYTES
    stages = []
    for index, (chain, schema) in enumerate(zip(chains, schemas, strict=True)):
        source, sink = found.source, found.sink
        if index:
            source = SourceSpec(format=RUNS_FORMAT)
        if chain.boundary is not None:
            sink = SinkSpec(format=RUNS_FORMAT, new_columns=found.sink.new_columns)
        params = {} if chain.boundary is None else {"target_bytes": target}
        stages.append(
            StageSpec(
                index=index,
                source=_with_schema(source, schema.input),
                steps=chain.steps,
                sink=_with_schema(sink, schema.output),
                boundary=chain.boundary,
                boundary_params=params if chain.rows is None else {**params, "rows": chain.rows},
                reason=chain.reason,
            )
        )
    return tuple(stages)


def _with_schema(spec: Any, schema: str | None) -> Any:
    import msgspec

    return spec if schema is None else msgspec.structs.replace(spec, schema=schema)


def _sharding(pipeline: Pipeline) -> dict[str, Any]:
    target = pipeline.target_shard_bytes
    if pipeline.num_shards is None and target is None:
        target = DEFAULT_TARGET_BYTES
    return {"num_shards": pipeline.num_shards, "target_bytes": target}


def _size_warnings(items: Sequence[WorkItem], pieces: Sequence[InputRange], target_bytes: int | None) -> tuple[str, ...]:
    target = target_bytes or DEFAULT_TARGET_BYTES
    large = [piece for piece in pieces if piece.unit == "object" and piece.size > _LARGE_OBJECT * target]
    if not large:
        return ()
    largest = max(large, key=lambda piece: piece.size)
    return (f"{len(large)} objects cannot be cut and are much larger than a shard; the largest is {largest.url} ({largest.size:,} bytes)",)


def _shown(url: str) -> str:
    from cloudshard.store.options import without_credentials

    return without_credentials(url) if "://" in url else url


def _keep_secrets(urls: Sequence[str], options: Mapping[str, Any]) -> None:
    """What may not go into the plan stays in this process, for every URL below the given ones."""
    if not options or public_options(options) == dict(options):
        return
    from cloudshard.plan.glob import has_magic

    for url in urls:
        parts = normalise(url).split("/")
        literal = next((at for at, part in enumerate(parts) if at > 2 and has_magic(part)), len(parts))
        register_options("/".join(parts[:literal]), options)
