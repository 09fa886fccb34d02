"""Options of readers and writers: known names only, checked values, one clear sentence when they are wrong."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from cloudshard.errors import RecipeError


class OptionReader:
    """Takes options one by one with a default and a check; :meth:`finish` refuses what nobody took."""

    def __init__(self, owner: str, options: Mapping[str, Any]) -> None:
        """``owner`` names the reader or writer in messages ("jsonl reader")."""
        self._owner = owner
        self._left = dict(options)
        self._known: list[str] = []

    def take(self, name: str, default: Any = None) -> Any:
        """The option as given, or ``default``."""
        self._known.append(name)
        value = self._left.pop(name, None)
        return default if value is None else value

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of ``choices``."""
        value = self.take(name, default)
        if value not in choices:
            raise RecipeError(f"{name} must be one of {', '.join(choices)}, not {value!r}", where=self._owner)
        return str(value)

    def positive(self, name: str, default: int) -> int:
        """A whole number of at least 1."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RecipeError(f"{name} must be a whole number of at least 1, not {value!r}", where=self._owner)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise RecipeError(f"{name} must be true or false, not {value!r}", where=self._owner)
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise RecipeError(f"{name} must be a string, not {value!r}", where=self._owner)
        return value

    def names(self, name: str) -> list[str] | None:
        """A list of strings, or None."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            raise RecipeError(f"{name} must be a list of names, not {value!r}", where=self._owner)
        return list(value)

    def finish(self) -> None:
        """Raise RecipeError for an option that is not known, with the nearest known name."""
        for name in self._left:
            close = difflib.get_close_matches(name, self._known, n=1)
            mend = f"Did you mean {close[0]!r}?" if close else f"Known options: {', '.join(sorted(self._known))}."
            raise RecipeError(f"unknown option {name!r}", where=self._owner, mend=mend)
