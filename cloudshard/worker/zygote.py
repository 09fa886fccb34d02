"""The zygote: a small process, forked before any thread or client exists, from which all children are forked.

A fork copies one thread; a process with connections and thread pools is therefore a bad parent. The zygote has the heavy
imports (Arrow, the engine, the formats) and nothing else: a child costs a few milliseconds and shares the imported pages.

Where the calling process already has threads (a notebook, a library that starts some when it is imported), or on platforms where forking
such a process is unsafe, the zygote is a fresh interpreter instead, which costs the imports a second time.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from cloudshard.errors import ChildCrashed
from cloudshard.worker import kinship, pulse
from cloudshard.worker.messages import Exited, Fork, Forked, FrameReader, FromZygote, Kill, Preload, ToZygote, receive, send
from cloudshard.worker.no_pandas import postpone_pandas
from cloudshard.worker.resources import single_thread_environment

#: What every stage needs.
PRELOADED = (
    "pyarrow",
    "orjson",
    "xxhash",
    "faulthandler",
    "logging",
    "cloudshard.store.registry",
    "cloudshard.store.upload",
    "cloudshard.worker.child",
    "cloudshard.worker.execution",
)
#: Threads of the allocator inside Arrow: it re-creates them after a fork by itself.
_HARMLESS_THREADS = {"jemalloc_bg_thd"}
_FORK_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Newborn:
    """A child as its parent by proxy sees it: process id, socket, shared memory, and the read end of its stdout and stderr."""

    pid: int
    sock: socket.socket
    pulse: pulse.Pulse
    output: int


class Zygote:
    """The supervisor's handle. Not thread-safe; ``fileno`` becomes readable when a child has ended or the zygote has."""

    def __init__(self, pid: int, sock: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.alive = True
        self._sock = sock
        self._process = process
        self._reader = FrameReader(FromZygote)
        self._exited: list[Exited] = []

    def fileno(self) -> int:
        """For a selector."""
        return self._sock.fileno()

    def preload(self, modules: Sequence[str]) -> None:
        """Import modules for all children to come."""
        if modules and not send(self._sock, Preload(tuple(modules))):
            self.alive = False

    def fork(self, name: str) -> Newborn:
        """A new child. Raises ChildCrashed when there can be none (the zygote is gone, or the system has no room for a process)."""
        ours, theirs = socket.socketpair()
        page = pulse.new_page()
        out_read, out_write = os.pipe()
        try:
            request = msgspec.msgpack.encode(Fork(name))
            header = len(request).to_bytes(4, "little")
            socket.send_fds(self._sock, [header + request], [theirs.fileno(), page, out_write])
            answer = self._wait_for_forked()
            if not answer.pid:
                raise ChildCrashed(f"no child process can be made: {answer.error}", kind="crash", mend="Is the limit of processes reached?")
            os.set_blocking(out_read, False)
            return Newborn(answer.pid, ours, pulse.Pulse(page), out_read)
        except (OSError, ChildCrashed) as error:
            ours.close()
            os.close(out_read)
            if isinstance(error, ChildCrashed):
                raise
            self.alive = False
            raise ChildCrashed(f"the process that makes children is gone: {error}", kind="crash") from error
        finally:
            theirs.close()
            os.close(page)
            os.close(out_write)

    def _wait_for_forked(self) -> Forked:
        while True:
            poll = select.poll()  # not select(): this process may have thousands of files open
            poll.register(self._sock, select.POLLIN)
            if not poll.poll(_FORK_TIMEOUT_SECONDS * 1000):
                raise OSError(f"no answer within {_FORK_TIMEOUT_SECONDS:g} s")
            messages = receive(self._sock, self._reader, wait=True)
            if messages is None:
                raise OSError("its socket is closed")
            forked = [message for message in messages if isinstance(message, Forked)]
            self._exited += [message for message in messages if isinstance(message, Exited)]
            if forked:
                return forked[0]

    def exits(self) -> list[Exited]:
        """Children that have ended since the last call, without waiting. Sets ``alive`` to False when the zygote itself has."""
        if self.alive:
            messages = receive(self._sock, self._reader, wait=False)
            if messages is None:
                self.alive = False
            else:
                self._exited += messages
        ended, self._exited = self._exited, []
        return ended

    def kill(self, pid: int) -> None:
        """Kill a child and everything in its session's group."""
        if not self.alive or not send(self._sock, Kill(pid)):
            kinship.kill_group(pid)

    def close(self) -> None:
        """End the zygote, which kills every child that is left, and wait for it."""
        self._sock.close()
        if self._process is not None:
            self._process.wait()
            return
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            return  # the host application has waited for all its children


def start_zygote(preload: Sequence[str] = ()) -> Zygote:
    """Start one; by a fork when this process is fit for it. Call it before threads, clients and other libraries exist."""
    modules = (*PRELOADED, *preload)
    if not _can_fork():
        return _spawn(modules)
    with single_thread_environment():
        load(modules)
    if not _can_fork():  # an import has started threads
        return _spawn(modules)
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return Zygote(pid, ours, None)
    try:  # the forked side never returns into the caller's code
        ours.close()
        _serve(theirs)
    except BaseException:  # noqa: BLE001 - the edge of a process: say why it ends
        traceback.print_exc()
    finally:
        os._exit(1)


def _can_fork() -> bool:
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return False
    try:
        threads = [_thread_name(task) for task in os.listdir("/proc/self/task")]
    except OSError:
        return False
    return sum(name not in _HARMLESS_THREADS for name in threads) == 1


def _thread_name(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except FileNotFoundError:
        return "jemalloc_bg_thd"  # it has ended meanwhile: as harmless


_SPAWNED = """\
import sys
sys.path[:] = {path!r}
from cloudshard.worker.zygote import serve_spawned
serve_spawned({handle}, {modules!r})
"""


def _spawn(modules: Sequence[str]) -> Zygote:
    ours, theirs = socket.socketpair()
    script = _SPAWNED.format(path=sys.path, handle=theirs.fileno(), modules=tuple(modules))
    with theirs, single_thread_environment():
        process = subprocess.Popen([sys.executable, "-c", script], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2)
    return Zygote(process.pid, ours, process)


def serve_spawned(handle: int, modules: Sequence[str]) -> NoReturn:
    """Entry point of a zygote that is an interpreter of its own."""
    load(modules)
    _serve(socket.socket(fileno=handle))


def load(modules: Sequence[str]) -> None:
    """Import what is there. A module that is missing or broken fails later, in the child that needs it, with a proper message."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - any import may raise anything; see above
            continue
    if "pyarrow" in sys.modules:
        postpone_pandas()


# ---------------------------------------------------------------- inside the zygote


def _serve(control: socket.socket) -> NoReturn:
    os.setsid()
    kinship.ignore_stop_signals()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    with single_thread_environment(keep=True):
        gc.collect()
        gc.freeze()  # collections in the children must not touch, and so copy, the shared pages
        _Nursery(control, (wake_read, wake_write)).run()


class _Nursery:
    """The zygote's loop: forks on request, reaps, and kills all when the supervisor is gone."""

    def __init__(self, control: socket.socket, wake: tuple[int, int]) -> None:
        self._control = control
        self._wake = wake
        self._living: set[int] = set()
        self._reader = FrameReader(ToZygote)
        self._handles: list[int] = []

    def run(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        while True:
            readable = {handle for handle, _ in poll.poll()}
            if self._wake[0] in readable:
                self._drain_wake()
            self._reap()
            if self._control.fileno() in readable:
                self._hear()

    def _drain_wake(self) -> None:
        try:
            while len(os.read(self._wake[0], 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def _hear(self) -> None:
        try:
            data, handles, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
        except (ConnectionResetError, BrokenPipeError):
            data, handles = b"", []
        if not data:
            self._end()
        self._handles += handles
        for message in self._reader.feed(data):
            if isinstance(message, Fork):
                three, self._handles = self._handles[:3], self._handles[3:]
                self._fork(message, three)
            elif isinstance(message, Kill):
                if message.pid in self._living:
                    kinship.kill_child(message.pid)
            else:
                load(message.modules)
                gc.freeze()

    def _fork(self, request: Fork, handles: list[int]) -> None:
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for handle in handles:
                os.close(handle)
            self._tell(Forked(0, str(error)))
            return
        if pid == 0:
            self._become_child(me, request.name, handles)
        for handle in handles:
            os.close(handle)
        self._living.add(pid)
        self._tell(Forked(pid))

    def _become_child(self, parent: int, name: str, handles: list[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            kinship.die_with(parent)
            self._control.close()
            for handle in self._wake:
                os.close(handle)
            from cloudshard.worker.child import child_main

            status = child_main(name, *handles)
        except BaseException:  # noqa: BLE001 - the edge of a process: say why it ends
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Report the children that have ended, and kill what their user code has left running."""
        for pid in [pid for pid in self._living if _has_ended(pid)]:
            kinship.kill_group(pid)  # before the id is given back to the system
            _, status, usage = os.wait4(pid, 0)
            self._living.discard(pid)
            unit = 1 if sys.platform == "darwin" else 1024
            self._tell(Exited(pid, status, usage.ru_maxrss * unit, usage.ru_utime + usage.ru_stime))

    def _tell(self, message: Forked | Exited) -> None:
        if not send(self._control, message):
            self._end()

    def _end(self) -> NoReturn:
        for pid in self._living:
            kinship.kill_child(pid)
        os._exit(0)


def _has_ended(pid: int) -> bool:
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    import psutil

    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
