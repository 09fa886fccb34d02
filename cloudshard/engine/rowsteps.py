"""Row steps over a block of rows: one tight loop per step, nothing but the user's call inside it.

``results.extend(map(function, rows))`` runs the loop in C. When the function raises, the results so far are kept, the failed row
is dealt with, and the same iterator goes on behind it: an error costs one ``try``, a row without error costs nothing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa
import xxhash

from cloudshard.engine.block import Block, Row
from cloudshard.engine.convert import as_rows
from cloudshard.engine.item import ItemState, Tally
from cloudshard.engine.policy import BeforeRow, suppress
from cloudshard.plan.values import StepSpec

#: In the place of a result: the row is gone, and counted.
_FAILED = object()
_NONE = type(None)


class RowStep:
    """One compiled row step. ``index``: its place among the stage's steps."""

    def __init__(self, spec: StepSpec, index: int, function: Callable[..., Any] | None) -> None:
        self.spec = spec
        self.index = index
        self.function = _listed(function) if spec.kind == "flat_map" and function is not None else function
        self.before_row: BeforeRow | None = None
        self.shared_limits: dict[str, int] | None = None
        self._apply: Callable[[Block, ItemState, Tally], Block] = getattr(self, f"_{spec.kind}")
        # the function may change a row in place before it fails: what came in is what the policy keeps
        self._copies = spec.on_error in ("quarantine", "null")

    def run(self, block: Block, state: ItemState) -> Block:
        """The block after this step; rows that failed have been dealt with."""
        tally = state.tallies[self.index]
        began = time.perf_counter()
        made = self._apply(block, state, tally)
        tally.seconds += time.perf_counter() - began
        return made

    # ------------------------------------------------------------ the loop

    def _results(self, block: Block, state: ItemState, tally: Tally) -> tuple[list[Any], Sequence[Row]]:
        """(one result per row, ``_FAILED`` where the row is gone, None where the policy says null; the rows as they came in)."""
        rows = block.rows or []
        if self.before_row is not None and rows:
            self.before_row(block.origin.object, block.positions[0], self.spec.name)
        kept = [row.copy() for row in rows] if self._copies else rows
        results: list[Any] = []
        source = iter(rows)
        while True:
            try:
                results.extend(map(self.function, source))  # type: ignore[arg-type]  # these steps have a function
                if len(results) == len(rows):
                    return results, kept
                # the loop takes a StopIteration (of a bare next(), mostly) for its own end
                raise RuntimeError("the function raised StopIteration")
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                at = len(results)
                results.append(self._failure(block, kept[at], at, error, state, tally))

    def _failure(self, block: Block, row: Row, at: int, error: BaseException, state: ItemState, tally: Tally) -> Any:
        """What stands in the place of the result of a row that failed."""
        policy, position = self.spec.on_error, block.positions[at]
        stays = suppress(state, tally, policy, error, step=self.spec.name, origin=block.origin, position=position, row=row)
        return None if stays else _FAILED

    def _refuse(
        self,
        results: list[Any],
        kept: Sequence[Row],
        wrong: Callable[[Any], bool],
        expected: str,
        block: Block,
        state: ItemState,
        tally: Tally,
    ) -> None:
        """Results of a wrong type are the row's failure, like an exception."""
        for result in results:
            if inspect.iscoroutine(result):
                result.close()  # or Python warns of each that nobody has awaited it
        for at, result in enumerate(results):
            if result is not _FAILED and wrong(result):
                hint = ": async functions are for map_async" if inspect.iscoroutine(result) else ""
                error = TypeError(f"the function returned {type(result).__name__}, expected {expected}{hint}")
                results[at] = self._failure(block, kept[at], at, error, state, tally)

    # ------------------------------------------------------------ steps with a function

    def _map(self, block: Block, state: ItemState, tally: Tally) -> Block:
        block = as_rows(block)
        into = self.spec.params.get("into")
        if into is not None:
            return self._map_into(block, str(into), state, tally)
        results, kept = self._results(block, state, tally)
        kinds = set(map(type, results))
        if kinds == {dict}:
            tally.through(len(results), len(results))
            return Block(block.origin, block.positions, rows=results, nbytes=block.nbytes)
        if not kinds <= {dict, _NONE, object}:
            self._refuse(
                results, kept, lambda one: one is not None and not isinstance(one, dict), "a row (dict) or None", block, state, tally
            )
        return _chosen(block, results, [one is not None and one is not _FAILED for one in results], tally, _lost(results))

    def _map_into(self, block: Block, into: str, state: ItemState, tally: Tally) -> Block:
        results, kept = self._results(block, state, tally)
        lost = _lost(results)
        # neither the row that an earlier step holds on to nor the one that stands here twice may change
        rows = [{**row, into: one} for row, one in zip(kept, results, strict=True) if one is not _FAILED]
        tally.through(len(results), len(rows), lost)
        if not lost:
            return Block(block.origin, block.positions, rows=rows, nbytes=block.nbytes)
        positions = [position for position, one in zip(block.positions, results, strict=True) if one is not _FAILED]
        return Block(block.origin, positions, rows=rows, nbytes=block.nbytes)

    def _filter(self, block: Block, state: ItemState, tally: Tally) -> Block:
        block = as_rows(block)
        flags, kept = self._results(block, state, tally)
        if not set(map(type, flags)) <= {bool}:
            self._refuse(flags, kept, _is_no_flag, "True or False", block, state, tally)
        lost = _lost(flags)
        return _chosen(block, kept, [one is not _FAILED and bool(one) for one in flags], tally, lost)

    def _flat_map(self, block: Block, state: ItemState, tally: Tally) -> Block:
        block = as_rows(block)
        results, _ = self._results(block, state, tally)
        rows: list[Row] = []
        positions: list[int] = []
        for made, position in zip(results, block.positions, strict=True):
            if made is _FAILED:
                continue
            rows += made
            positions += [position] * len(made)
            tally.added += max(0, len(made) - 1)
            tally.filtered += not made
        if len(set(map(id, rows))) < len(rows):  # one dict given twice is two rows all the same
            rows = [row.copy() for row in rows]
        tally.rows_in += len(results)
        tally.rows_out += len(rows)
        return Block(block.origin, positions, rows=rows, nbytes=block.nbytes)

    # ------------------------------------------------------------ steps by identity and number

    def _sample(self, block: Block, state: ItemState, tally: Tally) -> Block:
        flags = sample_flags(block, float(self.spec.params["fraction"]), int(self.spec.params.get("seed", 0)))
        return _chosen(block, block.rows, flags, tally)

    def _limit(self, block: Block, state: ItemState, tally: Tally) -> Block:
        limits = state.limit_left if self.shared_limits is None else self.shared_limits
        left = limits.setdefault(self.spec.name, int(self.spec.params["rows"]))
        taken = min(left, len(block))
        limits[self.spec.name] = left - taken
        if taken == len(block):
            tally.through(taken, taken)
            return block
        return _chosen(block, block.rows, [at < taken for at in range(len(block))], tally)

    def _row_number(self, block: Block, state: ItemState, tally: Tally) -> Block:
        into = str(self.spec.params["into"])
        tally.through(len(block), len(block))
        if block.table is not None:
            column = pa.array(block.positions, pa.int64())
            at = block.table.schema.get_field_index(into)
            table = block.table.append_column(into, column) if at < 0 else block.table.set_column(at, into, column)
            return Block(block.origin, block.positions, table=table, nbytes=block.nbytes)
        rows = [{**row, into: position} for row, position in zip(block.rows or (), block.positions, strict=True)]
        return Block(block.origin, block.positions, rows=rows, nbytes=block.nbytes)


