"""Key names: what the layout of the bucket promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudshard.ledger import keys


@given(st.integers(0, 99), st.integers(0, 10_000_000), st.integers(1, 99_999), st.sampled_from(["claims", "failures", "dead", "revived"]))
def test_entries_can_be_parsed(stage: int, item: int, epoch: int, what: str) -> None:
    assert keys.parse_entry(keys.entry(stage, what, item, epoch)) == (item, epoch)
    assert keys.parse_entry(keys.commit(stage, item)) == (item, None)


def test_golden_names() -> None:
    # The layout is a contract between versions of cloudshard: a change here orphans every run that is under way.
    assert keys.entry(0, "claims", 5, 1) == "stages/00/claims/bb55-00000/00000005.00001"
    assert keys.commit(1, 300) == f"stages/01/commits/{keys.block_name(1)}/00000300"
    assert keys.block_summary(0, 0) == "stages/00/blocks/bb55-00000.jsonl"
    assert keys.part_name(12, 0, "ab12cd34", ".parquet") == "part-000012-000-ab12cd34.parquet"


def test_block_names_spread_over_the_prefixes() -> None:
    assert len({keys.block_name(block)[:2] for block in range(400)}) > 150


def test_part_names_sort_in_input_order() -> None:
    names = [keys.part_name(item, part, "t", "") for item in range(120) for part in range(3)]
    assert names == sorted(names)


@pytest.mark.parametrize("block", [0, 1, 7, 99_999])
def test_block_names_hold_their_number(block: int) -> None:
    assert int(keys.block_name(block).rpartition("-")[2]) == block
