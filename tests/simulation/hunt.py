"""Play seeds until one violates an invariant: ``python -m tests.simulation.hunt FIRST LAST``; prints the violation, exit 1."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.simulation.run import play


def main(first: int, last: int) -> int:
    """0: all seeds hold."""
    begun, totals = time.monotonic(), Counter[str]()
    for seed in range(first, last):
        try:
            run = play(seed)
        except Exception as violation:
            print(f"after {seed - first + 1} seeds: {type(violation).__name__}: {violation}")
            return 1
        totals.update(run.bucket.injected)
        totals.update(crashes=run.crashes, claims=run.claims, steps=run.scheduler.steps, lost_races=run.lost_races)
    print(f"{last - first} seeds hold in {time.monotonic() - begun:.1f} s: {dict(totals)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
