"""The end of the chain: one schema for all parts, policies for what does not fit, parts of a target size."""

from __future__ import annotations

import io
import os
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloudshard.engine.attempt import AttemptContext, AttemptFailure, AttemptResult
from cloudshard.engine.block import Origin
from cloudshard.engine.output import StoreOutput
from cloudshard.engine.quarantine import Quarantine
from cloudshard.formats.schema import encode_schema
from cloudshard.ledger.records import WorkItem
from cloudshard.plan.values import SinkSpec
from cloudshard.store.memory import MemoryStore
from tests.engine.harness import Bench, step

SCHEMA = encode_schema(pa.schema([("n", pa.int64()), ("text", pa.large_string())]))
MIXED = [{"n": 1, "text": "a"}, {"n": "two", "text": "b"}, {"n": 3, "text": "c", "late": 1}, {"text": "d"}]


def sink(policy: str = "error", format_name: str = "parquet", **fields: Any) -> SinkSpec:
    return SinkSpec(format=format_name, url="memory://out", schema=SCHEMA, new_columns=policy, **fields)  # type: ignore[arg-type]


def test_a_value_that_does_not_fit_fails_with_column_and_place() -> None:
    result = Bench([], [MIXED[:2]], sink=sink()).run()[0]
    assert isinstance(result, AttemptFailure)
    assert "'n'" in str(result.error)
    assert "byte 19" in str(result.error)


def test_a_late_column_fails_with_its_name_and_place() -> None:
    result = Bench([], [[MIXED[0], MIXED[2]]], sink=sink()).run()[0]
    assert isinstance(result, AttemptFailure)
    assert "'late'" in str(result.error)
    assert "byte 19" in str(result.error)


@pytest.mark.parametrize(
    ("policy", "kept", "quarantined"), [("quarantine", [1, None], 2), ("drop", [1, 3, None], 1), ("collect", [1, 3, None], 1)]
)
def test_lenient_policies_lose_only_what_cannot_be_kept(policy: str, kept: list[int | None], quarantined: int) -> None:
    bench = Bench([], [MIXED], sink=sink(policy))
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    assert [row["n"] for row in bench.out.rows[0]] == kept
    assert result.counts.quarantined == quarantined
    if policy == "collect":
        assert [row["_extra"] for row in bench.out.rows[0]] == [None, '{"late":1}', None]


def test_all_parts_have_the_same_schema_and_absent_keys_are_null() -> None:
    bench = Bench([step("map", lambda row: row)], [[{"n": 1}], [{"text": "x"}], [{"n": None, "text": None}]], sink=sink())
    bench.run()
    assert {block.table.schema for block in bench.out.blocks} == {pa.schema([("n", pa.int64()), ("text", pa.large_string())])}


def _write(spec: SinkSpec, rows: list[dict[str, Any]]) -> tuple[MemoryStore, AttemptResult]:
    store = MemoryStore("out")
    bench = Bench([], [rows], sink=spec)
    from cloudshard.engine.driver import Driver

    bench.driver = Driver(
        bench.driver.stage,
        open_object=lambda url: (bench.store, url.rpartition("/")[2]),
        load_function=lambda reference: reference,  # type: ignore[arg-type,return-value]
        output=StoreOutput(spec, store, store),
    )
    result = bench.run()[0]
    assert isinstance(result, AttemptResult)
    return store, result


def test_invariant_2_nothing_is_visible_until_the_upload_is_finished() -> None:
    store, result = _write(sink(), [{"n": n, "text": "x"} for n in range(10)])
    assert [info.key for page in store.list() for info in page.objects] == []
    (part,) = result.parts
    assert part.upload is not None
    store.finish_upload(part.upload, part.upload_parts)
    assert pq.read_table(io.BytesIO(store.get(part.key))).num_rows == part.rows == 10
    assert len(store.get(part.key)) == part.bytes


