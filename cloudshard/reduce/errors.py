"""What goes wrong in a reduce so that more of the same would not help: the caller escalates.

CloudshardError
├─ OutOfMemory       the budget is too small: a bigger class, fewer threads, or more partitions
│  ├─ GroupTooLarge  one group does not fit: more partitions do not help
│  └─ CannotSpill    there is no scratch space to spill to
└─ DiskFull          the scratch disk has no room left (see :mod:`cloudshard.errors`)
"""

from __future__ import annotations

from cloudshard.errors import CloudshardError


class OutOfMemory(CloudshardError):
    """A partition does not fit into the memory budget. ``kind`` is that of a failure record."""

    kind = "oom"


class GroupTooLarge(OutOfMemory):
    """One group, which must be in memory as a whole, is larger than the budget."""


class CannotSpill(OutOfMemory):
    """More memory is needed than the budget, and the scratch directory cannot be used."""
