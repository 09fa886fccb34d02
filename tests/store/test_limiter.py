"""The adaptive limiter, on a clock that stands still until somebody sleeps."""

from __future__ import annotations

import threading

import pytest

from cloudshard.store import limiter as module
from cloudshard.store.limiter import AdaptiveLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> AdaptiveLimiter:
    return AdaptiveLimiter(monotonic=clock, sleep=clock.sleep)


def ask(limiter: AdaptiveLimiter, clock: Clock, times: int, every: float = 0.0) -> None:
    for _ in range(times):
        limiter.acquire("put")
        limiter.succeeded()
        clock.now += every


def test_never_waits_before_the_store_throttles(limiter: AdaptiveLimiter, clock: Clock) -> None:
    ask(limiter, clock, 100_000)
    assert clock.slept == []
    assert limiter.rate is None


def test_throttling_halves_the_rate_of_late(limiter: AdaptiveLimiter, clock: Clock) -> None:
    ask(limiter, clock, 500, every=0.01)  # 100 per second
    limiter.throttled()
    assert limiter.rate == pytest.approx(50, rel=0.1)


def test_the_rate_of_late_is_not_diluted_by_an_idle_hour(limiter: AdaptiveLimiter, clock: Clock) -> None:
    ask(limiter, clock, 10)
    clock.now += 3600
    ask(limiter, clock, 200, every=0.005)
    limiter.throttled()
    assert limiter.rate == pytest.approx(100, rel=0.2)


def test_a_limited_rate_is_kept(limiter: AdaptiveLimiter, clock: Clock) -> None:
    ask(limiter, clock, 500, every=0.01)
    limiter.throttled()
    start = clock.now
    ask(limiter, clock, 50)
    assert clock.now - start == pytest.approx(50 / limiter.rate, rel=0.1)
    assert limiter.waited_seconds == pytest.approx(sum(clock.slept))


def test_answers_in_flight_together_are_one_event(limiter: AdaptiveLimiter, clock: Clock) -> None:
    ask(limiter, clock, 500, every=0.01)
    for _ in range(100):
        limiter.throttled()
    assert limiter.rate == pytest.approx(50, rel=0.1)
    assert limiter.events == 1
    clock.now += module.EVENT_SECONDS
    limiter.throttled()
    assert limiter.rate == pytest.approx(25, rel=0.1)


def test_there_is_a_floor(limiter: AdaptiveLimiter, clock: Clock) -> None:
    for _ in range(20):
        limiter.throttled()
        clock.now += module.EVENT_SECONDS
    assert limiter.rate == module.FLOOR


def test_recovers_additively_and_lifts_the_limit(limiter: AdaptiveLimiter, clock: Clock) -> None:
    ask(limiter, clock, 500, every=0.01)
    limiter.throttled()
    rates = []
    for _ in range(60):
        clock.now += 1.0
        limiter.acquire("put")
        rates.append(limiter.rate)
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known)
    assert known[9] - known[8] == pytest.approx(known[5] - known[4], rel=0.01)
    assert rates[8] is not None
    assert rates[-1] is None


def test_threads_share_the_rate(clock: Clock) -> None:
    lock = threading.Lock()
    waits: list[float] = []

    def note(seconds: float) -> None:  # nobody moves the clock: turns are handed out ahead
        with lock:
            waits.append(seconds)

    limiter = AdaptiveLimiter(monotonic=clock, sleep=note)
    ask(limiter, clock, 200, every=0.01)
    limiter.throttled()
    rate = limiter.rate
    threads = [threading.Thread(target=lambda: [limiter.acquire("get") for _ in range(25)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waits) == pytest.approx(199 / rate, rel=0.01)
    assert len(set(waits)) == len(waits)
