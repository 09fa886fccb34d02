"""The watch over running children: memory, stalls and leases, five times a second. Decisions only; the supervisor acts on them.

Three clocks run for an attempt, and each end means something else:

- *No row moves* (for ``hang_seconds`` in one call of user code, or what a step declares as ``long_call_seconds``): the task hangs. Its
  process is killed and the row is looked for. Until then the lease is kept: a long call is no sign of death.
- *Nothing moves outside an attempt's calls* (a child that is frozen between them): the lease is not renewed and runs out, as if the
  worker had died. That is infrastructure and is charged to nobody.
- *The child holds more memory than its limit*: killed before the kernel picks a victim of its own choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloudshard.worker import memory
from cloudshard.worker.crew import Member

WATCH_SECONDS = 0.2
HANG_SECONDS = 600.0
#: Loading a large model from a cold bucket takes minutes; half an hour is a hang.
SETUP_SECONDS = 1800.0
#: Descendants are looked for this often only: it costs a walk through /proc.
_DESCENDANTS_EVERY = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A child that must be killed, and why, in words for a person."""

    kind: Literal["oom", "hang"]
    detail: str


class Watch:
    """Looks at members. ``hang_seconds``: patience with one call of user code that declares nothing."""

    def __init__(self, hang_seconds: float = HANG_SECONDS) -> None:
        self.hang_seconds = hang_seconds
        self.findings: dict[int, Finding] = {}
        self._round = 0
        self._family: dict[int, list[int]] = {}

    def next_round(self) -> None:
        """Begin another look at everybody."""
        self._round += 1

    def look(self, member: Member, now: float) -> Finding | None:
        """Update the member's memory and beats; a finding when it must be killed."""
        finding = self._memory(member) or self._stall(member, now)
        if finding is not None:
            self.findings[member.pid] = finding
        return finding

    def _memory(self, member: Member) -> Finding | None:
        if self._round % _DESCENDANTS_EVERY == 0:
            self._family[member.pid] = memory.descendants(member.pid)
        member.memory_bytes = sum(map(memory.anonymous_bytes, (member.pid, *self._family.get(member.pid, ()))))
        if member.limit_bytes and member.memory_bytes > member.limit_bytes:
            return Finding("oom", f"it held {_mib(member.memory_bytes)}, its limit is {_mib(member.limit_bytes)}")
        return None

    def _stall(self, member: Member, now: float) -> Finding | None:
        pulse = member.born.pulse
        beats = pulse.beats
        if beats != member.beats:
            member.beats, member.beat_at = beats, now
        if not member.ready:
            if member.stage is not None and now - member.beat_at > SETUP_SECONDS:
                return Finding("hang", f"its setup has taken {now - member.beat_at:.0f} s")
            return None
        if not member.tasks:
            member.beat_at = now
            return None
        call = pulse.call()
        if call is not None:
            seconds, declared = call
            allowed = declared or self.hang_seconds
            if seconds > allowed:
                return Finding("hang", f"no row has moved for {seconds:.1f} s, {_patience(declared, allowed)}")
            return None
        if now - member.beat_at > self.hang_seconds:
            return Finding("hang", f"nothing has moved for {now - member.beat_at:.0f} s")
        return None

    def alive(self, member: Member, beats_at_renewal: int) -> bool:
        """Whether a lease may be renewed: the child has moved since the last time, or is in a call or setup that may take long."""
        return not member.ready or member.born.pulse.beats != beats_at_renewal or member.born.pulse.call() is not None

    def forget(self, member: Member) -> Finding | None:
        """The member has ended: the finding that it was killed for, if any."""
        self._family.pop(member.pid, None)
        return self.findings.pop(member.pid, None)


def _patience(declared: float, allowed: float) -> str:
    if declared:
        return f"its step declares long_call_seconds={declared:g}"
    return f"allowed are {allowed:g} s (declare long_call_seconds for a step that takes longer)"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
