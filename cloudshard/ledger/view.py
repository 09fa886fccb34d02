"""Reading the state of a block of work items from the names of its objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cloudshard.errors import NotFound
from cloudshard.ledger import keys
from cloudshard.ledger.claims import lease_of
from cloudshard.ledger.decide import ItemSeen, LeaseSeen
from cloudshard.store.port import Store

BlockView = dict[int, ItemSeen]


def items_of(block: int, item_count: int) -> range:
    """The work items of a block."""
    return range(block * keys.BLOCK_ITEMS, min((block + 1) * keys.BLOCK_ITEMS, item_count))


def read_block(store: Store, stage: int, block: int, item_count: int, *, own: Iterable[int] = ()) -> BlockView:
    """What the bucket says of each item of a block: two LISTs, and up to three more when somebody else's items are unfinished.

    Claims are listed *before* commits, so that an item is never taken for abandoned because it was committed between the two.
    ``own``: items that this worker holds; their failures are known to it.
    """
    view = {item: ItemSeen(item) for item in items_of(block, item_count)}
    for page in store.list(keys.folder(stage, "claims", block)):
        for info in page.objects:
            entry = keys.parse_entry(info.key)
            if entry.epoch is not None and entry.item in view:
                view[entry.item].claims[entry.epoch] = LeaseSeen(info.last_modified)
    for page in store.list(keys.folder(stage, "commits", block)):
        for info in page.objects:
            entry = keys.parse_entry(info.key)
            if entry.item in view:
                view[entry.item].committed = True
    mine = set(own)
    if any(seen.claims and not seen.committed and seen.item not in mine for seen in view.values()):
        _read_failures(store, stage, block, view)
    return view


def _read_failures(store: Store, stage: int, block: int, view: BlockView) -> None:
    found = False
    for page in store.list(keys.folder(stage, "failures", block)):
        for info in page.objects:
            entry = keys.parse_entry(info.key)
            if entry.epoch is not None and entry.item in view:
                view[entry.item].failures.add(entry.epoch)
                found = True
    if not found:
        return
    for page in store.list(keys.folder(stage, "dead", block)):
        for info in page.objects:
            entry = keys.parse_entry(info.key)
            if entry.epoch is not None and entry.item in view:
                view[entry.item].dead.add(entry.epoch)
    for page in store.list(keys.folder(stage, "revived", block)):
        for info in page.objects:
            entry = keys.parse_entry(info.key)
            if entry.epoch is not None and entry.item in view:
                view[entry.item].revived = max(view[entry.item].revived, entry.epoch)


def inspect_lease(store: Store, stage: int, seen: ItemSeen, epoch: int) -> None:
    """HEAD one claim: its true length, its latest renewal, and whether it was released (which a LIST cannot tell)."""
    try:
        seen.claims[epoch] = lease_of(store.head(keys.entry(stage, "claims", seen.item, epoch)))
    except NotFound:
        seen.claims[epoch] = replace(seen.claims[epoch], released=True)
