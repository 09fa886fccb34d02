"""Row steps over a block of rows: one tight loop per step, nothing but the user's call inside it.

``results.extend(map(function, rows))`` runs the loop in C. When the function raises, the results so far are kept, the failed row
is dealt with, and the same iterator goes on behind it: an error costs one ``try``, a row without error costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa
import xxhash

from cloudshard.engine.block import Block, Row
from cloudshard.engine.convert import as_rows
from cloudshard.engine.item import ItemState, Tally
from cloudshard.engine.policy import BeforeRow, suppress
from cloudshard.plan.values import StepSpec

_FAILED = object()
_NOTHING = type(None)


class RowStep:
    """One compiled row step. ``index``: its place among the stage's steps."""

    def __init__(self, spec: StepSpec, index: int, function: Callable[..., Any] | None) -> None:
        self.spec = spec
        self.index = index
        self.function = function
        self.before_row: BeforeRow | None = None
        self.shared_limits: dict[str, int] | None = None
        self._apply = getattr(self, f"_{spec.kind}")

    def run(self, block: Block, state: ItemState) -> Block:
        """The block after this step; rows that failed have been dealt with."""
        tally = state.tallies[self.index]
        began = time.perf_counter()
        gone = tally.dropped + tally.quarantined
        if self.native(block):
            return self._native(block, state, tally)
        block = as_rows(block)
        rows, positions = self._apply(block, state, tally)
        tally.through(len(block), len(rows), tally.dropped + tally.quarantined - gone)
        tally.seconds += time.perf_counter() - began
        return Block(block.origin, positions, rows=rows, nbytes=block.nbytes)

    def native(self, block: Block) -> bool:
        """Whether the step works on the block's table as it is."""
        return block.table is not None and self.spec.kind in ("sample", "limit")

    def _native(self, block: Block, state: ItemState, tally: Tally) -> Block:
        if self.spec.kind == "sample":
            flags = sample_flags(block, float(self.spec.params["fraction"]), int(self.spec.params.get("seed", 0)))
            positions: Sequence[int] = list(compress(block.positions, flags))
            table = block.table.filter(pa.array(flags, pa.bool_()))
        else:
            limits, left = self._left(state)
            table, positions = block.table.slice(0, left), block.positions[:left]
            limits[self.spec.name] = left - len(positions)
        tally.through(len(block), len(positions))
        return Block(block.origin, positions, table=table, nbytes=block.nbytes)

    # ------------------------------------------------------------ the loop

    def _results(self, block: Block, state: ItemState, tally: Tally) -> list[Any]:
        """One result per row; ``_FAILED`` where the row is gone, None-filled where the policy says so."""
        rows = block.rows or []
        if self.before_row is not None:
            self.before_row(block.origin.object, block.positions[0] if rows else -1, self.spec.name)
        # the function may change a row in place before it fails: the quarantine keeps what came in
        kept = [row.copy() for row in rows] if self.spec.on_error == "quarantine" else rows
        results: list[Any] = []
        source = iter(rows)
        while True:
            try:
                results.extend(map(self.function, source))  # type: ignore[arg-type]  # rows steps have a function
                return results
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                at = len(results)
                stays = suppress(
                    state,
                    tally,
                    self.spec.on_error,
                    error,
                    step=self.spec.name,
                    origin=block.origin,
                    position=block.positions[at],
                    row=kept[at],
                )
                results.append(None if stays else _FAILED)

    def _wrong(self, results: list[Any], allowed: set[type], block: Block, state: ItemState, tally: Tally, expected: str) -> None:
        """Results of a wrong type are the row's failure, like an exception."""
        wrong = set(map(type, results)) - allowed - {object}
        if not wrong:
            return
        for at, result in enumerate(results):
            if type(result) in wrong and not (dict in allowed and isinstance(result, dict)):
                error = TypeError(f"the function returned {type(result).__name__}, expected {expected}")
                stays = suppress(
                    state,
                    tally,
                    self.spec.on_error,
                    error,
                    step=self.spec.name,
                    origin=block.origin,
                    position=block.positions[at],
                    row=(block.rows or [])[at],
                )
                results[at] = None if stays else _FAILED

    # ------------------------------------------------------------ kinds

    def _map(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Row], Sequence[int]]:
        into = self.spec.params.get("into")
        results = self._results(block, state, tally)
        if into is not None:
            return self._put(block, results, into)
        self._wrong(results, {dict, _NOTHING}, block, state, tally, "a row (dict) or None")
        if _NOTHING not in set(map(type, results)) and _FAILED not in results:
            return results, block.positions
        flags = [result is not None and result is not _FAILED for result in results]
        return list(compress(results, flags)), list(compress(block.positions, flags))

    def _put(self, block: Block, results: list[Any], into: str) -> tuple[list[Row], Sequence[int]]:
        rows: list[Row] = []
        positions: list[int] = []
        for row, result, position in zip(block.rows or [], results, block.positions, strict=True):
            if result is not _FAILED:
                row[into] = result
                rows.append(row)
                positions.append(position)
        return rows, positions

    def _filter(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Row], Sequence[int]]:
        flags = self._results(block, state, tally)
        wrong = {kind for kind in set(map(type, flags)) - {bool, object, _NOTHING} if kind.__name__ not in ("bool_", "bool")}
        if wrong or _NOTHING in set(map(type, flags)):
            allowed = set(map(type, flags)) - wrong - {_NOTHING}
            self._wrong(flags, allowed, block, state, tally, "True or False")
        flags = [flag is not _FAILED and bool(flag) for flag in flags]
        if all(flags):
            return block.rows or [], block.positions
        return list(compress(block.rows or [], flags)), list(compress(block.positions, flags))

    def _flat_map(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Row], Sequence[int]]:
        rows: list[Row] = []
        positions: list[int] = []
        for results, position, origin_row in zip(self._lists(block, state, tally), block.positions, block.rows or [], strict=True):
            bad = next((one for one in results if not isinstance(one, dict)), None)
            if bad is not None:
                error = TypeError(f"the function yielded {type(bad).__name__}, expected rows (dict)")
                where = {"step": self.spec.name, "origin": block.origin, "position": position, "row": origin_row}
                suppress(state, tally, self.spec.on_error, error, **where)  # type: ignore[arg-type]
                continue
            rows += results
            positions += [position] * len(results)
        return rows, positions

    def _lists(self, block: Block, state: ItemState, tally: Tally) -> list[list[Any]]:
        function = self.function

        def listed(row: Row) -> list[Any]:
            made = function(row)  # type: ignore[misc]
            if made is None:
                return []
            if isinstance(made, (dict, str, bytes)):
                raise TypeError(f"the function returned {type(made).__name__}, expected an iterable of rows")
            return list(made)

        self.function = listed
        try:
            results = self._results(block, state, tally)
        finally:
            self.function = function
        return [[] if result is _FAILED or result is None else result for result in results]

    def _sample(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Row], Sequence[int]]:
        flags = sample_flags(block, float(self.spec.params["fraction"]), int(self.spec.params.get("seed", 0)))
        return list(compress(block.rows or [], flags)), list(compress(block.positions, flags))

    def _row_number(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Row], Sequence[int]]:
        into = str(self.spec.params["into"])
        for row, position in zip(block.rows or [], block.positions, strict=True):
            row[into] = position
        return block.rows or [], block.positions

    def _limit(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Row], Sequence[int]]:
        limits, left = self._left(state)
        rows = (block.rows or [])[:left]
        limits[self.spec.name] = left - len(rows)
        return rows, block.positions[: len(rows)]

    def _left(self, state: ItemState) -> tuple[dict[str, int], int]:
        limits = state.limit_left if self.shared_limits is None else self.shared_limits
        return limits, limits.setdefault(self.spec.name, int(self.spec.params["rows"]))


def sample_flags(block: Block, fraction: float, seed: int) -> list[bool]:
    """Which rows a sample keeps: xxh3_64 of (object, position), keyed by the seed; the same whatever the batches or workers.

    The object counts by its URL. ``tests/engine/test_sample.py`` pins vectors.
    """
    bound = int(fraction * 2.0**64)
    base = f"{block.origin.object}\0".encode()
    digest = xxhash.xxh3_64_intdigest
    return [digest(base + str(position).encode(), seed=seed & 0xFFFFFFFFFFFFFFFF) < bound for position in block.positions]
