"""The end of the chain: rows become parts.

The sink's schema is the same for all parts; a row that does not fit it follows the sink's policy. Parts of the final output are uploads
that stay pending until the commit record exists; runs for the next stage have unique names and are finished at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import pyarrow as pa

from cloudshard.engine.attempt import AttemptContext, ItemOutput, OutputFactory
from cloudshard.engine.block import Block, Origin
from cloudshard.engine.item import ItemState
from cloudshard.engine.policy import is_out_of_memory, step_error, suppress
from cloudshard.engine.segments import Segment
from cloudshard.errors import CloudshardError, RowError, SchemaError
from cloudshard.ledger import keys
from cloudshard.ledger.records import PartRecord, WorkItem
from cloudshard.plan.values import SinkSpec
from cloudshard.store.port import Store


class StoreOutput:
    """Parts in a store. ``store``: rooted at the sink's URL for final output, at the run's prefix for runs."""

    def __init__(self, sink: SinkSpec, store: Store, run_store: Store) -> None:
        from cloudshard.formats.registry import get_format
        from cloudshard.formats.schema import decode_schema

        self.sink = sink
        self.store = store if sink.url is not None else run_store
        self.run_store = run_store
        self.format = get_format(sink.format)
        self.schema: pa.Schema | None = decode_schema(sink.schema) if sink.schema else None
        self.suffix = suffix_of(sink)

    def open(self, item: WorkItem, attempt: AttemptContext) -> ItemOutput:
        """See OutputFactory."""
        return _StoreItemOutput(self, attempt)


def suffix_of(sink: SinkSpec) -> str:
    """The file name suffix of a sink's parts."""
    from cloudshard.formats.registry import get_format

    kind: Any = get_format(sink.format)
    named = getattr(kind, "suffix_for", None)
    return str(named(sink.options)) if named is not None else str(kind.suffixes[0])


class _StoreItemOutput:
    def __init__(self, factory: StoreOutput, attempt: AttemptContext) -> None:
        self._factory = factory
        self._attempt = attempt
        self._parts: list[PartRecord] = []
        self._stream: Any = None
        self._writer: Any = None
        self._key = ""

    def write(self, block: Block, bad_row: Any = None) -> None:
        from cloudshard.store.upload import UploadStream

        if self._writer is None:
            sink, attempt, number = self._factory.sink, self._attempt, len(self._parts)
            if sink.url is None:
                self._key = keys.run_data(attempt.stage, attempt.item, attempt.nonce, number, self._factory.suffix)
            else:
                self._key = keys.part_name(attempt.item, number, attempt.run_tag, self._factory.suffix)
            self._stream = UploadStream(self._factory.store, self._key)
            schema = self._factory.schema
            if schema is None and block.table is not None:
                schema = block.table.schema
            self._writer = self._factory.format.open_writer(self._stream, schema, sink.options)
        if bad_row is not None and hasattr(self._writer, "bad_row"):
            self._writer.bad_row = bad_row
        self._writer.write(block)
        target = self._factory.sink.target_part_bytes
        if target is not None and self._stream.tell() >= target:
            self._end_part()

    def _end_part(self) -> None:
        if not self._writer.rows:  # all that came could not be written
            self._stream.abort()
            self._stream = self._writer = None
            return
        self._writer.finish()
        upload, parts, size, checksum = self._stream.finish_parts()
        base: Any = "output" if self._factory.sink.url is not None else "run"
        if base == "run":  # the name is unique to this attempt: nobody reads it before a commit record names it
            self._factory.store.finish_upload(upload, parts)
            upload, parts = None, ()
        self._parts.append(
            PartRecord(
                key=self._key, rows=self._writer.rows, bytes=size, checksum=checksum, base=base, upload=upload, upload_parts=tuple(parts)
            )
        )
        self._stream = self._writer = None

    def keep_quarantine(self, file: BinaryIO, size: int) -> str | None:
        attempt = self._attempt
        key = keys.quarantine(attempt.stage, attempt.item, attempt.nonce)
        store = self._factory.run_store
        if size <= store.default_part_size:
            store.put(key, file.read())
            return key
        from cloudshard.store.upload import UploadStream

        stream = UploadStream(store, key)
        try:
            while piece := file.read(1 << 20):
                stream.write(piece)
            upload, parts, _, _ = stream.finish_parts()
            store.finish_upload(upload, parts)
        except CloudshardError:
            stream.abort()
            raise
        return key

    def finish(self) -> tuple[PartRecord, ...]:
        if self._writer is not None:
            self._end_part()
        return tuple(self._parts)

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()
        for part in self._parts:
            if part.upload is not None:
                self._factory.store.abort_upload(part.upload)
            else:
                self._factory.store.delete([part.key])


