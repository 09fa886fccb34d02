"""Invariants 6, 8 and 9: what the protocol costs, counted in the simulation."""

from __future__ import annotations

import pytest

from tests.simulation.run import Run, Scenario
from tests.simulation.world import Chaos

LEDGER_WRITES = ("create", "put")


def _play(scenario: Scenario) -> Run:
    run = Run(scenario)
    run.bucket.monitors.clear()  # counting only; the monitors are quadratic in the number of items
    for _ in range(scenario.workers):
        run.spawn(run.rng.uniform(0.0, 0.01))
    run.scheduler.run(until=lambda: len(run.finished) == scenario.workers, max_seconds=1e7, max_steps=10**9)
    assert not run.errors, run.errors
    assert len(run.finished) == scenario.workers
    return run


def test_invariant_9_requests_of_one_worker_with_a_thousand_short_items(monkeypatch: pytest.MonkeyPatch) -> None:
    items = 1000
    run = _play(Scenario(seed=1, workers=1, items=items, lease_seconds=1e6, work=False, chaos=Chaos(latency_seconds=0.005)))
    requests = run.bucket.requests
    assert sum(requests[verb] for verb in LEDGER_WRITES) <= 2.05 * items, requests
    assert requests["list"] <= 0.05 * items, requests
    assert requests["head"] == 0, requests
    assert run.lost_races == 0


def _race(items: int, workers: int) -> Run:
    return _play(Scenario(seed=2, workers=workers, items=items, lease_seconds=600.0, work=False, chaos=Chaos(latency_seconds=0.01)))


def test_invariant_9_many_workers_seldom_meet() -> None:
    run = _race(20_000, 32)
    assert run.claims == 20_000
    assert run.lost_races < 0.03 * run.claims, (run.lost_races, run.claims)
    assert run.bucket.requests["list"] <= 0.5 * run.claims, run.bucket.requests


@pytest.mark.slow
def test_invariant_9_64_workers_on_100_000_items_lose_few_races() -> None:
    run = _race(100_000, 64)
    print(f"64 workers, 100,000 items: {run.lost_races} lost races of {run.claims} claims, requests {dict(run.bucket.requests)}")
    assert run.claims == 100_000
    assert run.lost_races < 0.03 * run.claims


def test_invariant_6_a_dead_worker_delays_the_run_by_one_lease_at_most() -> None:
    lease = 60.0
    for seed in range(30):
        calm = Run(Scenario(seed=seed, workers=3, items=6, lease_seconds=lease))
        calm.play()
        undisturbed = (calm.sealed_at or 0.0) - 1_000_000.0
        run = Run(Scenario(seed=seed, workers=3, items=6, lease_seconds=lease))

        def kill(run: Run = run) -> None:
            run.processes[0].doomed = True

        run.scheduler.at(undisturbed / 2, kill)
        run.play()
        took = (run.sealed_at or 0.0) - 1_000_000.0
        # the victim's item costs one lease and is then done once more: up to 1.5 leases of simulated work, polls of 5 s
        assert took <= undisturbed + lease + 1.5 * lease + 3 * 5.0 + 10.0, (seed, undisturbed, took)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_invariant_8_the_same_rows_whatever_the_number_of_workers(workers: int) -> None:
    for seed in range(20):
        run = Run(Scenario(seed=seed, workers=workers, items=7, stages=2))
        run.play()  # compares the output with the expected rows
        assert len([key for key in run.commits if key.startswith("run/stages/00/")]) == 7
