"""Key names of the ledger: the state of a run can be read from a LIST of them.

Work items are grouped in blocks of neighbours; a block's name begins with a hash, so that load spreads over the bucket's
prefixes while one LIST page still tells the state of a whole block.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

RUN = "run.json"
FUNCTIONS = "plan/functions/"
WORKERS = "workers/"
QUARANTINE = "quarantine/"
LOGS = "logs/"

#: Items per block. One LIST page holds 1,000 keys: 256 items leave room for several epochs each, and two LISTs per block
#: (claims, commits) stay below 0.01 LIST per item.
BLOCK_ITEMS = 256


class ItemKey(NamedTuple):
    """A parsed key under claims/, failures/, dead/ or revived/ (``epoch``), or commits/ (epoch None)."""

    item: int
    epoch: int | None


def block_of(item: int) -> int:
    """Number of the block that holds ``item``."""
    return item // BLOCK_ITEMS


def block_name(block: int) -> str:
    """``<4 hex of a hash>-<block>``."""
    return f"{xxhash.xxh32_intdigest(b'block-%d' % block) >> 16:04x}-{block:05d}"


def stage(number: int) -> str:
    """Prefix of a stage."""
    return f"stages/{number:02d}/"


def stage_record(number: int) -> str:
    """Key of the stage's list of work items."""
    return f"{stage(number)}stage.json"


def sealed(number: int) -> str:
    """Key of the stage's seal."""
    return f"{stage(number)}sealed.json"


def folder(number: int, what: str, block: int | None = None) -> str:
    """Prefix of all ``what`` (claims, commits, failures, dead, revived) of a stage, or of one block."""
    base = f"{stage(number)}{what}/"
    return base if block is None else f"{base}{block_name(block)}/"


def entry(number: int, what: str, item: int, epoch: int) -> str:
    """Key of a claim, failure, dead or revived record."""
    return f"{folder(number, what, block_of(item))}{item:08d}.{epoch:05d}"


def commit(number: int, item: int) -> str:
    """Key of an item's commit record."""
    return f"{folder(number, 'commits', block_of(item))}{item:08d}"


def block_summary(number: int, block: int) -> str:
    """Key of a block's commit records in one object (JSON lines, made when all are committed)."""
    return f"{stage(number)}blocks/{block_name(block)}.jsonl"


def run_data(number: int, item: int, nonce: str, part: int, suffix: str) -> str:
    """Key of a materialised run of an attempt."""
    return f"{stage(number)}runs/{block_name(block_of(item))}/{item:08d}-{nonce}-{part:03d}{suffix}"


def quarantine(number: int, item: int, nonce: str) -> str:
    """Key of an attempt's quarantine file."""
    return f"{QUARANTINE}{number:02d}/{block_name(block_of(item))}/{item:08d}-{nonce}.parquet"


def attempt_log(number: int, item: int, epoch: int) -> str:
    """Key of an attempt's log (JSON lines)."""
    return f"{LOGS}{number:02d}/{block_name(block_of(item))}/{item:08d}-{epoch:05d}.jsonl"


def worker(worker_id: str) -> str:
    """Key of a worker's record."""
    return f"{WORKERS}{worker_id}.json"


def parse_entry(key: str) -> ItemKey:
    """The item and epoch of a key made by :func:`entry` or :func:`commit`."""
    item, dot, epoch = key.rpartition("/")[2].partition(".")
    return ItemKey(int(item), int(epoch) if dot else None)


def item_prefix(number: int, what: str, item: int) -> str:
    """Prefix of all ``what`` of one item."""
    return f"{folder(number, what, block_of(item))}{item:08d}."


def part_name(item: int, part: int, run_tag: str, suffix: str) -> str:
    """File name of a part of the final output: sorts in input order; ``run_tag`` keeps two runs' files apart."""
    return f"part-{item:06d}-{part:03d}-{run_tag}{suffix}"
