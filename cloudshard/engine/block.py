"""The unit that flows between segments: some rows of one input object, with each row's place.

A row's identity is (object, position): the byte offset of its line, or its row index in a columnar file. It survives
every step (a row made by ``flat_map`` keeps its parent's identity), so that errors, sampling and quarantine name the
same place whatever the number of workers or the size of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The work item and object that rows came from. ``unit``: what positions count ("byte" or "row")."""

    item: int
    object: str
    unit: str = "row"


@dataclass(slots=True)
class Block:
    """Rows as dicts (``rows``) or as one Arrow table (``table``): exactly one of them is set.

    ``positions`` has one entry per row. ``nbytes``: estimated bytes of the rows as read (for bounding batches).
    """

    origin: Origin
    positions: Sequence[int]
    rows: list[Row] | None = None
    table: Any = None  # a pa.Table or None
    nbytes: int = field(default=0)

    def __len__(self) -> int:
        return len(self.positions)
