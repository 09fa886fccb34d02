"""Frames, and the shared page."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import pytest

from cloudshard.ledger.records import InputRange, PoisonRow, WorkItem
from cloudshard.worker.liveness import Liveness
from cloudshard.worker.messages import Assign, Dropped, FrameReader, Stop, ToChild, Withdraw, frame, receive, send
from cloudshard.worker.pulse import STEP_AT, Pulse, RowPlace, new_page

ASSIGN = Assign(
    ticket=3,
    work=WorkItem(1, "shard", tuple(InputRange(f"s3://b/{i}", 10, "e", 0, 10) for i in range(500))),
    epoch=2,
    nonce="n",
    poison=(PoisonRow("s3://b/1", 4, "why"),),
)


def test_frames_survive_any_cut() -> None:
    sent = [ASSIGN, Stop(), Withdraw((1, 2, 3)), ASSIGN]
    data = b"".join(map(frame, sent))
    rng = random.Random(5)
    for _ in range(20):
        reader, got, at = FrameReader(ToChild), [], 0
        while at < len(data):
            step = rng.choice((1, 3, 4, 5, 1000, 100_000))
            got += reader.feed(data[at : at + step])
            at += step
        assert got == sent


def test_receiving_takes_what_is_there_waits_when_asked_and_notices_the_end() -> None:
    ours, theirs = socket.socketpair()
    reader = FrameReader(ToChild)
    assert receive(ours, reader, wait=False) == []
    threading.Timer(0.05, lambda: send(theirs, ASSIGN)).start()
    assert receive(ours, reader, wait=True) == [ASSIGN]
    theirs.close()
    assert receive(ours, reader, wait=True) is None
    assert not send(ours, Dropped(()))
    ours.close()


@pytest.fixture
def pulse() -> Pulse:
    handle = new_page()
    made = Pulse(handle)
    os.close(handle)
    return made


def test_the_page_shows_the_row_in_hand_only(pulse: Pulse) -> None:
    assert pulse.row_in_hand() is None
    pulse.at_row("s3://bücket/\ud800", 12, "02-map")
    assert pulse.row_in_hand() == RowPlace("s3://bücket/���", 12, "02-map")
    pulse.leave_row()
    assert pulse.row_in_hand() is None
    pulse.at_row("s3://b/" + "x" * 10_000, 0, "s")
    place = pulse.row_in_hand()
    assert place is not None
    assert len(place.object) < STEP_AT
    pulse.begin(8)
    assert pulse.row_in_hand() is None
    assert pulse.ticket == 8


def test_a_page_is_shared_between_processes() -> None:
    handle = new_page()
    mine = Pulse(handle)
    if os.fork() == 0:
        Pulse(handle).beat(5, 70)
        os._exit(0)
    os.wait()
    assert (mine.beats, mine.rows, mine.nbytes) == (1, 5, 70)
    os.close(handle)


def test_a_call_has_an_age_and_an_allowance(pulse: Pulse) -> None:
    assert pulse.call() is None
    pulse.enter_call(30.0)
    time.sleep(0.02)
    call = pulse.call()
    assert call is not None
    assert 0.01 < call[0] < 5
    assert call[1] == 30.0
    pulse.leave_call()
    assert pulse.call() is None


def test_a_long_block_whose_rows_move_stays_young_and_one_row_that_hangs_grows_old(pulse: Pulse) -> None:
    liveness = Liveness(pulse, package=__name__, every=0.03)
    liveness.start()
    pulse.enter_call()
    results: list[int] = []
    for number in range(30):  # a block of slow rows
        time.sleep(0.02)
        results.append(number)
    moving = pulse.call()
    time.sleep(0.5)  # one row that does not come back
    hanging = pulse.call()
    liveness.end()
    assert moving is not None
    assert hanging is not None
    assert moving[0] < 0.35
    assert hanging[0] > 0.4
