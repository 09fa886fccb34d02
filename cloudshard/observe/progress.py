"""How fast a stage goes and when it will be done, by bytes of input: a big shard counts for more than a small one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: The rate is taken over the commits of this long before the newest one: long enough to hold some, short enough to follow
#: workers that join and leave.
RATE_WINDOW_SECONDS = 600.0


class Progress(NamedTuple):
    """Input bytes of all items, of the committed ones; bytes per second lately; seconds to go. None: cannot be told."""

    total: int
    done: int
    bytes_per_second: float | None
    eta_seconds: float | None


def estimate(weights: Sequence[int], committed: Mapping[int, float], *, began: float, now: float) -> Progress:
    """``weights``: bytes of each item by index; ``committed``: item -> store time of its commit; ``began``: when work began."""
    total = sum(weights)
    done = sum(weights[item] for item in committed if item < len(weights))
    if not committed or not total:
        return Progress(total, done, None, None)
    since = max(began, max(committed.values()) - RATE_WINDOW_SECONDS)
    recent = sum(weights[item] for item, at in committed.items() if at >= since and item < len(weights))
    seconds = now - since
    if seconds <= 0 or not recent:
        return Progress(total, done, None, None)
    rate = recent / seconds
    return Progress(total, done, rate, (total - done) / rate)
