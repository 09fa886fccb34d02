"""The child: runs the attempts that it is assigned, one after the other, and never waits for a commit.

Several assignments may be queued, so that tiny items do not wait for a round trip. Batches may span items: results come in the order
in which items complete. When nothing is queued and rows are in flight, the executor is drained.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import pickle
import socket
import sys
import time
from collections import deque

import msgspec

from cloudshard.errors import StoreError
from cloudshard.ledger import keys
from cloudshard.worker import attempt_log, kinship
from cloudshard.worker.execution import Executor, trouble_of
from cloudshard.worker.messages import (
    Assign,
    Dropped,
    Failed,
    FrameReader,
    Ready,
    Requests,
    Setup,
    SetupFailed,
    Stop,
    ToChild,
    Withdraw,
    frame,
    receive,
)
from cloudshard.worker.pulse import Pulse

#: How often the child tells its request counters.
_REQUESTS_EVERY_SECONDS = 10.0


def child_main(name: str, sock: int, page: int, output: int) -> int:
    """Be a child until told to stop; the process's exit status. ``sock``, ``page``, ``output``: inherited descriptors."""
    _take_over_streams(output)
    kinship.ignore_stop_signals()
    kinship.become_expendable()
    faulthandler.enable(file=2)
    _settle_libraries()
    channel = socket.socket(fileno=sock)
    kinship.watch_for_end(channel)
    return Child(name, channel, Pulse(page)).run()


def _take_over_streams(output: int) -> None:
    """stdin is empty; stdout and stderr go to the supervisor line by line, whatever the parent had put in their place."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the life of the process
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = io.TextIOWrapper(open(number, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _settle_libraries() -> None:
    """One core per child; random numbers of its own."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None:
        pyarrow.set_cpu_count(1)
        pyarrow.set_io_thread_count(2)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # a fork would repeat its siblings' numbers; the `random` module takes care of itself


class _Orphaned(Exception):
    """The supervisor is gone."""


