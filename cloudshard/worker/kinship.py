"""Who dies with whom: parent-death signals, sessions and groups, signals that children must survive, and who the kernel kills first.

Rules that together leave no process behind, whatever is killed with SIGKILL and in whatever order:

- Every child leads a session (and group) of its own: killing the group takes what user code has started as well.
- The zygote watches its socket to the supervisor. End of file: it kills every child's group, then ends.
- The kernel kills a child the moment its zygote is gone (Linux: PR_SET_PDEATHSIG; elsewhere a thread watches the socket).
- The supervisor watches its socket to the zygote. End of file: it kills every child's group by itself.

Not covered: supervisor and zygote killed within the same millisecond. The children die all the same, but programs that user code has
started in the background are left to themselves then: nobody is left who knows of them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1
#: Signals by which a scheduler or a terminal asks to stop: only the supervisor acts on them.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
#: The kernel's badness score is raised by half of all memory: under pressure a child goes first, never the supervisor that must
#: tell the ledger about it.
_OOM_SCORE = "500"
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None


def _heard(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN: that would be inherited by programs that user code starts, which could then not be interrupted."""


def ignore_stop_signals() -> None:
    """Schedulers often signal every process of a job at once; here the supervisor alone decides what that means."""
    for number in STOP_SIGNALS:
        signal.signal(number, _heard)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ``parent`` ends; ends at once if that has happened already."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def watch_for_end(sock: socket.socket) -> None:
    """Where the kernel offers no such signal: a thread that kills this process's group when the other side of ``sock`` is gone."""
    if _prctl is not None:
        return

    def watch() -> None:
        import select

        poll = select.poll()
        poll.register(sock, select.POLLHUP)
        while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="cloudshard-kin", daemon=True).start()


def kill_group(leader: int) -> None:
    """SIGKILL a session leader's group; no error when it is gone."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        return


def become_expendable() -> None:
    """The child goes before the supervisor when memory is short, and leaves no core file of several gigabytes when it crashes."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE)
    except OSError:
        pass  # not Linux, or not allowed: the watch on memory is still there
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def kill_child(pid: int) -> None:
    """SIGKILL an unreaped child of this process and its group; by its own id too, since it may not lead its session yet."""
    kill_group(pid)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
