"""How many items to hold: pure arithmetic over how long items take.

Claiming ahead hides the ledger's latency; holding too much keeps items from other workers and makes leases run out unused.
"""

from __future__ import annotations

import math

#: Work claimed ahead, in seconds of all children together.
AHEAD_SECONDS = 1.0
MAX_AHEAD = 64
#: A waiting claim whose turn does not come within this part of its lease is given back, and so is not worth making.
LONG_ITEM_FRACTION = 1 / 6
#: Work queued inside one child: longer than a round trip to the supervisor takes while everything is busy (1–10 ms).
DEPTH_SECONDS = 0.05
MAX_DEPTH = 16
_SMOOTHING = 0.2


class Pace:
    """Learns the time of an item. ``long_seconds``: from here on items are long, and nothing is claimed ahead."""

    def __init__(self, lease_seconds: float, *, spans_items: bool = False) -> None:
        self.long_seconds = lease_seconds * LONG_ITEM_FRACTION
        self.item_seconds: float | None = None
        self._spans_items = spans_items

    def learn(self, seconds: float) -> None:
        """An item took that long (or has taken that long and goes on)."""
        if self.item_seconds is None:
            self.item_seconds = seconds
        else:
            self.item_seconds += _SMOOTHING * (seconds - self.item_seconds)

    def learn_at_least(self, seconds: float) -> None:
        """An item has been running for that long without an end."""
        if self.item_seconds is None or seconds > self.item_seconds:
            self.item_seconds = seconds

    def depth(self) -> int:
        """Assignments that one child should have: the one it runs and those queued behind it."""
        least = 3 if self._spans_items else 1  # batches that span items starve without the next item's rows
        if self.item_seconds is None:
            return least
        return max(least, min(MAX_DEPTH, 1 + math.floor(DEPTH_SECONDS / max(self.item_seconds, 1e-4))))

    def claims_wanted(self, *, children: int, held: int, idle: int, unclaimed: int) -> int:
        """How many claims to ask for now.

        ``held``: claims that wait or run; ``idle``: children without work; ``unclaimed``: items that are neither committed nor dead nor
        ours, as far as is known. Near the end a worker takes one item per idle child, so that nobody hoards the tail.
        """
        waiting = max(0, held - (children - idle))
        if unclaimed <= 2 * children:
            return max(0, min(idle - waiting, unclaimed))
        ahead = self._ahead(children)
        target = children + ahead
        wanted = target - held
        if wanted <= 0 or (held > children and wanted < max(1, ahead // 4)):
            return 0  # a few at a time cost a look into the ledger each
        return min(wanted, unclaimed)

    def _ahead(self, children: int) -> int:
        if self.item_seconds is None:
            return 0 if not self._spans_items else 2 * children
        if self.item_seconds > self.long_seconds:
            return 0 if not self._spans_items else children
        return max(children + 1, min(MAX_AHEAD, round(AHEAD_SECONDS * children / max(self.item_seconds, 1e-4))))