def _chosen(block: Block, rows: Sequence[Row] | None, flags: list[bool], tally: Tally, lost: int = 0) -> Block:
    """The rows whose flag is set; ``lost`` of the others were removed by the error policy, and are counted."""
    count = sum(flags)
    tally.through(len(block), count, lost)
    if count == len(block):
        return Block(
            block.origin,
            block.positions,
            rows=None if block.table is not None else list(rows or ()),
            table=block.table,
            nbytes=block.nbytes,
        )
    positions = list(compress(block.positions, flags))
    nbytes = block.nbytes * count // len(block)
    if block.table is not None:
        return Block(block.origin, positions, table=block.table.filter(pa.array(flags, pa.bool_())), nbytes=nbytes)
    return Block(block.origin, positions, rows=list(compress(rows or (), flags)), nbytes=nbytes)


def _lost(results: Iterable[Any]) -> int:
    return sum(one is _FAILED for one in results)


def _is_no_flag(value: Any) -> bool:
    """bool and numpy's bool are flags; None, numbers and text are mistakes as often as not."""
    return not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool")


def _listed(function: Callable[..., Any]) -> Callable[[Row], list[Row]]:
    """A flat_map's function as one that gives a list of rows: a generator is run to its end, and what it gives is checked."""

    def listed(row: Row) -> list[Row]:
        made = function(row)
        if made is None:
            return []
        if isinstance(made, (dict, str, bytes)):
            raise TypeError(f"the function returned {type(made).__name__}, expected an iterable of rows")
        rows = made if type(made) is list else list(made)
        for one in rows:
            if not isinstance(one, dict):
                raise TypeError(f"the function yielded {type(one).__name__}, expected rows (dict)")
        return rows

    return listed


def sample_flags(block: Block, fraction: float, seed: int) -> list[bool]:
    """Which rows a sample keeps: xxh3_64 of (object, position), keyed by the seed; the same whatever the batches or workers.

    The object counts by its URL. Rows made of one row (``flat_map``) are kept or left out together. ``tests/engine/test_sample.py`` pins
    vectors.
    """
    bound = int(fraction * 2.0**64)
    base = f"{block.origin.object}\0".encode("utf-8", "surrogatepass")
    digest = xxhash.xxh3_64_intdigest
    key = seed & 0xFFFFFFFFFFFFFFFF
    return [digest(base + str(position).encode(), seed=key) < bound for position in block.positions]
