"""Signs of life from inside a long call, at no cost for a short one.

The engine reports after each block of rows, and a block of slow rows takes long without being stuck. So when a block has been in hand for
a while, a thread of the child looks at the main thread's stack now and then: while rows go by, some count or length among the engine's own
local variables changes (results collected, position reached). A single call of user code that never returns changes none of them.

Only frames of the engine are looked at, and only numbers and lengths: nothing of the user's is touched or kept.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

from cloudshard.worker.pulse import Pulse

LOOK_EVERY_SECONDS = 1.0
ENGINE = "cloudshard.engine."


def look_every(patience_seconds: float) -> float:
    """How often to look, so that several looks fit into the time that a call is allowed."""
    return min(LOOK_EVERY_SECONDS, patience_seconds / 5)


class Liveness(threading.Thread):
    """Refreshes the pulse's call while the thread ``watched`` moves. ``package``: prefix of the modules whose frames are looked at."""

    def __init__(self, pulse: Pulse, *, watched: int | None = None, package: str = ENGINE, every: float = LOOK_EVERY_SECONDS) -> None:
        super().__init__(name="cloudshard-liveness", daemon=True)
        self._pulse = pulse
        self._watched = watched if watched is not None else threading.get_ident()
        self._package = package
        self._every = every
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until :meth:`end`."""
        seen: object = None  # blocks that take less than one round are never looked into
        while not self._ended.wait(self._every):
            call = self._pulse.call()
            if call is None or call[0] < self._every:
                continue
            now = signature(sys._current_frames().get(self._watched), self._package)
            if seen is not None and now != seen:
                self._pulse.moved()
            seen = now

    def end(self) -> None:
        """Stop looking; does not wait."""
        self._ended.set()


def signature(frame: FrameType | None, package: str = ENGINE) -> tuple[object, ...]:
    """Counts and lengths among the local variables of the package's frames, innermost first; changes when the engine has moved."""
    found: list[object] = []
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(package):
            for value in frame.f_locals.values():
                if type(value) is int:
                    found.append(value)
                elif type(value) in (list, dict, set):
                    found.append(len(value))
        frame = frame.f_back
    return tuple(found)
