"""The child's loop over a socket pair, with an executor that does as it is told."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cloudshard.errors import RecipeError
from cloudshard.ledger.records import WorkItem
from cloudshard.plan.values import SinkSpec, SourceSpec, StageSpec
from cloudshard.worker.child import Child
from cloudshard.worker.messages import (
    Assign,
    AttemptOutput,
    Dropped,
    Failed,
    Finished,
    FrameReader,
    FromChild,
    Ready,
    Requests,
    Setup,
    SetupFailed,
    Stop,
    Withdraw,
    frame,
    receive,
    send,
)
from cloudshard.worker.pulse import Pulse, new_page


class Obedient:
    """``weight`` of an item says what happens: 0 finish, 1 hold until drained, 2 raise out of the executor, 3 wait for ``go``."""

    made = 0
    closed = 0
    go = threading.Event()

    def __init__(self) -> None:
        type(self).made += 1
        self.results: list[Finished | Failed] = []
        self.held: list[Finished | Failed] = []

    def run(self, assign: Assign) -> None:
        if assign.work.weight == 3:
            self.go.wait(5)
        if assign.work.weight == 2:
            raise OSError("the executor is broken")
        (self.held if assign.work.weight == 1 else self.results).append(Finished(assign.ticket, AttemptOutput()))

    def drain(self) -> None:
        self.results, self.held = self.results + self.held, []

    def take_results(self) -> list[Finished | Failed]:
        results, self.results = self.results, []
        return results

    def close(self) -> None:
        type(self).closed += 1


def make(setup: Setup, _pulse: Pulse) -> Obedient:
    if setup.careful:
        raise RecipeError("it cannot be set up")
    return Obedient()


STAGE = StageSpec(index=4, source=SourceSpec(format="jsonl"), steps=(), sink=SinkSpec(format="jsonl"))
SETUP = Setup(stage=STAGE, run_url="memory://child", run_tag="t", executor=f"{__name__}:make")


def assign(ticket: int, weight: int = 0) -> Assign:
    return Assign(ticket=ticket, work=WorkItem(ticket, "shard", (), weight), epoch=1, nonce=f"n{ticket}")


class Talk:
    """The supervisor's side."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(5)
        handle = new_page()
        self.pulse = Pulse(handle)
        self._reader = FrameReader(FromChild)
        self.status: int | None = None
        child = Child("child", theirs, Pulse(handle))
        os.close(handle)

        def run() -> None:
            self.status = child.run()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def say(self, *messages: Any) -> None:
        self.sock.sendall(b"".join(map(frame, messages)))

    def hear(self, count: int) -> list[Any]:
        heard: list[Any] = []
        while len(heard) < count:
            messages = receive(self.sock, self._reader, wait=True)
            assert messages is not None, f"it ended after {heard}"
            heard += messages
        return heard


@pytest.fixture
def talk() -> Iterator[Talk]:
    Obedient.made = Obedient.closed = 0
    Obedient.go.clear()
    talk = Talk()
    yield talk
    Obedient.go.set()
    talk.sock.close()
    talk.thread.join(5)
    assert not talk.thread.is_alive()


def test_assignments_are_run_in_order_without_waiting_for_answers(talk: Talk) -> None:
    talk.say(SETUP, *(assign(ticket) for ticket in range(1, 50)))
    ready, *finished = talk.hear(50)
    assert isinstance(ready, Ready)
    assert [message.ticket for message in finished] == list(range(1, 50))
    assert talk.pulse.ticket == 49


def test_what_is_withdrawn_before_it_begins_is_not_run(talk: Talk) -> None:
    talk.say(SETUP, assign(1, 3), assign(2), assign(3), assign(4))
    talk.hear(1)
    talk.say(Withdraw((2, 4)))
    Obedient.go.set()
    assert [message.ticket for message in talk.hear(2)] == [1, 3]
    talk.say(assign(5))
    assert [message.ticket for message in talk.hear(1)] == [5], "nothing of 2 and 4 came in between"


def test_rows_in_flight_are_drained_when_nothing_is_queued(talk: Talk) -> None:
    talk.say(SETUP, assign(1, 1), assign(2, 0), assign(3, 1))
    assert [message.ticket for message in talk.hear(4)[1:]] == [2, 1, 3]


def test_stop_ends_after_the_current_item_and_drops_the_queue(talk: Talk) -> None:
    talk.say(SETUP, assign(1, 3))
    talk.hear(1)
    talk.say(assign(2), assign(3), Stop())
    Obedient.go.set()
    finished, dropped, requests = talk.hear(3)
    assert finished.ticket == 1
    assert dropped == Dropped((2, 3))
    assert isinstance(requests, Requests)
    talk.thread.join(5)
    assert talk.status == 0
    assert Obedient.closed == 1


def test_an_executor_that_breaks_fails_what_is_open_and_is_replaced(talk: Talk) -> None:
    talk.say(SETUP, assign(1, 1), assign(2, 2), assign(3))
    heard = talk.hear(4)[1:]
    failed = {message.ticket: message for message in heard if isinstance(message, Failed)}
    assert set(failed) == {1, 2}
    assert failed[2].trouble.message == "the executor is broken"
    assert [message.ticket for message in heard if isinstance(message, Finished)] == [3]
    assert (Obedient.made, Obedient.closed) == (2, 1)


def test_a_setup_that_fails_is_told_and_ends_the_child(talk: Talk) -> None:
    talk.say(Setup(stage=STAGE, run_url="memory://child", run_tag="t", executor=f"{__name__}:make", careful=True), assign(1))
    (message,) = talk.hear(1)
    assert isinstance(message, SetupFailed)
    assert message.trouble.message == "it cannot be set up"
    talk.thread.join(5)
    assert talk.status == 0


def test_another_stage_replaces_the_one_before(talk: Talk) -> None:
    talk.say(SETUP, assign(1), SETUP, assign(2))
    talk.hear(4)
    assert (Obedient.made, Obedient.closed) == (2, 1)


def test_without_its_supervisor_a_child_ends(talk: Talk) -> None:
    talk.say(SETUP)
    talk.hear(1)
    assert send(talk.sock, assign(1))
    talk.sock.shutdown(socket.SHUT_RDWR)
    talk.thread.join(5)
    assert talk.status == 1
