"""Sampling by row identity: pinned, whatever the shards, batches or workers."""

from __future__ import annotations

from cloudshard.engine.block import Block, Origin
from cloudshard.engine.rowsteps import sample_flags
from tests.engine.harness import Bench, step


def test_the_choice_is_pinned() -> None:
    # a change here changes which rows every seeded sample holds: users would get another training set from the same recipe
    block = Block(Origin(0, "s3://bucket/data/part-0.jsonl", "byte"), [0, 17, 123456789, 2**40], rows=[{}] * 4)
    chosen = [[sample_flags(block, fraction, seed) for fraction in (0.25, 0.5, 0.75)] for seed in (0, 1)]
    assert chosen == [
        [[False, True, False, False], [True, True, False, False], [True, True, False, True]],
        [[True, False, False, False], [True, True, False, False], [True, True, False, False]],
    ]


def test_the_same_rows_in_blocks_of_any_size() -> None:
    rows = [{"n": n} for n in range(2000)]
    whole = Bench([step("sample", fraction=0.3, seed=7)], [rows])
    whole.run()
    careful = Bench([step("sample", fraction=0.3, seed=7)], [rows], careful=True)
    careful.run()
    assert whole.out.rows[0] == careful.out.rows[0]
    assert 500 < len(whole.out.rows[0]) < 700


def test_nothing_and_everything() -> None:
    rows = [{"n": n} for n in range(100)]
    for fraction, expected in ((0.0, 0), (1.0, 100)):
        bench = Bench([step("sample", fraction=fraction, seed=0)], [rows])
        bench.run()
        assert len(bench.out.rows.get(0, [])) == expected
