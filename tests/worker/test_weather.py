"""Infrastructure trouble: back off, hope, give up."""

from __future__ import annotations

import random

from cloudshard.errors import PermissionDenied, Unavailable
from cloudshard.worker.weather import MAX_DENIALS, MAX_SECONDS, Weather


def test_waits_grow_and_are_bounded_and_a_success_ends_them() -> None:
    weather = Weather(random.Random(1))
    waits = []
    for _ in range(200):
        weather.failure(Unavailable("away"), 100.0)
        waits.append(weather.closed_until - 100.0)
    assert max(waits[:2]) < 5
    assert 30 < max(waits) <= MAX_SECONDS + 1
    assert not weather.clear
    weather.success()
    assert weather.clear
    assert weather.closed_until == 0.0


def test_refusals_in_a_row_are_hopeless() -> None:
    weather = Weather()
    for _ in range(MAX_DENIALS - 1):
        weather.failure(PermissionDenied("no"), 0.0)
        assert weather.hopeless(0.0) is None
    weather.success()
    for _ in range(MAX_DENIALS):
        weather.failure(PermissionDenied("no"), 0.0)
    assert isinstance(weather.hopeless(0.0), PermissionDenied)


def test_an_outage_is_waited_for_but_not_for_ever() -> None:
    weather = Weather(patience_seconds=100.0)
    weather.failure(Unavailable("away"), 0.0)
    assert weather.hopeless(99.0) is None
    weather.failure(Unavailable("away"), 101.0)
    assert isinstance(weather.hopeless(101.0), Unavailable)
