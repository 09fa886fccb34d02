"""Gc: deletes what has lost or is finished, and nothing that a commit record names or an open item may still need."""

from __future__ import annotations

from cloudshard.ledger import keys
from cloudshard.ledger.records import encode
from cloudshard.observe.gc import GarbagePlan, collect, plan_gc
from cloudshard.observe.verify import verify_run
from cloudshard.store.port import PendingUpload
from tests.observe.builder import BuiltRun


def plan(run: BuiltRun) -> GarbagePlan:
    return plan_gc(run.store, run.open_output)


def everything(run: BuiltRun) -> set[str]:
    return {info.key for store in (run.store, run.output) for page in store.list() for info in page.objects}


def pending(run: BuiltRun) -> list[PendingUpload]:
    return list(run.output.list_uploads())


def test_a_complete_run_without_boundaries_has_no_garbage() -> None:
    run = BuiltRun().complete()
    before = everything(run)
    found = plan(run)
    collect(run.store, run.open_output, found, by="me")
    assert not found.garbage
    assert everything(run) == before


def test_spills_of_a_complete_run_go_and_verify_knows() -> None:
    run = BuiltRun(items=(3, 2)).complete()
    found = plan(run)
    assert found.by_kind()["spill"][0] == 3
    outputs = {info.key for page in run.output.list() for info in page.objects}
    collect(run.store, run.open_output, found, by="me")
    assert not [key for key in everything(run) if "/runs/" in key]
    assert {info.key for page in run.output.list() for info in page.objects} == outputs
    assert verify_run(run.store, run.open_output).exit_code == 0
    assert not plan(run).garbage


def test_spills_of_a_run_under_way_are_kept() -> None:
    run = BuiltRun(items=(2, 1))
    run.commit(0)
    run.commit(1)
    run.seal(0)
    found = plan(run)
    assert (found.garbage, found.kept) == ([], 2)


def test_data_of_losing_attempts_goes_once_their_item_is_committed() -> None:
    run = BuiltRun(items=(2, 1))
    run.claim(0, epoch=1)
    loser = keys.run_data(0, 0, "n0x0x1", 0, ".arrow")
    unfinished = keys.run_data(0, 1, "n0x1x1", 0, ".arrow")
    quarantine = keys.quarantine(0, 0, "n0x0x1")
    for key in (loser, unfinished, quarantine):
        run.store.put(key, b"x")
    assert not plan(run).garbage  # nothing is committed: any of them may still win
    run.clock.now += 100
    run.commit(0, epoch=2, quarantined=1)
    found = plan(run)
    assert {(thing.kind, thing.key) for thing in found.garbage} == {("losing data", loser), ("losing quarantine", quarantine)}
    collect(run.store, run.open_output, found, by="me")
    assert unfinished in everything(run)
    assert loser not in everything(run)
    assert str(run.commits[0, 0].quarantine_key) in everything(run)


def test_a_losing_attempt_whose_lease_runs_is_left_alone() -> None:
    run = BuiltRun(items=(1, 1))
    run.claim(0, epoch=1)
    run.clock.now += 100
    run.claim(0, epoch=2)  # took over and is at work
    run.commit(0, epoch=1)  # the frozen holder woke up and committed
    run.store.put(keys.run_data(0, 0, "n0x0x2", 0, ".arrow"), b"x")
    assert not plan(run).garbage
    run.clock.now += 61
    assert [thing.kind for thing in plan(run).garbage] == ["losing data"]


def test_pending_uploads_go_unless_a_commit_record_names_them_or_they_are_another_runs() -> None:
    run = BuiltRun(items=(2,))
    run.claim(0, epoch=1)
    lost = run.output.begin_upload(keys.part_name(0, 0, run.tag, ".parquet"), part_size=10)
    named = run.output.begin_upload(keys.part_name(0, 0, run.tag, ".parquet"), part_size=10)
    open_item = run.output.begin_upload(keys.part_name(1, 0, run.tag, ".parquet"), part_size=10)
    foreign = run.output.begin_upload(keys.part_name(0, 0, "othertag", ".parquet"), part_size=10)
    run.clock.now += 100
    record = run.commit(0, epoch=2)
    import msgspec

    part = msgspec.structs.replace(record.parts[0], upload=named)
    run.store.put(keys.commit(0, 0), encode(msgspec.structs.replace(record, parts=(part,))))
    found = plan(run)
    assert [(thing.kind, thing.upload_id) for thing in found.garbage] == [("losing upload", lost.upload_id)]
    collect(run.store, run.open_output, found, by="me")
    assert {upload.upload_id for upload in pending(run)} == {named.upload_id, open_item.upload_id, foreign.upload_id}


def test_pending_uploads_of_data_between_stages_go_too() -> None:
    run = BuiltRun(items=(1, 1))
    run.claim(0, epoch=1)
    lost = run.store.begin_upload(keys.run_data(0, 0, "n0x0x1", 0, ".run"), part_size=10)
    assert not plan(run).garbage
    run.clock.now += 100
    run.commit(0, epoch=2)
    found = plan(run)
    assert [(thing.base, thing.upload_id) for thing in found.garbage] == [("run", lost.upload_id)]
    collect(run.store, run.open_output, found, by="me")
    assert not list(run.store.list_uploads())


def test_ledger_records_and_claims_stay() -> None:
    run = BuiltRun(items=(2, 1)).complete()
    records = {key for key in everything(run) if "/runs/" not in key}
    collect(run.store, run.open_output, plan(run), by="me")
    assert records <= everything(run)
