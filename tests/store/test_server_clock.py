"""The estimate of the server's clock is a lower bound, also when the local clock drifts."""

from __future__ import annotations

from cloudshard.store.reliable import ServerClock


class Local:
    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now


def test_the_fastest_answer_counts() -> None:
    local = Local()
    clock = ServerClock(local)
    assert clock.now() is None
    local.now += 3.0  # this answer took three seconds
    clock.observe(1000.0)
    assert clock.now() == 1000.0
    clock.observe(1002.5)
    assert clock.now() == 1002.5
    clock.observe(1001.0)
    assert clock.now() == 1002.5


def test_a_fast_local_clock_does_not_run_ahead_for_long() -> None:
    local = Local()
    clock = ServerClock(local)
    server = 1000.0
    for _ in range(3600):  # an hour with a local clock that is 1 % fast
        server += 1.0
        local.now += 1.01
        clock.observe(server)
    ahead = (clock.now() or 0.0) - server
    assert 0 <= ahead <= 0.01 * 2 * ServerClock.WINDOW_SECONDS + 0.01