class MemoryOutput:
    """Keeps the blocks: for local use (``take``, ``to_table``) and for sampling while planning. ``sink``: called with each block."""

    def __init__(self, sink: Callable[[Block], None]) -> None:
        self._sink = sink

    def open(self, item: WorkItem, attempt: AttemptContext) -> ItemOutput:
        """See OutputFactory."""
        return _MemoryItemOutput(self._sink)


class _MemoryItemOutput:
    def __init__(self, sink: Callable[[Block], None]) -> None:
        self._sink = sink

    def write(self, block: Block, bad_row: Any = None) -> None:
        self._sink(block)

    def keep_quarantine(self, file: BinaryIO, size: int) -> str | None:
        """Local rows are not kept aside."""
        return None

    def finish(self) -> tuple[PartRecord, ...]:
        return ()

    def abort(self) -> None:
        """Nothing to forget."""


class OutputSegment(Segment):
    """Brings blocks to the sink's schema and writes them; finishes items."""

    def __init__(self, sink: SinkSpec, factory: OutputFactory, finish: Callable[[int], None]) -> None:
        super().__init__()
        from cloudshard.formats.schema import Conformer, decode_schema

        self._factory = factory
        self._finish = finish
        self._policy: Any = "raise" if sink.new_columns == "error" else "quarantine"
        self._conformer = Conformer(decode_schema(sink.schema), sink.new_columns) if sink.schema else None
        self.outputs: dict[int, ItemOutput] = {}

    def push(self, block: Block) -> None:
        state = self.states[block.origin.item]
        tally = state.writer
        gone = tally.dropped + tally.quarantined
        rows = len(block)
        if self._conformer is not None:
            block = self._conform(block, state)

        def bad_row(error: RowError, row: Any) -> None:
            self._suppress(state, error, block.origin, error.position, row)

        try:
            if len(block):
                self.output_of(state).write(block, bad_row)
        except CloudshardError as error:
            raise state.fail(error) from error
        except (TypeError, ValueError, pa.ArrowException) as error:  # a value that the format cannot hold
            if is_out_of_memory(error):
                raise state.fail(step_error(error, "write", block.origin.object)) from error
            raise state.fail(SchemaError(f"rows cannot be written: {error}", where=block.origin.object)) from error
        suppressed = tally.dropped + tally.quarantined - gone
        tally.through(rows, rows - suppressed, suppressed)

    def _suppress(self, state: ItemState, error: RowError | SchemaError, origin: Origin, position: int, row: Any) -> None:
        """A row that does not fit the schema or the format follows the sink's policy."""
        suppress(state, state.writer, self._policy, error, step="write", origin=origin, position=position, row=row)

    def _conform(self, block: Block, state: ItemState) -> Block:
        if self._conformer is None:
            return block

        def report(index: int, column: str, reason: str) -> None:
            row = block.rows[index] if block.rows is not None else block.table.slice(index, 1).to_pylist()[0]
            error = SchemaError(
                f"column {column!r}: {reason}",
                where=f"{block.origin.object}, {block.origin.unit} {block.positions[index]}",
                mend="Declare the schema of the sink, mend the row in a step, or set new_columns='quarantine'.",
            )
            self._suppress(state, error, block.origin, block.positions[index], row)

        try:
            return self._conformer.conform(block, report)
        except SchemaError as error:
            raise state.fail(error) from error

    def output_of(self, state: ItemState) -> ItemOutput:
        """The item's output, opened when it is first needed."""
        item = state.item.index
        if item not in self.outputs:
            self.outputs[item] = self._factory.open(state.item, state.attempt)
        return self.outputs[item]

    def end(self, item: int) -> None:
        self._finish(item)

    def forget(self, item: int) -> None:
        super().forget(item)
        output = self.outputs.pop(item, None)
        if output is not None:
            output.abort()
