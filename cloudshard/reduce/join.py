"""Joins of two sides: what SQL, columns and types they have, and the join of one partition in DuckDB.

Null keys match nothing. Columns of the result: those of the left side, then those of the right side without its key columns; a name that
is taken gets ``suffix``. A key column is there once, under the left side's name; in right and full joins it has whichever side's value is
there. semi and anti joins have the columns of the left side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from cloudshard.errors import RecipeError, SchemaError
from cloudshard.reduce.database import Budget, Feed, query, quoted
from cloudshard.reduce.hashing import is_bytes, is_text

How = Literal["inner", "left", "right", "full", "semi", "anti"]

_WORDS = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "SEMI", "anti": "ANTI"}

#: Sides of which a partition may have only a part, when it has all of the other: (left, right) = (0, 1).
DIVISIBLE: dict[str, tuple[int, ...]] = {"inner": (0, 1), "left": (0,), "right": (1,), "full": (), "semi": (0,), "anti": (0,)}

#: Sides whose rows with null keys can be dropped before the exchange; those of the other sides are spread over all buckets.
DROPS_NULLS: dict[str, tuple[int, ...]] = {"inner": (0, 1), "left": (1,), "right": (0,), "full": (), "semi": (0, 1), "anti": (1,)}


class JoinPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A join as SQL over the relations ``l`` and ``r``; ``left_keys`` and ``right_keys`` are what each side is partitioned by."""

    how: How
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    sql: str
    columns: tuple[str, ...]


def plan_join(
    left: pa.Schema, right: pa.Schema, on: Sequence[str | tuple[str, str]], *, how: How = "inner", suffix: str = "_right"
) -> JoinPlan:
    """The join of rows of two schemas. ``on``: columns of the same name, or (left, right) pairs.

    Raises RecipeError for an unknown ``how``, no key, or names that collide even with the suffix; SchemaError for a key that is not there
    or whose types on the two sides are never equal.
    """
    if how not in _WORDS:
        raise RecipeError(f"join(how={how!r}) is unknown", mend=f"Use one of {', '.join(_WORDS)}.")
    pairs = [(one, one) if isinstance(one, str) else (one[0], one[1]) for one in on]
    if not pairs:
        raise RecipeError("a join needs at least one key column", mend="Give on=.")
    for side, schema, names in (("left", left, [a for a, _ in pairs]), ("right", right, [b for _, b in pairs])):
        for name in names:
            if schema.get_field_index(name) < 0:
                what = f"the join column {name!r} is not in the {side} side (columns: {', '.join(schema.names)})"
                raise SchemaError(what, mend="Name a column of both sides, or a pair (left, right).")
    for a, b in pairs:
        first, second = left.field(a).type, right.field(b).type
        if _family(first) != _family(second):
            what = f"the join columns {a!r} ({first}) and {b!r} ({second}) have types that are never equal"
            raise SchemaError(what, mend="Cast one of them in a step before the join.")
    columns, names = _columns(left, right, pairs, how, suffix)
    condition = " AND ".join(f"l.{quoted(a)} = r.{quoted(b)}" for a, b in pairs)
    sql = f"SELECT {', '.join(columns)} FROM l {_WORDS[how]} JOIN r ON {condition}"  # noqa: S608 - names are quoted
    return JoinPlan(how=how, left_keys=tuple(a for a, _ in pairs), right_keys=tuple(b for _, b in pairs), sql=sql, columns=tuple(names))


def _columns(left: pa.Schema, right: pa.Schema, pairs: Sequence[tuple[str, str]], how: How, suffix: str) -> tuple[list[str], list[str]]:
    key_of = dict(reversed(pairs))
    columns, names = [], []
    for name in left.names:
        own = f"l.{quoted(name)}"
        if name in key_of and how in ("right", "full"):
            own = f"coalesce({own}, r.{quoted(key_of[name])})"
        columns.append(f"{own} AS {quoted(name)}")
        names.append(name)
    if how in ("semi", "anti"):
        return columns, names
    keys = {b for _, b in pairs}
    for name in right.names:
        if name in keys:
            continue
        made = name if name not in left.names else name + suffix
        if made in names or (made != name and made in right.names):
            raise RecipeError(f"the joined rows would have two columns {made!r}", mend="Choose another suffix=, or rename the column.")
        columns.append(f"r.{quoted(name)} AS {quoted(made)}")
        names.append(made)
    return columns, names


def _family(kind: pa.DataType) -> str:
    """Types of one family have equal hashes for equal values, and DuckDB compares them by value."""
    if isinstance(kind, pa.BaseExtensionType):
        return _family(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _family(kind.value_type)
    if is_text(kind):
        return "text"
    if is_bytes(kind):
        return "bytes"
    for name, belongs in (("integer", pt.is_integer), ("float", pt.is_floating), ("decimal", pt.is_decimal), ("date", pt.is_date)):
        if belongs(kind):
            return name
    if pt.is_timestamp(kind):
        return "instant" if kind.tz else "timestamp"
    if pt.is_time(kind):
        return "time"
    if pt.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_family(field.type)}' for field in kind)}>"
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return f"list<{_family(kind.value_type)}>"
    return str(kind)


def join(
    plan: JoinPlan,
    left: Iterable[pa.Table],
    left_schema: pa.Schema,
    right: Iterable[pa.Table],
    right_schema: pa.Schema,
    budget: Budget,
    *,
    where: str = "",
) -> Iterator[pa.Table]:
    """The joined rows of one partition; order is not defined. DuckDB holds one side in memory and spills what is more.

    Raises as :func:`cloudshard.reduce.database.query` does.
    """
    yield from query(plan.sql, {"l": Feed(left_schema, left), "r": Feed(right_schema, right)}, budget, where=where, step="join")