class Child:
    """State of one child. ``queue``: assignments that have not begun; ``open``: begun, no result yet."""

    def __init__(self, name: str, sock: socket.socket, pulse: Pulse) -> None:
        self.name = name
        self.queue: deque[Assign] = deque()
        self.open: dict[int, Assign] = {}
        self._sock = sock
        self._pulse = pulse
        self._reader = FrameReader(ToChild)
        self._executor: Executor | None = None
        self._setup: Setup | None = None
        self._stopping = False
        self._log = attempt_log.install()
        self._told_requests = time.monotonic()

    def run(self) -> int:
        """The loop; returns the exit status."""
        try:
            return self._loop()
        except _Orphaned:
            return 1

    def _loop(self) -> int:
        while True:
            idle = not self.queue and not self.open
            if idle and self._stopping:
                self._close()
                return 0
            messages = receive(self._sock, self._reader, wait=idle)
            if messages is None:  # no supervisor, no claim: whatever is in hand is worthless
                return 1
            for message in messages:
                if not self._hear(message):
                    return 0
            if self.queue:
                self._run_next()
            elif self.open:
                self._drain()

    # ------------------------------------------------------------ messages

    def _hear(self, message: ToChild) -> bool:
        if isinstance(message, Assign):
            self.queue.append(message)
        elif isinstance(message, Withdraw):
            unwanted = set(message.tickets)
            self.queue = deque(assign for assign in self.queue if assign.ticket not in unwanted)
        elif isinstance(message, Stop):
            self._stopping = True
            self._tell(Dropped(tuple(assign.ticket for assign in self.queue)))
            self.queue.clear()
        else:
            return self._set_up(message)
        return True

    def _set_up(self, setup: Setup) -> bool:
        began = time.monotonic()
        self._setup = setup
        try:
            if self._executor is not None:
                self._executor.close()
                self._executor = None
            if setup.options:
                _register_options(setup.options)
            if setup.scratch:
                os.environ["CLOUDSHARD_SCRATCH"] = setup.scratch
            self._executor = self._make_executor(setup)
        except Exception as error:  # noqa: BLE001 - user code (setup, imports) may raise anything: it is reported, and the child ends
            self._tell(SetupFailed(setup.stage.index, trouble_of(error)))
            return False
        self._tell(Ready(setup.stage.index, time.monotonic() - began))
        return True

    def _make_executor(self, setup: Setup) -> Executor:
        module, _, name = setup.executor.partition(":")
        made: Executor = getattr(importlib.import_module(module), name)(setup, self._pulse)
        return made

    def _tell(self, *messages: msgspec.Struct) -> None:
        try:
            self._sock.sendall(b"".join(map(frame, messages)))
        except (BrokenPipeError, ConnectionResetError):
            raise _Orphaned from None

    # ------------------------------------------------------------ attempts

    def _run_next(self) -> None:
        assign = self.queue.popleft()
        self.open[assign.ticket] = assign
        self._pulse.begin(assign.ticket)
        executor = self._executor
        if executor is None:
            raise RuntimeError("an assignment came before the setup")
        try:
            executor.run(assign)
        except Exception as error:  # noqa: BLE001 - nothing may leave the executor; if it does, its state cannot be trusted
            self._give_up(error)
            return
        self._deliver()

    def _drain(self) -> None:
        executor = self._executor
        if executor is None:
            raise RuntimeError("rows are in flight without an executor")
        try:
            executor.drain()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)
            return
        self._deliver()
        if self.open:
            self._give_up(RuntimeError("the executor was drained and still owes results"))

    def _deliver(self) -> None:
        executor = self._executor
        if executor is None:
            return
        results = executor.take_results()
        if results:
            for result in results:
                assign = self.open.pop(result.ticket, None)
                if assign is not None:
                    self._keep_log(assign)
            self._tell(*results)
        now = time.monotonic()
        if now - self._told_requests > _REQUESTS_EVERY_SECONDS:
            self._told_requests = now
            self._tell(Requests(_requests()))

    def _give_up(self, error: Exception) -> None:
        """All open attempts failed together; a new executor takes over."""
        self._deliver()
        trouble = trouble_of(error)
        failed = [Failed(ticket, trouble) for ticket in self.open]
        for assign in self.open.values():
            self._keep_log(assign)
        self.open.clear()
        self._tell(*failed)
        setup, executor, self._executor = self._setup, self._executor, None
        if executor is not None:
            try:
                executor.close()
            except Exception as problem:  # noqa: BLE001 - user code's teardown, after a failure that is already reported
                print(f"teardown: {type(problem).__name__}: {problem}", file=sys.stderr)  # noqa: T201 - goes to the supervisor
        if setup is not None:
            self._executor = self._make_executor(setup)

    def _keep_log(self, assign: Assign) -> None:
        body = self._log.take()
        setup = self._setup
        if body is None or setup is None:
            return
        from cloudshard.store.registry import open_store

        try:
            open_store(setup.run_url).put(keys.attempt_log(setup.stage.index, assign.work.index, assign.epoch), body)
        except StoreError as error:  # a log is no reason to lose an attempt
            print(f"the log of item {assign.work.index} could not be kept: {error}", file=sys.stderr)  # noqa: T201

    def _close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            try:
                executor.close()
            except Exception as error:  # noqa: BLE001 - user code's teardown: nothing is lost any more, but it must be seen
                print(f"teardown: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        self._tell(Requests(_requests()))
        sys.stdout.flush()
        sys.stderr.flush()


def _register_options(pickled: bytes) -> None:
    from cloudshard.store.options import register_options

    for prefix, options in pickle.loads(pickled).items():  # noqa: S301 - from our own supervisor, over a private socket
        register_options(prefix, options)


def _requests() -> dict[str, int]:
    from cloudshard.store.registry import opened_stores

    total: dict[str, int] = {}
    for store in opened_stores():
        for verb, count in store.requests.items():
            total[verb] = total.get(verb, 0) + count
    return total
