"""Failed attempts grouped by cause, so that ten thousand of them read as three lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

from cloudshard.ledger.records import FailureRecord

#: Items named per group.
ITEMS_NAMED = 20
#: Numbers, hexadecimal names and quoted values differ between attempts of one cause.
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+|'[^']*'|\"[^\"]*\"")


class FailureGroup(msgspec.Struct, kw_only=True):
    """Failed attempts with the same cause.

    ``message``: the newest one in full; ``items``: at most 20 of ``item_count`` items; ``dead``: how many of those items are
    terminally failed; ``example``: one place where it happened (object, position).
    """

    stage: int
    kind: str
    error_type: str
    message: str
    step: str
    attempts: int
    item_count: int
    dead: int
    items: list[int]
    example: str


def cause(record: FailureRecord) -> tuple[str, str, str, str]:
    """What failures of one cause have in common: kind, error type, step, and the message without its variable pieces."""
    first_line = record.message.strip().partition("\n")[0]
    return record.kind, record.error_type, record.step, _VARIABLE.sub("…", first_line)[:200]


def group_failures(stage: int, failures: Iterable[FailureRecord], dead: Collection[int]) -> list[FailureGroup]:
    """One group per cause, the most frequent first. ``failures`` newest first."""
    by_cause: defaultdict[tuple[str, str, str, str], list[FailureRecord]] = defaultdict(list)
    for record in failures:
        by_cause[cause(record)].append(record)
    groups = []
    for records in by_cause.values():
        newest = records[0]
        items = sorted({record.item for record in records})
        groups.append(
            FailureGroup(
                stage=stage,
                kind=newest.kind,
                error_type=newest.error_type,
                message=newest.message.strip().partition("\n")[0],
                step=newest.step,
                attempts=len(records),
                item_count=len(items),
                dead=len(set(items) & set(dead)),
                items=items[:ITEMS_NAMED],
                example=newest.where,
            )
        )
    return sorted(groups, key=lambda group: (-group.attempts, group.error_type, group.message))
