"""A fleet of real worker processes, each in its own session, and what one does to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Worker:
    """One `cloudshard` process and all its children."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def signal_all(self, number: signal.Signals) -> None:
        """Signal the whole session: supervisor, zygote and children."""
        for pid in session_members(self.process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def terminate(self) -> None:
        """Ask the supervisor to stop, as a scheduler would."""
        self.process.send_signal(signal.SIGTERM)

    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(errors="replace")


def session_members(leader: int) -> list[int]:
    """Live processes whose session was begun by ``leader``, and their descendants in sessions of their own."""
    import psutil

    found = set()
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                found.add(process.pid)
                found.update(child.pid for child in process.children(recursive=True))
        except (ProcessLookupError, psutil.NoSuchProcess, PermissionError):
            continue
    return sorted(found)


@dataclass
class Fleet:
    """Starts workers with one command."""

    command: Sequence[str]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)

    def start(self) -> Worker:
        """One more worker."""
        name = f"worker-{len(self.workers)}"
        log = self.folder / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloudshard.cli", *self.command],
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, **self.env},
            )
        worker = Worker(name, process, log)
        self.workers.append(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """SIGKILL the whole tree at once: the machine is gone."""
        worker.signal_all(signal.SIGKILL)
        worker.process.wait(10)

    def wait(self, workers: Sequence[Worker], seconds: float) -> list[int]:
        """Exit codes of ``workers``, in order."""
        end = time.monotonic() + seconds
        return [worker.process.wait(max(0.1, end - time.monotonic())) for worker in workers]

    def close(self) -> None:
        """Leave nothing behind."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.signal_all(signal.SIGCONT)
                self.kill(worker)

    def logs(self) -> str:
        """All logs, for a failing test's message."""
        return "\n".join(f"--- {worker.name} (exit {worker.process.poll()})\n{worker.text()[-3000:]}" for worker in self.workers)


def wait_until(condition: Callable[[], bool], seconds: float, what: str, every: float = 0.2) -> None:
    """Poll until ``condition()``; an AssertionError that says ``what`` was waited for."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for: {what}"
        time.sleep(every)
