"""What is found while rows are brought to a schema: values that do not fit, and keys that the schema does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Findings:
    """Collects by row. ``misfits``: (path, reason) of the first value of a row that does not fit; ``unknown``: path → value of keys."""

    def __init__(self) -> None:
        self.misfits: dict[int, tuple[str, str]] = {}
        self.unknown: dict[int, dict[str, Any]] = {}

    def misfit(self, row: int, path: str, reason: str) -> None:
        """The row cannot be held: the value at ``path``, and why."""
        self.misfits.setdefault(row, (path, reason))

    def stranger(self, row: int, path: str, value: Any) -> None:
        """The row has a key that the schema lacks. Several values at one path (inside a list) become a list."""
        found = self.unknown.setdefault(row, {})
        if path not in found:
            found[path] = value
        elif isinstance(found[path], _Several):
            found[path].append(value)
        else:
            found[path] = _Several([found[path], value])

    def within(self, row_of: Callable[[int], int]) -> Findings:
        """A view for values that were flattened: its indices are translated by ``row_of``."""
        return _Within(self, row_of)

    def of_arrow(self) -> Findings:
        """A view for values that came from Arrow, where every key is there: unknown keys that are null say nothing."""
        return _OfArrow(self, int)


class _Several(list[Any]):
    """Values of one path, to tell them from one value that is a list."""


class _Within(Findings):
    def __init__(self, outer: Findings, row_of: Callable[[int], int]) -> None:
        super().__init__()
        self._outer = outer
        self._row_of = row_of

    def misfit(self, row: int, path: str, reason: str) -> None:
        self._outer.misfit(self._row_of(row), path, reason)

    def stranger(self, row: int, path: str, value: Any) -> None:
        self._outer.stranger(self._row_of(row), path, value)


class _OfArrow(_Within):
    def stranger(self, row: int, path: str, value: Any) -> None:
        if value is not None:
            super().stranger(row, path, value)


def find_failing(count: int, attempt: Callable[[Sequence[int]], str | None]) -> list[tuple[int, str]]:
    """The indices below ``count`` that fail alone, with the reason, by bisection.

    ``attempt(indices)`` tries some of them together and returns None, or the reason of the failure.
    """
    failing: list[tuple[int, str]] = []
    todo: list[Sequence[int]] = [range(count)]
    while todo:
        some = todo.pop()
        if not len(some):
            continue
        reason = attempt(some)
        if reason is None:
            continue
        if len(some) == 1:
            failing.append((some[0], reason))
        else:
            half = len(some) // 2
            todo += [some[half:], some[:half]]
    return failing
