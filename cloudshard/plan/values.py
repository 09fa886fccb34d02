"""The physical plan as values: what run.json holds and what every worker executes.

Plain msgspec structs, JSON all the way: no code, no credential, no clock. A user's function is only *referred* to
(:class:`FunctionRef`); an Arrow schema is its IPC bytes in base64 (:func:`cloudshard.formats.schema.encode_schema`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

OnError = Literal["raise", "null", "drop", "quarantine"]
BadRows = Literal["raise", "drop", "quarantine"]
StepKind = Literal["map", "flat_map", "filter", "map_batches", "sql", "sample", "limit", "map_async", "row_number"]


class FunctionRef(msgspec.Struct, frozen=True, kw_only=True):
    """A user's function or class.

    ``kind`` "import": ``name`` is ``module:qualname``, imported by every worker. ``kind`` "pickle": ``key`` is the
    cloudpickle object under the run's prefix (``plan/functions/<digest>.pkl``). ``digest`` identifies the code (source and
    constants) for the fingerprint. ``arguments``: keyword arguments bound to the function, or given to the class.
    """

    kind: Literal["import", "pickle"]
    name: str
    digest: str
    key: str | None = None
    arguments: dict[str, Any] = {}


class StepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``name`` is unique in the plan (``02-map-clean``); ``params`` depend on ``kind``:

    map_batches: ``batch_rows``, ``batch_bytes``, ``as`` (arrow | pandas | polars | rows), ``span_shards``;
    sql: ``query``; sample: ``fraction``, ``seed``; limit: ``rows``; map_async: ``concurrency``, ``ordered``;
    row_number: ``into``. ``into`` (map, map_async): put the result in that column instead of replacing the row.
    ``long_call_seconds``: one call may take that long without counting as stuck.
    """

    kind: StepKind
    name: str
    function: FunctionRef | None = None
    params: dict[str, Any] = {}
    on_error: OnError = "raise"
    long_call_seconds: float | None = None


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage's input ranges become rows.

    ``format``: jsonl | parquet | csv | arrow | files | runs (materialised by an earlier stage). ``options`` depend on the
    format (see :mod:`cloudshard.formats`). ``schema``: declared or sampled input schema, base64 IPC. ``store_options``: public
    ones only (endpoint, region, anonymous, profile).
    """

    format: str
    urls: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    schema: str | None = None
    bad_rows: BadRows = "raise"
    store_options: dict[str, Any] = {}


class SinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stage's rows go: parts of the final output (``url``), or runs for the next stage (``url`` None).

    ``schema``: the one schema of all parts, base64 IPC (None: rows are written as they are; JSONL only). ``new_columns``:
    what to do with a column that the schema lacks. ``mode``: a target that is not empty is an error or is replaced.
    """

    format: str
    url: str | None = None
    options: dict[str, Any] = {}
    schema: str | None = None
    new_columns: Literal["error", "quarantine", "drop", "collect"] = "error"
    mode: Literal["error", "overwrite"] = "error"
    target_part_bytes: int | None = None
    store_options: dict[str, Any] = {}


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A fused chain of steps between two boundaries.

    ``boundary`` says how the *next* stage's work items follow from this stage's commit records: None (last stage),
    "checkpoint" (each run is a shard) or "limit" (runs in item order until ``boundary_params["rows"]`` rows).
    """

    index: int
    source: SourceSpec
    steps: tuple[StepSpec, ...]
    sink: SinkSpec
    boundary: str | None = None
    boundary_params: dict[str, Any] = {}
    reason: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All stages of one pipeline over one pinned input. ``sharding``: num_shards, target_bytes as asked for."""

    name: str
    stages: tuple[StageSpec, ...]
    parameters: dict[str, Any] = {}
    sharding: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()

    @property
    def uses_pickles(self) -> bool:
        """Whether any step needs a cloudpickle object (``--safe`` refuses those)."""
        return any(step.function is not None and step.function.kind == "pickle" for stage in self.stages for step in stage.steps)
