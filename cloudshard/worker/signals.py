"""Signals as events of a loop: SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask a worker to stop.

A handler only writes the signal's number into a pipe, so that the loop acts on it at a moment of its own choosing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from cloudshard.errors import Preempted
from cloudshard.worker.kinship import STOP_SIGNALS


class StopSignals:
    """A context in which stop signals are heard and not obeyed. Outside the main thread it hears nothing: Python allows no more."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, Any] = {}

    def fileno(self) -> int:
        """For a selector."""
        return self._read

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                before = signal.getsignal(number)
                if number == signal.SIGHUP and before == signal.SIG_IGN:
                    continue  # nohup: it is to outlive its terminal
                self._before[number] = before
                signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before = {}
        os.close(self._read)
        os.close(self._write)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        try:
            os.write(self._write, bytes([number]))
        except BlockingIOError:
            return  # thousands are waiting already

    def take(self) -> list[signal.Signals]:
        """Signals heard since the last call."""
        try:
            return [signal.Signals(number) for number in os.read(self._read, 4096)]
        except BlockingIOError:
            return []


@contextlib.contextmanager
def stop_by_exception(doing: str) -> Iterator[None]:
    """Outside the loop: SIGTERM, SIGUSR1 and SIGHUP raise Preempted (SIGINT raises KeyboardInterrupt anyway).

    ``doing``: what is interrupted. User code that catches everything does not get in the way.
    """
    heard: list[signal.Signals] = []

    def stopped() -> Preempted:
        return Preempted(f"{heard[0].name} while {doing}: nothing was begun", mend="Run the same command again.")

    def raise_it(number: int, _frame: FrameType | None) -> None:
        heard.append(signal.Signals(number))
        raise stopped()

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, raise_it)
    try:
        yield
        if heard:
            raise stopped()
    except Exception as error:  # whatever user code made of the interruption: the signal is why
        if heard and not isinstance(error, Preempted):
            raise stopped() from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
