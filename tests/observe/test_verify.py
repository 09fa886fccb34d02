"""Verify: a good run passes; each kind of damage is found, named and placed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from cloudshard.ledger import keys
from cloudshard.ledger.records import RowCounts, encode
from cloudshard.ledger.seal import Manifest, manifest_key
from cloudshard.observe.collected import write_collected
from cloudshard.observe.findings import VerifyReport
from cloudshard.observe.verify import verify_run
from tests.observe.builder import BuiltRun, parquet


def verify(run: BuiltRun, *, fast: bool = False) -> VerifyReport:
    return verify_run(run.store, run.open_output, fast=fast)


def problems(report: VerifyReport) -> dict[str, list[str]]:
    return {check.name: [problem.what for problem in check.problems] for check in report.checks if not check.ok}


def part(run: BuiltRun, item: int = 0, stage: int = 0) -> str:
    return run.commits[stage, item].parts[0].key


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("items", [(4,), (3, 2)])
def test_a_good_run_passes(items: tuple[int, ...], fast: bool) -> None:
    run = BuiltRun(items=items).complete()
    run.summarise(0)
    report = verify(run, fast=fast)
    assert (problems(report), report.exit_code, report.complete) == ({}, 0, True)
    assert report.parts == items[-1]
    assert bool(report.bytes_read) is not fast


def test_a_run_under_way_is_incomplete_and_not_wrong() -> None:
    run = BuiltRun()
    run.commit(0)
    run.output.delete([part(run)])  # committed, and not published yet
    report = verify(run)
    assert (problems(report), report.exit_code) == ({}, 1)


def test_a_quarantine_file_with_its_rows_is_well() -> None:
    run = BuiltRun(items=(1,))
    record = run.commit(0, quarantined=3)
    run.seal()
    assert problems(verify(run)) == {}
    run.store.put(str(record.quarantine_key), parquet(2))
    assert problems(verify(run)) == {"quarantine": ["the file holds 2 rows, 3 were quarantined"]}
    run.store.delete([str(record.quarantine_key)])
    assert problems(verify(run, fast=True)) == {"quarantine": ["the quarantine file is missing"]}


def flip_a_byte(run: BuiltRun) -> None:
    body = bytearray(run.output.get(part(run)))
    body[10] ^= 1
    run.output.put(part(run), bytes(body))


def cut(run: BuiltRun) -> None:
    run.output.put(part(run), run.output.get(part(run))[:-1])


def lose(run: BuiltRun) -> None:
    run.output.delete([part(run)])


def add_foreign(run: BuiltRun) -> None:
    run.output.put("part-000000-000-deadbeef.parquet", b"x")


def add_losing(run: BuiltRun) -> None:
    run.output.put(keys.part_name(0, 1, run.tag, ".parquet"), b"x")


def lose_commit(run: BuiltRun) -> None:
    run.store.delete([keys.commit(0, 2)])
    run.output.delete([part(run, 2)])


def lose_claim(run: BuiltRun) -> None:
    run.store.delete([keys.entry(0, "claims", 1, 1)])


def another_nonce(run: BuiltRun) -> None:
    run.store.put(keys.commit(0, 1), encode(msgspec.structs.replace(run.commits[0, 1], nonce="somebody")))


def misplaced(run: BuiltRun) -> None:
    run.store.put(keys.commit(0, 1), encode(run.commits[0, 2]))


def rubbish(run: BuiltRun) -> None:
    run.store.put(keys.commit(0, 1), b"{")


def leak_rows(run: BuiltRun) -> None:
    run.store.put(
        keys.commit(0, 1), encode(msgspec.structs.replace(run.commits[0, 1], counts=RowCounts(rows_in=11, rows_out=8, filtered=2)))
    )


def wrong_summary(run: BuiltRun) -> None:
    run.commits[0, 3] = msgspec.structs.replace(run.commits[0, 3], worker="other")
    run.summarise(0)


def extra_item(run: BuiltRun) -> None:
    run.store.put(keys.commit(0, 9), encode(msgspec.structs.replace(run.commits[0, 1], item=9)))


def lose_manifest(run: BuiltRun) -> None:
    run.output.delete([manifest_key(run.tag)])


def wrong_manifest(run: BuiltRun) -> None:
    manifest = msgspec.json.decode(run.output.get(manifest_key(run.tag)), type=Manifest)
    run.output.put(manifest_key(run.tag), encode(msgspec.structs.replace(manifest, parts=manifest.parts[1:])))


@pytest.mark.parametrize(
    ("damage", "check", "words", "seen_fast"),
    [
        (flip_a_byte, "parts", "checksum", False),
        (cut, "parts", "bytes", True),
        (lose, "parts", "missing", True),
        (add_foreign, "foreign", "not written by this run", True),
        (add_losing, "foreign", "no commit record names", True),
        (lose_commit, "commits", "no commit record: 2", True),
        (lose_claim, "commits", "claim", True),
        (another_nonce, "commits", "nonce", False),
        (misplaced, "commits", "item", True),
        (rubbish, "commits", "not a valid CommitRecord", False),
        (leak_rows, "rows", "unaccounted", True),
        (wrong_summary, "commits", "differ", False),
        (extra_item, "commits", "not one of the stage's 4 work items", True),
        (lose_manifest, "manifest", "missing", True),
        (wrong_manifest, "manifest", "differ about part-000000", True),
    ],
)
def test_damage_is_found(damage: Callable[[BuiltRun], None], check: str, words: str, seen_fast: bool) -> None:
    run = BuiltRun().complete()
    damage(run)
    report = verify(run)
    assert report.exit_code == 2
    assert any(words in what for what in problems(report).get(check, [])), problems(report)
    if seen_fast:
        assert verify(run, fast=True).exit_code == 2


def test_fewer_rows_in_the_file_than_committed_are_found_though_the_checksum_agrees() -> None:
    run = BuiltRun(items=(1,))
    body = parquet(7)
    from tests.observe.builder import checksum

    record = run.commit(0)
    run.output.put(part(run), body)
    wrong = msgspec.structs.replace(record.parts[0], bytes=len(body), checksum=checksum(body))
    run.commits[0, 0] = msgspec.structs.replace(record, parts=(wrong,))
    run.store.put(keys.commit(0, 0), encode(run.commits[0, 0]))
    run.seal()
    assert problems(verify(run)) == {"row counts": ["the object holds 7 rows, 8 were committed"]}


def test_rows_lost_at_a_boundary_are_found() -> None:
    run = BuiltRun(items=(2, 1))
    run.commit(0)
    run.commit(1)
    run.seal(0)
    run.begin_stage(1)
    run.commit(0, stage=1, rows_in=15)
    run.seal(1)
    assert problems(verify(run)) == {"rows": ["stage 1 read 15 of the 16 rows that it was given"]}


def test_a_seal_that_disagrees_is_found() -> None:
    run = BuiltRun(items=(2,))
    run.commit(0)
    run.commit(1)
    run.seal(0, parts=3)
    assert "the seal tells 3 parts" in problems(verify(run))["rows"][0]


def test_spills_that_gc_collected_are_not_missed_but_lost_ones_are() -> None:
    run = BuiltRun(items=(2, 1)).complete()
    run.store.delete([part(run, 0, 0)])
    assert problems(verify(run)) == {"parts": ["the part is missing"]}
    write_collected(run.store, by="me", spills=True, objects=1, bytes=1, uploads=0)
    assert problems(verify(run)) == {}


def test_an_output_that_a_later_run_replaced_says_just_that() -> None:
    run = BuiltRun().complete()
    later = Manifest(run_id="later-1", run_tag="later", parts=(), replaces=(part(run), manifest_key(run.tag)))
    run.output.create(manifest_key("later"), encode(later))
    lose(run)
    assert problems(verify(run)) == {"manifest": ["the output was replaced by run later-1"]}
