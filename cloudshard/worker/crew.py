"""The children of one worker: forking them, talking to them without ever blocking, passing on what they print, noticing their end."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cloudshard.errors import ChildCrashed
from cloudshard.worker import kinship
from cloudshard.worker.messages import Assign, Exited, FrameReader, FromChild, Requests, Setup, Stop, Withdraw, frame, receive
from cloudshard.worker.zygote import Newborn, Zygote, start_zygote

if TYPE_CHECKING:
    from cloudshard.worker.task import Task

#: Lines of a child's output that are kept for the record of its crash.
_TAIL_LINES = 40
_LINE_BYTES = 4096
#: How often it is tried to make another zygote in the place of one that died.
_ZYGOTE_LIVES = 5


@dataclass(eq=False)
class Member:
    """One child as the supervisor sees it.

    ``tasks``: assigned, no result yet, by ticket, in the order of assignment. ``stage``: what it is set up for (None: not yet told);
    ``ready``: the setup is done. ``single``: it was made for one task and ends after it. ``killed``: why we killed it.
    """

    name: str
    born: Newborn
    stage: int | None = None
    ready: bool = False
    single: bool = False
    stopping: bool = False
    killed: str | None = None
    limit_bytes: int = 0
    memory_bytes: int = 0
    tasks: dict[int, Task] = field(default_factory=dict)
    beats: int = -1
    beat_at: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _reader: FrameReader = field(default_factory=lambda: FrameReader(FromChild))
    _unsent: bytearray = field(default_factory=bytearray)
    _line: bytearray = field(default_factory=bytearray)

    @property
    def pid(self) -> int:
        """Process id, and id of its session."""
        return self.born.pid

    @property
    def idle(self) -> bool:
        """Whether it may be given work and has none."""
        return not self.tasks and not self.stopping and self.killed is None

    def begun(self) -> list[Task]:
        """Tasks that it has begun and not finished, by its pulse. A result on the way counts as not finished."""
        last = self.born.pulse.ticket
        return [task for ticket, task in self.tasks.items() if ticket <= last]

    def waiting(self) -> list[Task]:
        """Assigned tasks that have not begun."""
        last = self.born.pulse.ticket
        return [task for ticket, task in self.tasks.items() if ticket > last]

    def current(self) -> Task | None:
        """The task in hand."""
        return self.tasks.get(self.born.pulse.ticket)


class Heard(NamedTuple):
    """A message from a child."""

    member: Member
    message: FromChild


class Ended(NamedTuple):
    """A child has ended; all that it had said before has been heard."""

    member: Member
    status: int
    peak_memory_bytes: int
    cpu_seconds: float


class Crew:
    """All children. ``output`` gets each line that a child prints, with the child's name."""

    def __init__(self, zygote: Zygote, selector: selectors.BaseSelector, output: Callable[[str, str], None]) -> None:
        self.members: list[Member] = []
        self.requests: dict[str, int] = {}
        self.rows_of_ended = 0
        self.bytes_of_ended = 0
        self._zygote = zygote
        self._zygote_lives = _ZYGOTE_LIVES
        self._selector = selector
        self._output = output
        self._preloaded: list[str] = []
        self._number = 0
        self._events: list[Heard | Ended] = []
        selector.register(zygote, selectors.EVENT_READ, self._zygote_speaks)

    # ------------------------------------------------------------ making and ending

    def preload(self, modules: list[str]) -> None:
        """Import modules once for all children to come."""
        new = [name for name in modules if name not in self._preloaded]
        self._preloaded += new
        self._zygote.preload(new)

    def hire(self, *, single: bool = False) -> Member:
        """A new child. Raises ChildCrashed when none can be made."""
        self._number += 1
        name = f"child {self._number}"
        if not self._zygote.alive:
            self._replace_zygote()
        try:
            born = self._zygote.fork(name)
        except ChildCrashed:
            if self._zygote.alive:
                raise
            self._replace_zygote()
            born = self._zygote.fork(name)
        member = Member(name, born, single=single, beat_at=time.monotonic())
        self.members.append(member)
        born.sock.setblocking(False)
        self._selector.register(born.sock, selectors.EVENT_READ, lambda _mask: self._if_here(member, self._child_speaks))
        self._selector.register(born.output, selectors.EVENT_READ, lambda _mask: self._if_here(member, self._child_prints))
        self._zygote_speaks(0)  # an end that was told while we waited for the fork
        return member

    def _replace_zygote(self) -> None:
        self._zygote_lives -= 1
        if self._zygote_lives <= 0:
            raise ChildCrashed("the process that makes children dies again and again", kind="crash", mend="Is something killing it?")
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._zygote)
        self._zygote.close()
        self._zygote = start_zygote(self._preloaded)
        self._selector.register(self._zygote, selectors.EVENT_READ, self._zygote_speaks)

    def kill(self, member: Member, reason: str) -> None:
        """Kill a child and what it has started; it is heard of again as :class:`Ended`."""
        if member.killed is None:
            member.killed = reason
            self._zygote.kill(member.pid)

    def stop(self, member: Member) -> None:
        """Ask a child to finish what it has begun, and to end."""
        if not member.stopping:
            member.stopping = True
            self._send(member, Stop())

    def close(self, seconds: float) -> None:
        """Stop all, wait that long for their teardown, kill the rest and the zygote."""
        for member in self.members:
            self.stop(member)
        end = time.monotonic() + seconds
        while self.members and time.monotonic() < end and self._zygote.alive:
            for key, mask in self._selector.select(0.1):
                if callable(key.data):
                    key.data(mask)
            self.hear()
        for member in self.members:
            self._output(member.name, "killed: its teardown did not end in time")
            self._zygote.kill(member.pid)
        self.shut()

    def shut(self) -> None:
        """End at once: the zygote's end is the end of every child."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._zygote)
        if not self._zygote.alive:
            for member in self.members:
                kinship.kill_group(member.pid)
        self._zygote.close()
        for member in list(self.members):
            self._bury(member)

    # ------------------------------------------------------------ talking

    def set_up(self, member: Member, setup: Setup) -> None:
        """Tell a child which stage to get ready for."""
        member.stage = setup.stage.index
        member.ready = False
        member.beat_at = time.monotonic()
        self._send(member, setup)

    def assign(self, member: Member, task: Task, message: Assign) -> None:
        """Give a child an attempt."""
        member.tasks[message.ticket] = task
        self._send(member, message)

    def withdraw(self, member: Member, tasks: list[Task]) -> None:
        """Take back tasks that have not begun. If one begins all the same, its result is nobody's."""
        for task in tasks:
            member.tasks.pop(task.ticket, None)
        self._send(member, Withdraw(tuple(task.ticket for task in tasks)))

    def _send(self, member: Member, message: msgspec.Struct) -> None:
        member._unsent += frame(message)
        self._flush(member)

    def _flush(self, member: Member) -> None:
        sock = member.born.sock
        try:
            while member._unsent:
                sent = sock.send(member._unsent)
                del member._unsent[:sent]
        except BlockingIOError:
            self._want(member, selectors.EVENT_READ | selectors.EVENT_WRITE)
            return
        except (BrokenPipeError, ConnectionResetError):
            member._unsent.clear()  # it is ending: the zygote will say so
            return
        self._want(member, selectors.EVENT_READ)

    def _want(self, member: Member, events: int) -> None:
        try:
            key = self._selector.get_key(member.born.sock)
        except KeyError:
            return
        if key.events != events:
            self._selector.modify(member.born.sock, events, key.data)

    # ------------------------------------------------------------ listening

    def hear(self) -> Iterator[Heard | Ended]:
        """What has happened since the last call, in order. Call it after the selector's callbacks have run."""
        events, self._events = self._events, []
        return iter(events)

    def _if_here(self, member: Member, act: Callable[[Member], None]) -> None:
        """Its end may have been dealt with since the selector saw something to read."""
        if member in self.members:
            act(member)

    def _child_speaks(self, member: Member) -> None:
        if member._unsent:
            self._flush(member)
        messages = receive(member.born.sock, member._reader, wait=False)
        if messages is None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(member.born.sock)
            return
        for message in messages:
            if isinstance(message, Requests):
                member.requests = message.counts
            else:
                self._events.append(Heard(member, message))

    def _child_prints(self, member: Member) -> None:
        while True:
            try:
                data = os.read(member.born.output, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(member.born.output)
                if member._line:
                    self._print(member, bytes(member._line))
                    member._line.clear()
                return
            member._line += data
            *lines, rest = member._line.split(b"\n")
            for line in lines:
                self._print(member, bytes(line))
            if len(rest) > _LINE_BYTES:
                self._print(member, bytes(rest))
                rest = bytearray()
            member._line = bytearray(rest)
            if len(data) < 1 << 16:
                return

    def _print(self, member: Member, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        member.tail.append(text)
        self._output(member.name, text)

    def _zygote_speaks(self, _mask: int) -> None:
        for exited in self._zygote.exits():
            self._child_ended(exited)
        if not self._zygote.alive:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._zygote)
            for member in list(self.members):
                kinship.kill_group(member.pid)
                if member.killed is None:
                    member.killed = "zygote"
                self._child_ended(Exited(member.pid, 9))

    def _child_ended(self, exited: Exited) -> None:
        for member in self.members:
            if member.pid == exited.pid:
                break
        else:
            return
        self._child_speaks(member)  # what it had said before it ended
        self._child_prints(member)
        self._bury(member)
        self._events.append(Ended(member, exited.status, exited.peak_memory_bytes, exited.cpu_seconds))

    def _bury(self, member: Member) -> None:
        for file in (member.born.sock, member.born.output):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(file)
        for verb, count in member.requests.items():
            self.requests[verb] = self.requests.get(verb, 0) + count
        self.rows_of_ended += member.born.pulse.rows
        self.bytes_of_ended += member.born.pulse.nbytes
        self.members.remove(member)
        member.born.sock.close()
        os.close(member.born.output)

    # ------------------------------------------------------------ sums

    def rows(self) -> int:
        """Rows read by all children so far."""
        return self.rows_of_ended + sum(member.born.pulse.rows for member in self.members)

    def nbytes(self) -> int:
        """Bytes read by all children so far."""
        return self.bytes_of_ended + sum(member.born.pulse.nbytes for member in self.members)

    def all_requests(self) -> dict[str, int]:
        """Store requests of all children, as far as they have told."""
        total = dict(self.requests)
        for member in self.members:
            for verb, count in member.requests.items():
                total[verb] = total.get(verb, 0) + count
        return total
