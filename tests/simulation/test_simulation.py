"""Invariants 1–8 under thousands of seeded interleavings of crash, freeze, skewed clocks, lost and doubled messages, throttling."""

from __future__ import annotations

import pytest

from tests.simulation.run import play

FAST_CHUNKS = 20
CHUNK = 125


def _play(first: int, last: int) -> dict[str, int]:
    totals: dict[str, int] = {}
    for seed in range(first, last):
        run = play(seed)
        for kind, count in {**run.bucket.injected, "crash": run.crashes}.items():
            totals[kind] = totals.get(kind, 0) + count
    return totals


@pytest.mark.parametrize("chunk", range(FAST_CHUNKS))
def test_invariants_1_to_8_hold_in_every_interleaving(chunk: int) -> None:
    injected = _play(chunk * CHUNK, (chunk + 1) * CHUNK)
    for kind in ("lost_request", "lost_answer", "throttled", "conflict", "duplicate", "crash"):
        assert injected.get(kind, 0) > 0, f"the storm injected no {kind}"


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
def test_invariants_1_to_8_hold_in_ten_thousand_more(chunk: int) -> None:
    first = FAST_CHUNKS * CHUNK + chunk * 500
    assert _play(first, first + 500)
