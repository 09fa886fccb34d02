"""What the supervisor and its children say to each other: MessagePack frames over a socket pair.

A frame is the length (4 bytes, little-endian) and one tagged struct. The socket is private to two processes of one worker that run
the same code, so frames carry no version.

Every assignment has a **ticket**, a number that the worker never uses twice. A claim whose attempt is run again (after a crash) gets
a new ticket each time; an answer to a ticket that is no longer wanted is discarded.
"""

from __future__ import annotations

import socket
from typing import Any, TypeAlias

import msgspec

from cloudshard.ledger.records import PartRecord, PoisonRow, RowCounts, ShardStats, StepCounts, WorkItem
from cloudshard.plan.values import StageSpec

# ---------------------------------------------------------------- supervisor -> child


class Setup(msgspec.Struct, tag=True, kw_only=True):
    """Get ready for a stage. Replaces the stage before.

    ``options``: pickled ``{url prefix: store options}``, secret ones too: they travel over this private socket only.
    ``executor``: ``module:function`` that makes the :class:`~cloudshard.worker.execution.Executor`. ``careful``: row by row, each
    row's place written to shared memory before it is touched. ``patience_seconds``: how long one call may take that declares nothing.
    """

    stage: StageSpec
    run_url: str
    run_tag: str
    executor: str
    options: bytes = b""
    careful: bool = False
    patience_seconds: float = 600.0
    scratch: str = ""


class Assign(msgspec.Struct, tag=True, kw_only=True):
    """Run one attempt. ``nonce`` tells its objects from those of every other attempt, re-runs under the same claim included."""

    ticket: int
    work: WorkItem
    epoch: int
    nonce: str
    poison: tuple[PoisonRow, ...] = ()


class Withdraw(msgspec.Struct, tag=True):
    """Forget these assignments if they have not begun. No answer: the supervisor discards results that come all the same."""

    tickets: tuple[int, ...]


class Stop(msgspec.Struct, tag=True):
    """Finish the current item, drop the assignments that have not begun, tear down and end."""


ToChild: TypeAlias = Setup | Assign | Withdraw | Stop

# ---------------------------------------------------------------- child -> supervisor


class Ready(msgspec.Struct, tag=True):
    """The stage is set up (after that many seconds)."""

    stage: int
    seconds: float


class Trouble(msgspec.Struct, kw_only=True):
    """An exception, as data. ``infrastructure``: the store's or the machine's fault; ``kind``: how it counts when it is the task's.

    ``denied``: the store refused for lack of permission.
    """

    error_type: str
    message: str
    where: str = ""
    step: str = ""
    traceback: str = ""
    kind: str = "error"
    infrastructure: bool = False
    denied: bool = False


class SetupFailed(msgspec.Struct, tag=True):
    """A step's setup raised, or the stage cannot be built. The child ends by itself."""

    stage: int
    trouble: Trouble


class AttemptOutput(msgspec.Struct, kw_only=True):
    """What a successful attempt made: the parts of its commit record."""

    parts: tuple[PartRecord, ...] = ()
    counts: RowCounts = RowCounts()
    steps: tuple[StepCounts, ...] = ()
    quarantine_key: str | None = None
    schema: str | None = None
    stats: ShardStats = ShardStats()


class Finished(msgspec.Struct, tag=True):
    """The attempt is complete: its uploads wait for the commit record."""

    ticket: int
    output: AttemptOutput


class Failed(msgspec.Struct, tag=True):
    """The attempt failed without hurting the process; its uploads are aborted."""

    ticket: int
    trouble: Trouble


class Dropped(msgspec.Struct, tag=True):
    """Assignments that had not begun when Stop came."""

    tickets: tuple[int, ...]


class Requests(msgspec.Struct, tag=True):
    """Store requests made by this child so far, by verb."""

    counts: dict[str, int]


FromChild: TypeAlias = Ready | SetupFailed | Finished | Failed | Dropped | Requests

# ---------------------------------------------------------------- supervisor <-> zygote


class Preload(msgspec.Struct, tag=True):
    """Import these modules, so that every child to come has them; those that are missing are left to fail where they are used."""

    modules: tuple[str, ...]


class Fork(msgspec.Struct, tag=True):
    """Fork a child; three file descriptors come with the frame: its socket, its shared memory, its output."""

    name: str


class Kill(msgspec.Struct, tag=True):
    """Kill a child with everything that it has started."""

    pid: int


class Forked(msgspec.Struct, tag=True):
    """Answer to Fork. ``pid`` 0: it failed for the reason in ``error`` (an OSError's text)."""

    pid: int
    error: str = ""


class Exited(msgspec.Struct, tag=True):
    """A child has ended. ``status``: as from ``os.waitpid``; ``peak_memory_bytes`` and ``cpu_seconds`` are its own lifetime's."""

    pid: int
    status: int
    peak_memory_bytes: int = 0
    cpu_seconds: float = 0.0


ToZygote: TypeAlias = Preload | Fork | Kill
FromZygote: TypeAlias = Forked | Exited

_encoder = msgspec.msgpack.Encoder()
_HEADER = 4


def frame(message: msgspec.Struct) -> bytes:
    """The bytes of one frame."""
    buffer = bytearray(_HEADER)
    _encoder.encode_into(message, buffer, _HEADER)
    buffer[:_HEADER] = (len(buffer) - _HEADER).to_bytes(_HEADER, "little")
    return bytes(buffer)


class FrameReader:
    """Cuts a byte stream into messages of one union type."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that ``data`` completes, in order."""
        buffer = self._buffer
        buffer += data
        messages: list[Any] = []
        at = 0
        while len(buffer) - at >= _HEADER:
            end = at + _HEADER + int.from_bytes(buffer[at : at + _HEADER], "little")
            if len(buffer) < end:
                break
            messages.append(self._decoder.decode(memoryview(buffer)[at + _HEADER : end].tobytes()))
            at = end
        if at:
            del buffer[:at]
        return messages


def receive(sock: socket.socket, reader: FrameReader, *, wait: bool) -> list[Any] | None:
    """Messages that have arrived; with ``wait`` at least one, by blocking. None: the other side is gone."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    messages: list[Any] = []
    while True:
        try:
            data = sock.recv(1 << 16, flags)
        except BlockingIOError:
            return messages
        except (ConnectionResetError, BrokenPipeError):
            return None
        if not data:
            return None
        messages += reader.feed(data)
        if messages:
            flags = socket.MSG_DONTWAIT
            if len(data) < 1 << 16:
                return messages


def send(sock: socket.socket, message: msgspec.Struct) -> bool:
    """Send one frame, blocking. False: the other side is gone."""
    try:
        sock.sendall(frame(message))
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True