def test_parts_are_cut_at_the_target_size_and_sort_in_order() -> None:
    rows = [{"n": n, "text": f"{n:05d}" * 50} for n in range(20_000)]
    store, result = _write(sink(format_name="jsonl", target_part_bytes=1_000_000), rows)
    assert len(result.parts) > 3
    assert [part.key for part in result.parts] == sorted(part.key for part in result.parts)
    for part in result.parts:
        assert part.upload is not None
        store.finish_upload(part.upload, part.upload_parts)
    found = [orjson.loads(line)["n"] for part in result.parts for line in store.get(part.key).splitlines()]
    assert found == list(range(20_000))


def test_a_large_quarantine_is_streamed_and_a_small_one_is_one_write() -> None:
    for rows, verbs in ((10, {"put"}), (3000, {"begin_upload", "upload_part", "finish_upload"})):
        store = MemoryStore("out")
        used: set[str] = set()
        output = StoreOutput(SinkSpec(format="jsonl", url="memory://out"), store, _Watched(store, used))  # type: ignore[arg-type]
        attempt = AttemptContext(0, 7, 1, "nonce", "tag")
        quarantine = Quarantine(7, 1)
        for n in range(rows):
            quarantine.add({"n": n, "text": os.urandom(2000).hex()}, Origin(7, "s3://in/x", "byte"), n, ValueError("no"), "02-map")
        kept = quarantine.finish()
        assert kept is not None
        key = output.open(WorkItem(7, "shard", ()), attempt).keep_quarantine(*kept)
        quarantine.close()
        assert used == verbs
        assert pq.read_table(io.BytesIO(store.get(str(key)))).num_rows == rows


class _Watched:
    """Notes which verbs of a store are used; its parts are small."""

    default_part_size = 1 << 20

    def __init__(self, store: MemoryStore, used: set[str]) -> None:
        self._store = store
        self._used = used
        self.url = store.url

    def __getattr__(self, name: str) -> Any:
        self._used.add(name)
        return getattr(self._store, name)


def test_runs_for_the_next_stage_are_there_at_once_under_a_name_of_their_own() -> None:
    spec = SinkSpec(format="runs", schema=SCHEMA)
    store, result = _write(spec, [{"n": 1, "text": "a"}])
    (part,) = result.parts
    assert (part.base, part.upload) == ("run", None)
    assert "nonce-0" in part.key
    assert len(store.get(part.key)) == part.bytes


def test_a_row_that_json_cannot_hold_follows_the_sinks_policy() -> None:
    spec = SinkSpec(format="jsonl", url="memory://out", new_columns="quarantine")
    bench_rows = [{"n": 1}, {"n": 2}]
    steps = [step("map", lambda row: {"n": b"bytes"} if row["n"] == 2 else row)]
    store = MemoryStore("out")
    bench = Bench(steps, [bench_rows], sink=spec)
    bench.driver._output._factory = StoreOutput(spec, store, store)
    result = bench.run()[0]
    assert isinstance(result, AttemptResult), result
    assert (result.counts.rows_out, result.counts.quarantined) == (1, 1)


def test_a_part_that_would_be_empty_is_none() -> None:
    spec = SinkSpec(format="jsonl", url="memory://out", new_columns="quarantine")
    store = MemoryStore("out")
    bench = Bench([step("map", lambda row: {"n": b"bytes"})], [[{"n": 1}]], sink=spec)
    bench.driver._output._factory = StoreOutput(spec, store, store)
    result = bench.run()[0]
    assert isinstance(result, AttemptResult), result
    assert (result.parts, result.counts.quarantined) == ((), 1)
    assert not list(store.list_uploads())


def test_a_failed_attempt_leaves_no_upload_behind() -> None:
    store = MemoryStore("out")
    spec = sink(format_name="jsonl", target_part_bytes=1 << 20)

    def fails_late(row: dict[str, Any]) -> dict[str, Any]:
        return row if row["n"] < 9_000 else {"n": 1 // 0}

    bench = Bench([step("map", fails_late)], [[{"n": n, "text": "x" * 500} for n in range(10_000)]], sink=spec)
    bench.driver._output._factory = StoreOutput(spec, store, store)
    assert isinstance(bench.run()[0], AttemptFailure)
    assert not list(store.list_uploads())
    assert not [info for page in store.list() for info in page.objects]
