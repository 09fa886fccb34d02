"""Packing: from the ranges of all input objects, in input order, to work items.

Pure and deterministic: the same ranges and the same wishes give the same work items on every machine (invariant 8). Every byte, row
group or object is in exactly one work item, work items are contiguous in input order, and none is empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from cloudshard.errors import RecipeError
from cloudshard.ledger.records import InputRange, WorkItem

#: Bytes of input per work item when the user wishes nothing: some seconds of Python work, and a claim + commit every few seconds.
DEFAULT_TARGET_BYTES = 128 << 20

#: A small input is cut finer, down to this, so that a handful of processes share it evenly: about 32 work items.
MIN_TARGET_BYTES = 8 << 20
_SMALL_INPUT_ITEMS = 32

#: What opening one more object costs, in bytes of reading: a GET of a small object takes 2–6 ms, in which a process handles about
#: 64 KiB of JSON. So that a work item of a thousand tiny files is not taken for a small one.
OPEN_COST_BYTES = 64 << 10

#: Ranges in one work item at most, so that its record stays small (≈ 200 bytes per range).
MAX_RANGES_PER_ITEM = 4096

#: A cut of an exact ``num_shards`` moves to the edge of an object that is nearer than this share of a shard: a work item that
#: begins with the last few bytes of another object costs one more request for nothing.
SNAP_FRACTION = 0.05


def default_target(total_bytes: int) -> int:
    """Bytes per work item when the user wishes nothing, from the size of the whole input: 8 to 128 MiB."""
    return max(MIN_TARGET_BYTES, min(DEFAULT_TARGET_BYTES, -(-total_bytes // _SMALL_INPUT_ITEMS)))


def pack(
    ranges: Iterable[InputRange], *, num_shards: int | None = None, target_bytes: int | None = None, open_cost_bytes: int = OPEN_COST_BYTES
) -> tuple[WorkItem, ...]:
    """Work items over ``ranges`` (all pieces of all objects, in input order).

    ``num_shards``: exactly that many, balanced by bytes: none is heavier than the mean by more than 5 % and the heaviest object
    that cannot be cut. ``target_bytes``: neighbours are put together while the sum stays below it (an object counts at least
    ``open_cost_bytes``); the ranges themselves are as the format cut them. Both: exactly ``num_shards``, none above ``target_bytes``.
    Raises RecipeError when a wish cannot be fulfilled. No ranges give no work items: an empty input is legal.
    """
    pieces = list(ranges)
    if num_shards is not None and num_shards < 1:
        raise RecipeError(f"num_shards must be at least 1, not {num_shards}")
    if target_bytes is not None and target_bytes < 1:
        raise RecipeError(f"target_bytes must be at least 1, not {target_bytes}")
    if not pieces:
        return ()
    if num_shards is None:
        return _pack_to_target(pieces, target_bytes or DEFAULT_TARGET_BYTES, open_cost_bytes)
    items = _pack_exactly(pieces, num_shards)
    if target_bytes is not None:
        heaviest = max(items, key=lambda item: item.weight)
        if heaviest.weight > target_bytes:
            total = sum(item.weight for item in items)
            raise RecipeError(
                f"{num_shards} shards of at most {target_bytes:,} bytes cannot hold {total:,} bytes of input: "
                f"shard {heaviest.index} would have {heaviest.weight:,}",
                where=heaviest.inputs[0].url,
                mend=f"Ask for at least {-(-total // target_bytes)} shards, for larger ones, or for only one of the two",
            )
    return items


def range_weights(pieces: Sequence[InputRange]) -> list[int]:
    """Estimated bytes of each range: exact for byte ranges and whole objects; a share of the object's size for row groups and rows."""
    totals: dict[str, int] = {}
    for piece in pieces:
        if piece.unit in ("row_groups", "rows"):
            totals[piece.url] = max(totals.get(piece.url, 0), piece.end)
    weights = []
    for piece in pieces:
        if piece.unit in ("row_groups", "rows"):
            total = max(1, totals[piece.url])
            weights.append(piece.size * piece.end // total - piece.size * piece.start // total)
        else:
            weights.append(piece.end - piece.start)
    return weights


def _pack_to_target(pieces: list[InputRange], target_bytes: int, open_cost_bytes: int) -> tuple[WorkItem, ...]:
    """Greedy: a work item takes the next range while it stays within the target; a larger range stands alone."""
    items: list[WorkItem] = []
    held: list[InputRange] = []
    weight = cost = 0
    for piece, piece_weight in zip(pieces, range_weights(pieces), strict=True):
        piece_cost = max(piece_weight, open_cost_bytes)
        if held and (cost + piece_cost > target_bytes or len(held) >= MAX_RANGES_PER_ITEM):
            items.append(_item(len(items), held, weight))
            held, weight, cost = [], 0, 0
        held.append(piece)
        weight += piece_weight
        cost += piece_cost
    if held:
        items.append(_item(len(items), held, weight))
    return tuple(items)


def _item(index: int, inputs: Sequence[InputRange], weight: int) -> WorkItem:
    return WorkItem(index=index, kind="shard", inputs=join_ranges(inputs), weight=weight)


def join_ranges(pieces: Iterable[InputRange]) -> tuple[InputRange, ...]:
    """The same ranges with neighbours of one object made into one (one request instead of two)."""
    joined: list[InputRange] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.url == piece.url and last.unit == piece.unit and last.end == piece.start and piece.unit != "object":
            joined[-1] = _cut(last, last.start, piece.end)
        else:
            joined.append(piece)
    return tuple(joined)


def _cut(piece: InputRange, start: int, end: int) -> InputRange:
    return InputRange(url=piece.url, size=piece.size, etag=piece.etag, start=start, end=end, unit=piece.unit)


def _pack_exactly(pieces: list[InputRange], count: int) -> tuple[WorkItem, ...]:
    """Exactly ``count`` work items.

    The input is seen as a line of units: a byte of a byte range, a row group, or a whole object that cannot be cut. The ideal cut k
    lies at k/count of all bytes; it moves to the nearest edge between two units (so by at most half of the heaviest unit), or to the
    edge of an object that is very near. Where cuts fall together they are moved apart by one unit each; a work item of one unit is
    never heavier than its unit. Hence no work item is heavier than the mean + 2 * snap + the heaviest unit.
    """
    atoms = join_ranges(pieces)
    weights = range_weights(atoms)
    units = [1 if atom.unit == "object" else max(1, atom.end - atom.start) for atom in atoms]
    total_units, total = sum(units), sum(weights)
    if count > total_units:
        raise RecipeError(
            f"num_shards={count}, but the input ({len({atom.url for atom in atoms})} objects) can be cut into at most {total_units}",
            mend="Ask for fewer shards; compressed files (.gz, .zst) cannot be cut",
        )
    mean = total / count
    if count == len(atoms) and max(weights) <= 2 * mean:
        cuts = list(accumulate(units))[:-1]  # one object each: no work item then needs two requests
    else:
        cuts = _ideal_cuts(weights, units, count, snap=SNAP_FRACTION / 2 * mean)
        cuts = _apart(cuts, total_units)
    return _assemble(atoms, weights, units, [0, *cuts, total_units])


def _ideal_cuts(weights: list[int], units: list[int], count: int, *, snap: float) -> list[int]:
    """Unit positions of the ``count`` - 1 inner cuts, nearest to k/count of the total weight; not yet all different."""
    weight_edges = [0, *accumulate(weights)]
    unit_edges = [0, *accumulate(units)]
    total = weight_edges[-1]
    cuts = []
    for k in range(1, count):
        ideal = total * k / count
        right = max(1, bisect_left(weight_edges, ideal))
        left = right - 1
        before, after = ideal - weight_edges[left], weight_edges[right] - ideal
        if units[left] > 1 and min(before, after) > snap:
            cuts.append(unit_edges[left] + round(before * units[left] / weights[left]))
        else:
            cuts.append(unit_edges[left] if before < after else unit_edges[right])
    return cuts


def _apart(cuts: list[int], total_units: int) -> list[int]:
    """The cuts moved as little as it takes for every work item to hold at least one unit."""
    moved: list[int] = []
    previous = 0
    for cut in cuts:
        previous = max(cut, previous + 1)
        moved.append(previous)
    following = total_units
    for index in range(len(moved) - 1, -1, -1):
        following = min(moved[index], following - 1)
        moved[index] = following
    return moved


def _assemble(atoms: Sequence[InputRange], weights: list[int], units: list[int], cuts: list[int]) -> tuple[WorkItem, ...]:
    """Work items between neighbouring cuts (unit positions, 0 and the total included)."""
    items = []
    atom, offset = 0, 0  # the next unit to give out: ``offset`` units of ``atoms[atom]`` are gone
    for index, (begin, end) in enumerate(pairwise(cuts)):
        inputs: list[InputRange] = []
        weight, wanted = 0, end - begin
        while wanted:
            piece = atoms[atom]
            taken = min(wanted, units[atom] - offset)
            if taken == units[atom]:
                inputs.append(piece)
                weight += weights[atom]
            else:
                inputs.append(_cut(piece, piece.start + offset, piece.start + offset + taken))
                weight += weights[atom] * (offset + taken) // units[atom] - weights[atom] * offset // units[atom]
            wanted -= taken
            offset += taken
            if offset == units[atom]:
                atom, offset = atom + 1, 0
        items.append(WorkItem(index=index, kind="shard", inputs=tuple(inputs), weight=weight))
    return tuple(items)
