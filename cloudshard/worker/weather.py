"""Trouble with the store or the machine: how long to hold back, and when to stop hoping. It is never charged to an item.

Every success clears the sky. Refusals for lack of permission are not a matter of waiting: several in a row and the worker gives up.
"""

from __future__ import annotations

import random

from cloudshard.errors import CloudshardError, PermissionDenied

BASE_SECONDS = 1.0
MAX_SECONDS = 60.0
#: Each call of the store has kept trying for minutes before it counts here.
PATIENCE_SECONDS = 1800.0
MAX_DENIALS = 5


class Weather:
    """``clock``-less: the caller says what time it is (seconds, monotonic)."""

    def __init__(self, rng: random.Random | None = None, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._rng = rng or random.Random()
        self._patience = patience_seconds
        self._failures = 0
        self._denials = 0
        self._since: float | None = None
        self.closed_until = 0.0
        self.last: CloudshardError | None = None

    @property
    def clear(self) -> bool:
        """Whether the last call succeeded."""
        return self._failures == 0

    def success(self) -> None:
        """A call of the store, or an attempt, has succeeded."""
        self._failures = self._denials = 0
        self._since = None
        self.closed_until = 0.0

    def failure(self, error: CloudshardError, now: float) -> None:
        """An infrastructure error; nothing new is begun before ``closed_until`` (full jitter)."""
        self.last = error
        self._failures += 1
        self._denials = self._denials + 1 if isinstance(error, PermissionDenied) else 0
        if self._since is None:
            self._since = now
        self.closed_until = now + BASE_SECONDS / 2 + self._rng.random() * min(MAX_SECONDS, BASE_SECONDS * 2.0 ** min(self._failures, 16))

    def hopeless(self, now: float) -> CloudshardError | None:
        """The error to end with, or None while there is hope."""
        if self._denials >= MAX_DENIALS:
            return self.last
        if self._since is not None and now - self._since > self._patience:
            return self.last
        return None
