"""A simple predicate over columns: rules out row groups by their statistics, and filters tables exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cloudshard.errors import RecipeError

Term = tuple[str, str, Any]

_OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")
_MEND = 'Write [["score", ">=", 0.5], ["lang", "in", ["en", "de"]]] (all hold), or a list of such lists (any holds).'
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class Predicate:
    """Any of several lists of terms, all of which hold. A null fulfils nothing, as in SQL."""

    def __init__(self, either: Sequence[Sequence[Term]]) -> None:
        self._either = either
        self.columns = tuple(dict.fromkeys(column for terms in either for column, _, _ in terms))

    @classmethod
    def of(cls, given: Any) -> Predicate | None:
        """From the option ``filter``. Raises RecipeError when it is malformed."""
        if given is None:
            return None
        if not isinstance(given, (list, tuple)) or not given:
            raise RecipeError("filter must be a list of [column, operator, value]", mend=_MEND)
        single = all(isinstance(one, (list, tuple)) and len(one) == 3 and isinstance(one[0], str) for one in given)
        groups = [given] if single else given
        return cls([[_term(one) for one in group] if isinstance(group, (list, tuple)) else [_term(group)] for group in groups])

    def apply(self, table: pa.Table) -> tuple[pa.Table, list[int]]:
        """(the rows that fulfil it, their indices)."""
        mask = None
        for terms in self._either:
            each = None
            for column, operator, value in terms:
                one = _holds(table.column(column), operator, value)
                each = one if each is None else pc.and_(each, one)
            mask = each if mask is None else pc.or_(mask, each)
        indices = pc.indices_nonzero(mask)
        return (table if len(indices) == table.num_rows else table.take(indices)), indices.to_pylist()

    def rules_out(self, group: Any) -> bool:
        """Whether a Parquet row group's statistics show that no row of it can fulfil the predicate."""
        statistics = {}
        for index in range(group.num_columns):
            column = group.column(index)
            if column.path_in_schema in self.columns and column.is_stats_set and column.statistics.has_min_max:
                statistics[column.path_in_schema] = column.statistics
        return all(
            any(name in statistics and _impossible(statistics[name], how, value) for name, how, value in terms) for terms in self._either
        )


def _term(given: Any) -> Term:
    if not isinstance(given, (list, tuple)) or len(given) != 3 or not isinstance(given[0], str) or given[1] not in _OPERATORS:
        raise RecipeError(f"not a term of a filter: {given!r}", mend=f"{_MEND} Operators: {', '.join(_OPERATORS)}.")
    column, operator, value = given
    if operator in ("in", "not in") and not isinstance(value, (list, tuple, set, frozenset)):
        raise RecipeError(f"{operator!r} needs a list of values, not {value!r}", mend=_MEND)
    return column, operator, list(value) if operator in ("in", "not in") else value


def _holds(column: pa.ChunkedArray, operator: str, value: Any) -> pa.ChunkedArray:
    """A mask without nulls."""
    try:
        if operator in ("in", "not in"):
            found = pc.is_in(column, value_set=pa.array(value).cast(column.type))
            if operator == "in":
                return pc.and_(found, column.is_valid())
            return pc.and_(pc.invert(found), column.is_valid())
        return pc.fill_null(_COMPARE[operator](column, pa.scalar(value)), False)
    except pa.ArrowException as error:
        raise RecipeError(f"a column of type {column.type} cannot be compared with {value!r}", mend=f"{_MEND} ({error})") from error


def _impossible(statistics: Any, operator: str, value: Any) -> bool:
    # bounds that are NaN compare false with everything, and so rule nothing out
    low, high = statistics.min, statistics.max
    try:
        if operator == "in":
            return all(one is None or one < low or one > high for one in value)
        if operator in ("=", "=="):
            return bool(value < low or value > high)
        if operator == "<":
            return bool(low >= value)
        if operator == "<=":
            return bool(low > value)
        if operator == ">":
            return bool(high <= value)
        if operator == ">=":
            return bool(high < value)
    except TypeError:  # the value is of another kind than the column: the exact filter says so
        return False
    return False
