"""From validated models to the logical pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

from cloudshard.errors import RecipeError
from cloudshard.plan import steps
from cloudshard.plan.logical import Checkpoint, Pipeline, Sink, Source, Step
from cloudshard.recipe.document import Document
from cloudshard.recipe.models import Calls, Columns, Read, RecipeModel, SinkModel, SourceModel, StepModel, Write
from cloudshard.recipe.types import parse_schema

_READ_COMMON = {"urls", "columns_types", "bad_rows", "storage_options"}
_WRITE_COMMON = {"url", "mode", "columns_types", "new_columns", "target_part_bytes", "storage_options"}


def build_pipeline(document: Document, model: RecipeModel, parameters: Mapping[str, Any]) -> Pipeline:
    """The pipeline; an error of a step's own making gets the step's line."""
    built: list[Step | Checkpoint] = []
    for at, step in enumerate(model.steps):
        try:
            built.append(_step(step))
        except RecipeError as error:
            found = document.error(error.what, ("steps", at, step.verb()[0]), mend=error.mend)
            raise found from error
    try:
        source, sink = _source(model.source), _sink(model.sink)
    except RecipeError as error:
        raise document.error(error.what, ("source" if "source" in error.where else "sink",), mend=error.mend) from error
    if model.summary is not None:
        try:
            steps.check_sql(model.summary.sql)
        except RecipeError as error:
            raise document.error(error.what, ("summary", "sql"), mend=error.mend) from error
    return Pipeline(
        name=model.name or _name_of(document),
        source=source,
        steps=tuple(built),
        sink=sink,
        num_shards=model.shards.num_shards,
        target_shard_bytes=model.shards.target_bytes,
        parameters=dict(parameters),
        error_budget_rows=model.settings.error_budget_rows,
        error_budget_fraction=model.settings.error_budget_fraction,
    )


def _name_of(document: Document) -> str:
    stem = FilePath(document.name).stem
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in stem).strip("-") or "pipeline"


def _schema(columns: Columns | None, where: str) -> Any:
    return None if columns is None else parse_schema(columns, where=f"{where}.schema")


def _source(model: SourceModel) -> Source:
    verb, given = model.verb()
    read: Read = given
    options = read.model_dump(exclude=_READ_COMMON, exclude_none=True, exclude_defaults=True, by_alias=True)
    return Source(
        format=verb.removeprefix("read_"),
        urls=tuple(read.urls),
        options=options,
        schema=_schema(read.columns_types, f"source.{verb}"),
        bad_rows=read.bad_rows,
        storage_options=dict(read.storage_options),
    )


def _sink(model: SinkModel) -> Sink:
    verb, given = model.verb()
    write: Write = given
    options = write.model_dump(exclude=_WRITE_COMMON, exclude_none=True, exclude_defaults=True, by_alias=True)
    return Sink(
        format=verb.removeprefix("write_"),
        url=write.url,
        options=options,
        schema=_schema(write.columns_types, f"sink.{verb}"),
        new_columns=write.new_columns,
        mode=write.mode,
        target_part_bytes=write.target_part_bytes,
        storage_options=dict(write.storage_options),
    )


def _calls(model: Calls) -> dict[str, Any]:
    return {
        "arguments": model.arguments,
        "on_error": model.on_error,
        "label": model.label,
        "long_call_seconds": model.long_call_seconds,
    }


def _checkpoint(wanted: bool) -> Checkpoint:
    if not wanted:
        raise RecipeError("checkpoint: false does nothing", mend="Remove the step")
    return Checkpoint()


_BUILD: dict[str, Callable[[Any], Step | Checkpoint]] = {
    "map": lambda m: steps.map_step(m.function, into=m.into, **_calls(m)),
    "flat_map": lambda m: steps.flat_map_step(m.function, **_calls(m)),
    "filter": lambda m: steps.filter_step(m.condition, arguments=m.arguments, on_error=m.on_error, label=m.label),
    "map_batches": lambda m: steps.map_batches_step(
        m.function, as_=m.as_, batch_rows=m.batch_rows, batch_bytes=m.batch_bytes, span_shards=m.span_shards, **_calls(m)
    ),
    "map_async": lambda m: steps.map_async_step(m.function, concurrency=m.concurrency, ordered=m.ordered, into=m.into, **_calls(m)),
    "sql": lambda m: steps.sql_step(m.query, on_error=m.on_error, label=m.label),
    "select": steps.select_step,
    "drop": steps.drop_step,
    "rename": steps.rename_step,
    "with_columns": steps.with_columns_step,
    "sample": lambda m: steps.sample_step(m.fraction, seed=m.seed),
    "limit": steps.limit_step,
    "row_number": steps.row_number_step,
    "checkpoint": _checkpoint,
}


def _step(model: StepModel) -> Step | Checkpoint:
    verb, given = model.verb()
    return _BUILD[verb](given)
