"""What users write: a lazy, immutable pipeline.

>>> import cloudshard as cs
>>> ds = cs.read_jsonl("s3://corpus/raw/").map(clean).filter("n_words > 50")
>>> ds.take(3)                                          # in this process, without any run
>>> ds.write_parquet("s3://corpus/clean/").run("s3://corpus/runs/clean-1")

Nothing is listed, read or executed before a terminal call: ``take``, ``iter_rows``, ``to_table``, ``to_pandas``, ``count``, ``schema``,
``explain`` (all in this process) or ``run`` (workers, a ledger, exactly-once output).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cloudshard.errors import RecipeError
from cloudshard.plan import steps as make
from cloudshard.plan.logical import Checkpoint, Pipeline, Sink, Step
from cloudshard.plan.values import OnError

if TYPE_CHECKING:
    import pyarrow as pa

    from cloudshard.ledger.records import RunSettings
    from cloudshard.plan.explain import Explanation
    from cloudshard.worker.run import RunResult

NewColumns = Literal["error", "quarantine", "drop", "collect"]
Mode = Literal["error", "overwrite"]


class Dataset:
    """A lazy pipeline. Every method returns a new one; nothing runs before a terminal call."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __repr__(self) -> str:
        chain = [f"read_{self.pipeline.source.format}({', '.join(self.pipeline.source.urls[:3])})"]
        chain += ["checkpoint" if isinstance(step, Checkpoint) else step.label or step.kind for step in self.pipeline.steps]
        if self.pipeline.sink is not None:
            chain.append(f"write_{self.pipeline.sink.format}({self.pipeline.sink.url})")
        return f"<Dataset {' | '.join(chain)}>"

    def _with(self, step: Step | Checkpoint) -> Dataset:
        if self.pipeline.sink is not None:
            raise RecipeError("a step after the sink", mend="Put it before write_…().")
        return Dataset(replace(self.pipeline, steps=(*self.pipeline.steps, step)))

    # ------------------------------------------------------------ row steps

    def map(
        self,
        function: make.Function,
        *,
        into: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        label: str | None = None,
        long_call_seconds: float | None = None,
    ) -> Dataset:
        """``function(row)`` → the new row, or None to remove it. ``into``: the result becomes that column instead.

        A class is made once per process with ``arguments``; ``setup()`` and ``teardown()`` are called if it has them, then the instance
        for each row. ``on_error``: raise (the item fails, and is retried) | null (needs ``into``) | drop | quarantine.
        ``long_call_seconds``: one call may take that long without counting as stuck.
        """
        options: dict[str, Any] = {"arguments": arguments, "on_error": on_error, "label": label, "long_call_seconds": long_call_seconds}
        return self._with(make.map_step(function, into=into, **options))

    def flat_map(
        self,
        function: make.Function,
        *,
        arguments: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        label: str | None = None,
        long_call_seconds: float | None = None,
    ) -> Dataset:
        """``function(row)`` → any number of rows: a list, a generator, or None for none. All of them have the place of their parent.

        >>> ds.flat_map(lambda row: [{"id": row["id"], "text": part} for part in row["text"].split("\\n\\n")])
        """
        return self._with(
            make.flat_map_step(function, arguments=arguments, on_error=on_error, label=label, long_call_seconds=long_call_seconds)
        )

    def filter(
        self,
        condition: make.Function,
        *,
        arguments: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        label: str | None = None,
    ) -> Dataset:
        """Keep the rows for which ``condition`` is true: a function that returns a bool, or an SQL condition.

        Either leaves the rows as they are. A function that returns anything but True or False has failed (``on_error``).

        >>> ds.filter("score > 0.2 AND lang = 'de'")
        """
        return self._with(make.filter_step(condition, arguments=arguments, on_error=on_error, label=label))

    def map_async(
        self,
        function: make.Function,
        *,
        concurrency: int = make.DEFAULT_CONCURRENCY,
        ordered: bool = False,
        into: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        label: str | None = None,
        long_call_seconds: float | None = None,
    ) -> Dataset:
        """``await function(row)`` with ``concurrency`` calls in flight per process, across batches and shards.

        Results go on as they come, or in input order (``ordered``; always before a ``limit`` or a boundary, which choose by order).
        ``setup()`` and ``teardown()`` of a class may be async too: they run in the loop of the calls.

        >>> ds.map_async(ask, concurrency=256, into="answer", on_error="quarantine")
        """
        options: dict[str, Any] = {"arguments": arguments, "on_error": on_error, "label": label, "long_call_seconds": long_call_seconds}
        return self._with(make.map_async_step(function, concurrency=concurrency, ordered=ordered, into=into, **options))

    # ------------------------------------------------------------ batch steps

    def map_batches(
        self,
        function: make.Function,
        *,
        as_: Literal["arrow", "pandas", "polars", "rows"] = "arrow",
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        span_shards: bool = False,
        arguments: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        label: str | None = None,
        long_call_seconds: float | None = None,
    ) -> Dataset:
        """``function(batch)`` → a batch, as Arrow table, pandas or polars frame, or list of rows.

        A batch has up to ``batch_rows`` rows and about ``batch_bytes`` bytes, all of one shard; with ``span_shards`` of several, and then
        the function must return one row per row, in order. A batch that fails is bisected: ``on_error`` applies to the failing rows alone.
        """
        options: dict[str, Any] = {"arguments": arguments, "on_error": on_error, "label": label, "long_call_seconds": long_call_seconds}
        step = make.map_batches_step(function, as_=as_, batch_rows=batch_rows, batch_bytes=batch_bytes, span_shards=span_shards, **options)
        return self._with(step)

    def sql(self, query: str, *, label: str | None = None) -> Dataset:
        """A DuckDB query over the table ``batch``: some rows of one shard, so aggregates are per batch, not global."""
        return self._with(make.sql_step(query, label=label))

    def select(self, *columns: str) -> Dataset:
        """Keep these columns, in this order."""
        return self._with(make.select_step(columns))

    def drop(self, *columns: str) -> Dataset:
        """Remove these columns."""
        return self._with(make.drop_step(columns))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Old name → new name."""
        return self._with(make.rename_step(names))

    def with_columns(self, **expressions: str) -> Dataset:
        """Add or replace columns by SQL expressions: ``with_columns(words="len(string_split(text, ' '))")``."""
        return self._with(make.with_columns_step(expressions))

    # ------------------------------------------------------------ choosing rows, boundaries

    def sample(self, fraction: float, *, seed: int = 0) -> Dataset:
        """Keep about ``fraction`` of the rows, chosen by row identity: the same rows whatever the workers, shards or retries.

        Rows that ``flat_map`` made of one row share its identity, and are kept or left out together.
        """
        return self._with(make.sample_step(fraction, seed=seed))

    def limit(self, rows: int) -> Dataset:
        """The first ``rows`` rows in input order, exactly. A boundary: what follows is another stage."""
        return self._with(make.limit_step(rows))

    def row_number(self, into: str) -> Dataset:
        """Add each row's position in its object (byte offset of its line, or row index)."""
        return self._with(make.row_number_step(into))

    def checkpoint(self) -> Dataset:
        """Materialise here: what follows is another stage, and a failure there does not repeat what came before."""
        return self._with(Checkpoint())

    # ------------------------------------------------------------ settings

    def named(self, name: str) -> Dataset:
        """The run's name."""
        return Dataset(replace(self.pipeline, name=name))

    def shards(self, num_shards: int | None = None, *, target_bytes: int | None = None) -> Dataset:
        """How the input is cut: exactly ``num_shards``, or pieces of about ``target_bytes`` (default 128 MiB)."""
        return Dataset(replace(self.pipeline, num_shards=num_shards, target_shard_bytes=target_bytes))

    def error_budget(self, *, rows: int | None = None, fraction: float | None = None) -> Dataset:
        """Fail the run when more rows than this were dropped, nulled or quarantined."""
        return Dataset(replace(self.pipeline, error_budget_rows=rows, error_budget_fraction=fraction))

    # ------------------------------------------------------------ sinks

    def _to(
        self,
        format_name: str,
        url: str,
        options: Mapping[str, Any],
        *,
        schema: pa.Schema | None,
        new_columns: NewColumns,
        mode: Mode,
        target_part_bytes: int | None,
        storage_options: Mapping[str, Any] | None,
    ) -> Dataset:
        if self.pipeline.sink is not None:
            raise RecipeError("the pipeline has a sink already")
        if new_columns not in ("error", "quarantine", "drop", "collect"):
            raise RecipeError(f"new_columns={new_columns!r}", mend="Choose error, quarantine, drop or collect.")
        if mode not in ("error", "overwrite"):
            raise RecipeError(f"mode={mode!r}", mend="Choose error or overwrite.")
        given = {key: value for key, value in options.items() if value is not None}
        sink = Sink(format_name, url, given, schema, new_columns, mode, target_part_bytes, dict(storage_options or {}))
        return Dataset(replace(self.pipeline, sink=sink))

    def write_parquet(
        self,
        url: str,
        *,
        schema: pa.Schema | None = None,
        new_columns: NewColumns = "error",
        mode: Mode = "error",
        target_part_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Dataset:
        """Write Parquet parts into the folder ``url``, all with one schema: declared, or decided from samples when the run is planned.

        ``new_columns``: a column that the schema lacks is an error | the row is quarantined | dropped (counted) | collected as JSON in
        ``_extra``. ``mode``: a folder that is not empty is an error, or is replaced once the new data is complete.
        """
        return self._to(
            "parquet",
            url,
            options,
            schema=schema,
            new_columns=new_columns,
            mode=mode,
            target_part_bytes=target_part_bytes,
            storage_options=storage_options,
        )

    def write_jsonl(
        self,
        url: str,
        *,
        compression: str | None = None,
        schema: pa.Schema | None = None,
        new_columns: NewColumns = "error",
        mode: Mode = "error",
        target_part_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Dataset:
        """Write JSON lines. Without ``schema`` rows are written as they are. ``compression``: gzip or zstd."""
        return self._to(
            "jsonl",
            url,
            {**options, "compression": compression},
            schema=schema,
            new_columns=new_columns,
            mode=mode,
            target_part_bytes=target_part_bytes,
            storage_options=storage_options,
        )

    def write_csv(
        self,
        url: str,
        *,
        schema: pa.Schema | None = None,
        new_columns: NewColumns = "error",
        mode: Mode = "error",
        target_part_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Dataset:
        """Write CSV with a header in each part."""
        return self._to(
            "csv",
            url,
            options,
            schema=schema,
            new_columns=new_columns,
            mode=mode,
            target_part_bytes=target_part_bytes,
            storage_options=storage_options,
        )

    def write_arrow(
        self,
        url: str,
        *,
        schema: pa.Schema | None = None,
        new_columns: NewColumns = "error",
        mode: Mode = "error",
        target_part_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Dataset:
        """Write Arrow IPC files."""
        return self._to(
            "arrow",
            url,
            options,
            schema=schema,
            new_columns=new_columns,
            mode=mode,
            target_part_bytes=target_part_bytes,
            storage_options=storage_options,
        )

    # ------------------------------------------------------------ in this process

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """The rows, lazily, in input order, in this process: the same fused plan that workers run, without a run."""
        from cloudshard.engine.convert import rows_of
        from cloudshard.engine.local import iter_blocks

        for block in iter_blocks(self.pipeline):
            yield from block.rows if block.rows is not None else rows_of(block.table)

    def take(self, rows: int) -> list[dict[str, Any]]:
        """The first ``rows`` rows; reads no more than it needs."""
        from itertools import islice

        return list(islice(self.iter_rows(), rows))

    def to_table(self) -> pa.Table:
        """All rows as one Arrow table."""
        from cloudshard.engine.convert import whole_table
        from cloudshard.engine.local import iter_blocks

        return whole_table(iter_blocks(self.pipeline))

    def to_pandas(self) -> Any:
        """All rows as a pandas frame. Integers and booleans with nulls have pandas' nullable types, so that nothing is rounded."""
        from cloudshard.engine.convert import to_pandas

        return to_pandas(self.to_table())

    def count(self) -> int:
        """How many rows come out."""
        from cloudshard.engine.local import iter_blocks

        return sum(len(block) for block in iter_blocks(self.pipeline))

    def schema(self) -> pa.Schema:
        """The schema of the output as a run would decide it, from samples of the input's files."""
        from cloudshard.formats.schema import decode_schema
        from cloudshard.plan.build import build

        pipeline = self.pipeline
        if pipeline.sink is None or pipeline.sink.format != "parquet":
            pipeline = replace(pipeline, sink=Sink("parquet", "memory://schema"))
        decided = build(pipeline).plan.stages[-1].sink.schema
        if decided is None:
            raise RecipeError("the schema cannot be decided")
        return decode_schema(decided)

    def explain(self) -> Explanation:
        """The plan: stages, what is fused and why each boundary exists, work items, memory, requests and what they cost."""
        from cloudshard.plan.build import build
        from cloudshard.plan.explain import explain

        pipeline = self.pipeline if self.pipeline.sink is not None else replace(self.pipeline, sink=Sink("jsonl", "memory://explain"))
        return explain(build(pipeline))

    # ------------------------------------------------------------ a run

    def run(
        self,
        run_url: str | None = None,
        *,
        processes: int | Literal["auto"] = "auto",
        settings: RunSettings | None = None,
        memory_per_child: int | None = None,
        max_shards: int | None = None,
        safe: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> RunResult:
        """Plan (or join, or resume) the run under ``run_url`` and work until it is complete.

        The same call on other machines, with the same ``run_url`` in a bucket, is the same run. Raises RecipeError,
        PlanMismatch, RunFailed…; the result tells counts and the exit code a command would have.
        """
        from cloudshard.worker.run import run_pipeline

        return run_pipeline(
            self.pipeline,
            run_url,
            processes=processes,
            settings=settings,
            memory_per_child=memory_per_child,
            max_shards=max_shards,
            safe=safe,
            progress=progress,
        )
