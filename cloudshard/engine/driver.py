"""The driver: one stage compiled for one process, fed with work items, giving one result per item.

Items are read one after the other; their rows flow through the segments into the output. When an item has ended and no segment holds
any of its rows, it is finished, whatever other items are still open. One item's failure never harms another.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from cloudshard.engine.asynchronous import AsyncSegment, EventLoop
from cloudshard.engine.attempt import AttemptContext, AttemptFailure, AttemptResult, OutputFactory
from cloudshard.engine.block import Block, Origin
from cloudshard.engine.item import ItemFailed, ItemState
from cloudshard.engine.output import OutputSegment
from cloudshard.engine.policy import BeforeRow, step_error, suppress, user_traceback
from cloudshard.engine.quarantine import Quarantine
from cloudshard.engine.rowsteps import RowStep
from cloudshard.engine.segments import RowSegment, Segment
from cloudshard.engine.sql import hopeless_errors, mask_query, sql_function
from cloudshard.engine.tables import FilterSegment, TableSegment
from cloudshard.errors import ChildCrashed, CloudshardError, InputError, RowError, StepError
from cloudshard.functions import Loaded
from cloudshard.ledger.records import InputRange, WorkItem
from cloudshard.plan.values import FunctionRef, StageSpec, StepSpec
from cloudshard.store.port import Store

__all__ = ["AttemptContext", "AttemptFailure", "AttemptResult", "Driver"]

ROW_KINDS = ("map", "flat_map", "filter", "sample", "limit", "row_number")

#: Rows (and bytes) of a block: large enough that per-block work vanishes, small enough for the cache and for progress.
BLOCK_ROWS = 1024
BLOCK_BYTES = 4 << 20


def stable_name(url: str, format_name: str) -> str:
    """What names an object in a row's identity. A run's name holds the nonce of the attempt that wrote it: that part is left out,
    so that a sample behind a boundary is the same in every execution."""
    if format_name != "runs":
        return url
    stage, _, rest = url.rpartition("/stages/")[2].partition("/")
    item, _, tail = rest.rpartition("/")[2].partition("-")
    return run_name(int(stage), int(item), int(tail.rpartition("-")[2].partition(".")[0]))


def run_name(stage: int, item: int, part: int) -> str:
    """The name of a run in the identity of its rows."""
    return f"run:{stage:02d}/{item:08d}/{part:03d}"


class Driver:
    """Runs one stage in this process.

    ``open_object``: URL → (store, key). ``load_function``: a reference → the callable (a class step's instance). ``careful``: one row at
    a time, ``before_row`` told before each call of user code. ``progress(rows, bytes)``: after each block read."""

    def __init__(
        self,
        stage: StageSpec,
        *,
        open_object: Callable[[str], tuple[Store, str]],
        load_function: Callable[[FunctionRef], Loaded],
        output: OutputFactory,
        careful: bool = False,
        before_row: BeforeRow | None = None,
        progress: Callable[[int, int], None] | None = None,
        call_began: Callable[[float], None] | None = None,
        call_ended: Callable[[], None] | None = None,
        error_budget: int | None = None,
        exact_limits: bool = False,
    ) -> None:
        from cloudshard.formats.registry import get_format
        from cloudshard.formats.schema import decode_schema

        self.stage = stage
        self.finished: deque[AttemptResult | AttemptFailure] = deque()
        self.states: dict[int, ItemState] = {}
        self._open_object = open_object
        self._error_budget = error_budget
        self._careful = careful
        self._before_row = before_row if careful else None
        self._progress = progress
        self._call_began = call_began
        self._call_ended = call_ended
        self._format = get_format(stage.source.format)
        self._source_schema: pa.Schema | None = decode_schema(stage.source.schema) if stage.source.schema else None
        self._instances: list[tuple[StepSpec, Any]] = []
        self._event_loop = EventLoop()
        self._allowed = max((step.long_call_seconds or 0.0 for step in stage.steps), default=0.0)
        #: Rows that each limit step may still let through over all items (local execution); None: each item counts alone.
        self.limits: dict[str, int] | None = {} if exact_limits else None
        self._segments = self._compile(load_function)
        self._output = OutputSegment(stage.sink, output, self._finish)
        self._segments.append(self._output)
        for above, below in zip(self._segments, self._segments[1:], strict=False):
            above.below = below
        for segment in self._segments:
            segment.states = self.states

    # ------------------------------------------------------------ compiling

    def _compile(self, load_function: Callable[[FunctionRef], Loaded]) -> list[Segment]:
        segments: list[Segment] = []
        schema = self._source_schema  # until a step may have changed the columns
        for index, spec in enumerate(self.stage.steps):
            function = None if spec.function is None else self._prepare(load_function(spec.function), spec)
            if spec.kind in ROW_KINDS:
                step = RowStep(spec, index, function)
                step.before_row = self._before_row
                step.shared_limits = self.limits
                if segments and isinstance(segments[-1], RowSegment):
                    segments[-1].steps.append(step)
                else:
                    segments.append(RowSegment([step]))
                keeps_columns = spec.kind in ("sample", "limit", "filter")
            else:
                segment, keeps_columns = self._other_segment(spec, index, function, schema)
                segments.append(segment)
            if not keeps_columns:
                schema = None
        return segments

    def _other_segment(
        self, spec: StepSpec, index: int, function: Callable[..., Any] | None, schema: pa.Schema | None
    ) -> tuple[Segment, bool]:
        """(the segment of a step that is no row step, whether it leaves the columns as they are)."""
        segment: TableSegment | AsyncSegment
        keeps_columns = False
        if spec.kind == "sql":
            query = str(spec.params["query"])
            mask = mask_query(query)
            keeps_columns = mask is not None
            options: dict[str, Any] = {"careful": self._careful, "schema": schema, "hopeless": hopeless_errors()}
            if mask is None:
                segment = TableSegment(spec, index, sql_function(query), **options)
            else:
                segment = FilterSegment(spec, index, sql_function(mask), whole=sql_function(query), **options)
        elif function is None:
            raise InputError(f"step {spec.name} of kind {spec.kind} has no function", mend="Was the plan written by something else?")
        elif spec.kind == "map_async":
            ordered = bool(spec.params.get("ordered")) or self._order_matters(index)
            segment = AsyncSegment(spec, index, function, self._event_loop, careful=self._careful, ordered=ordered)
        else:
            segment = TableSegment(spec, index, function, careful=self._careful, schema=schema)
        segment.before_row = self._before_row
        return segment, keeps_columns

    def _order_matters(self, index: int) -> bool:
        """Whether what follows step ``index`` chooses rows by their order: a limit, or a later stage, where a row's place is its number."""
        return self.stage.sink.url is None or any(step.kind == "limit" for step in self.stage.steps[index + 1 :])

    def _prepare(self, loaded: Loaded, spec: StepSpec) -> Callable[..., Any]:
        """The function; of a class an instance, set up once per process."""
        try:
            function: Callable[..., Any] = loaded.make()
            if loaded.is_class:
                self._call_hook(function, "setup", spec)
        except StepError:
            raise
        except Exception as error:  # user code may raise anything; it becomes one sentence with its cause kept
            raise StepError(
                f"step {spec.name} cannot be set up: {type(error).__name__}: {error}",
                step=spec.name,
                mend="Mend the class's __init__ or setup().",
                traceback=user_traceback(error),
            ) from error
        if loaded.is_class:
            if not callable(function):
                raise StepError(f"step {spec.name} is a class without __call__", step=spec.name, mend="Give it __call__(self, row).")
            if callable(getattr(function, "teardown", None)):
                self._instances.append((spec, function))
        return function

    def _call_hook(self, instance: Any, name: str, spec: StepSpec) -> None:
        """Call ``setup`` or ``teardown`` if there is one; the async ones of a map_async step run in its event loop."""
        hook = getattr(instance, name, None)
        if not callable(hook):
            return
        result = hook()
        if not inspect.isawaitable(result):
            return
        if spec.kind == "map_async":
            self._event_loop.run(result)
            return
        if inspect.iscoroutine(result):
            result.close()
        raise StepError(f"step {spec.name}: {name}() is async, the step is not", step=spec.name, mend=f"Make {name}() an ordinary method.")

    # ------------------------------------------------------------ running

    def run_item(self, item: WorkItem, attempt: AttemptContext) -> None:
        """Read the item fully and push its rows. Results appear in ``finished`` when no row of an item is in flight."""
        for _ in self.iter_item(item, attempt):
            pass

    def run_blocks(self, item: WorkItem, attempt: AttemptContext, blocks: Iterable[Block]) -> None:
        """As :meth:`run_item` over blocks that were read already (sampling while planning)."""
        for _ in self.iter_blocks(item, attempt, blocks):
            pass

    def iter_blocks(self, item: WorkItem, attempt: AttemptContext, blocks: Iterable[Block]) -> Iterator[None]:
        """As :meth:`run_blocks`, pausing after each block."""
        state = self._begin(item, attempt)
        try:
            for block in blocks:
                state.reader.through(len(block), len(block))
                moved = Block(
                    Origin(item.index, block.origin.object, block.origin.unit), block.positions, block.rows, block.table, block.nbytes
                )
                for part in self._portions(moved):
                    self._segments[0].push(part)
                yield
                if self._satisfied(state):
                    break
        except ItemFailed:
            pass  # the error is in the state
        self._end(state)

    def _begin(self, item: WorkItem, attempt: AttemptContext) -> ItemState:
        names = tuple(step.name for step in self.stage.steps)
        state = ItemState(item, attempt, names, Quarantine(item.index, attempt.epoch), budget=self._error_budget)
        self.states[item.index] = state
        return state

    def _end(self, state: ItemState) -> None:
        if state.error is None:
            self._segments[0].end(state.item.index)
        self._reap()

    def iter_item(self, item: WorkItem, attempt: AttemptContext) -> Iterator[None]:
        """As :meth:`run_item`, pausing after each block read (local execution takes what has come out, and may stop)."""
        state = self._begin(item, attempt)
        try:
            for piece in item.inputs:
                yield from self._read(piece, state)
                if self._satisfied(state):
                    break
        except ItemFailed:
            pass  # the error is in the state
        except CloudshardError as error:
            state.fail(error)
        self._end(state)

    def _read(self, piece: InputRange, state: ItemState) -> Iterator[None]:
        """Push the rows of one range, until no further row can matter (a limit is reached)."""
        from cloudshard.formats.port import ReadContext

        store, key = self._open_object(piece.url)
        origin = Origin(state.item.index, stable_name(piece.url, self._format.name), self._format.position_unit)

        def bad_row(error: RowError, row: bytes | Mapping[str, Any]) -> None:
            policy = self.stage.source.bad_rows
            suppress(state, state.reader, policy, error, step="read", origin=origin, position=error.position, row=row)
            state.reader.rows_in += 1

        context = ReadContext(
            store=store,
            key=key,
            origin=origin,
            options=self.stage.source.options,
            schema=self._source_schema,
            bad_row=bad_row,
            block_rows=1 if self._careful else BLOCK_ROWS,
            block_bytes=BLOCK_BYTES,
        )
        for block in self._counted(self._format.read(piece, context), context.counts, state):
            rows = len(block)
            if state.attempt.skip:
                block = self._without_poison(block, state)
            state.reader.rows_in += rows
            state.reader.rows_out += len(block)
            if self._call_began is not None:
                self._call_began(self._allowed)
            for part in self._portions(block):
                self._segments[0].push(part)
            if self._call_ended is not None:
                self._call_ended()
            if self._progress is not None:
                self._progress(rows, block.nbytes)
            self._reap(but=state.item.index)
            yield
            if self._satisfied(state):
                return

    def _counted(self, blocks: Iterator[Block], counts: Mapping[str, int], state: ItemState) -> Iterator[Block]:
        """The blocks; whatever ends the reading, what the reader has counted is added to the item's."""
        try:
            yield from blocks
        finally:
            for name, count in counts.items():
                state.reader_counts[name] = state.reader_counts.get(name, 0) + count

    def _portions(self, block: Block) -> list[Block]:
        """The block, or its rows one by one in careful mode."""
        if not len(block):
            return []
        if not self._careful or len(block) == 1:
            return [block]
        return [
            Block(
                block.origin,
                [position],
                rows=None if block.rows is None else [block.rows[at]],
                table=None if block.table is None else block.table.slice(at, 1),
                nbytes=block.nbytes // len(block),
            )
            for at, position in enumerate(block.positions)
        ]

    def _without_poison(self, block: Block, state: ItemState) -> Block:
        """Rows that killed an earlier attempt's process go to quarantine untouched."""
        skip, name = state.attempt.skip, block.origin.object
        bad = [at for at, position in enumerate(block.positions) if (name, position) in skip]
        if not bad:
            return block
        for at in bad:
            position = block.positions[at]
            reason = state.attempt.skip_reasons.get((name, position), "this row killed the process that touched it")
            row = block.rows[at] if block.rows is not None else block.table.slice(at, 1).to_pylist()[0]
            error = ChildCrashed(reason, kind="crash", where=f"{name}, {block.origin.unit} {position}")
            suppress(state, state.reader, "quarantine", error, step="read", origin=block.origin, position=position, row=row)
        good = [at for at in range(len(block)) if at not in set(bad)]
        return Block(
            block.origin,
            [block.positions[at] for at in good],
            rows=None if block.rows is None else [block.rows[at] for at in good],
            table=None if block.table is None else block.table.take(pa.array(good, pa.int64())),
            nbytes=block.nbytes,
        )

    def _satisfied(self, state: ItemState) -> bool:
        """Whether a limit is reached, so that no further row can matter. Runs are read to their end: their rows are counted at the seal."""
        if self.limits is not None:
            return self.satisfied
        return self._format.name != "runs" and any(left <= 0 for left in state.limit_left.values())

    @property
    def satisfied(self) -> bool:
        """Whether an exact limit is reached: no further item can matter."""
        return any(left <= 0 for left in (self.limits or {}).values())

    def drain(self) -> None:
        """Flush every queue and window: afterwards no item is open."""
        for segment in self._segments:
            segment.drain()
        self._reap()

    def close(self) -> None:
        """Stop threads, tear class steps down. Open items are forgotten."""
        for item in list(self.states):
            self._forget(item)
        for segment in self._segments:
            segment.close()
        failed: StepError | None = None
        while self._instances:
            spec, instance = self._instances.pop()
            try:
                self._call_hook(instance, "teardown", spec)
            except Exception as error:  # noqa: BLE001 - one step's teardown must not keep the others from theirs
                failed = failed or step_error(error, spec.name, "teardown")
        self._event_loop.close()
        if failed is not None:
            raise failed

    # ------------------------------------------------------------ ending items

    def _finish(self, item: int) -> None:
        """No row of the item is in flight any more: end its parts and give the result."""
        state = self.states[item]
        if state.error is not None:
            return
        try:
            output = self._output.outputs.get(item)
            parts = output.finish() if output is not None else ()
            quarantine = state.quarantine.finish()
            key = None
            if quarantine is not None:
                key = self._output.output_of(state).keep_quarantine(*quarantine)
        except CloudshardError as error:
            state.fail(error)
            return
        self._output.outputs.pop(item, None)
        state.quarantine.close()
        del self.states[item]
        self.finished.append(
            AttemptResult(
                item=item,
                nonce=state.attempt.nonce,
                parts=parts,
                counts=state.counts(),
                steps=state.steps(),
                quarantine=key,
                schema=self.stage.sink.schema,
                stats=state.stats(sum(part.bytes for part in parts)),
                reader=dict(state.reader_counts),
            )
        )

    def _reap(self, but: int = -1) -> None:
        """Turn items that have failed into failures."""
        for item in [number for number, state in self.states.items() if state.error is not None and number != but]:
            state = self.states[item]
            self._forget(item)
            if state.error is not None:
                self.finished.append(AttemptFailure(item, state.attempt.nonce, state.error))

    def _forget(self, item: int) -> None:
        for segment in self._segments:
            segment.forget(item)
        state = self.states.pop(item, None)
        if state is not None:
            state.quarantine.close()
