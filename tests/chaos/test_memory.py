"""Big inputs through children with 1 GiB of memory: a 2 GiB file, and one line of 300 MB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import cloudshard as cs

GIB = 1 << 30


def shorten(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"], "length": len(row["text"])}


def peak_bytes(run_url: str) -> int:
    from cloudshard.observe.views import ledger_tables
    from cloudshard.store.registry import open_store

    return max(ledger_tables([run_url], open_store=open_store)["commits"]["peak_memory_bytes"].to_pylist())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_two_gib_file_passes_children_of_one_gib(tmp_path: Path) -> None:
    line = orjson.dumps({"n": 1, "text": "abcdefgh" * 250}) + b"\n"
    rows = 2 * GIB // len(line) + 1
    with (tmp_path / "in.jsonl").open("wb") as out:
        for _ in range(rows // 5000):
            out.write(line * 5000)
        out.write(line * (rows % 5000))
    assert (tmp_path / "in.jsonl").stat().st_size >= 2 * GIB
    dataset = cs.read_jsonl(f"{tmp_path}/in.jsonl").map(lambda row: row).write_parquet(f"{tmp_path}/out")
    result = dataset.run(f"{tmp_path}/run", processes=2, memory_per_child=GIB)
    (tmp_path / "in.jsonl").unlink()
    assert result.seal is not None
    assert result.seal.counts.rows_out == rows
    assert peak_bytes(f"{tmp_path}/run") < GIB
    print(f"2 GiB: {rows} rows, peak {peak_bytes(f'{tmp_path}/run') >> 20} MiB per child")


def big_line(path: Path) -> None:
    with path.open("wb") as out:
        out.write(b'{"n":1,"text":"short"}\n{"n":2,"text":"')
        for _ in range(300):
            out.write(b"x" * 1_000_000)
        out.write(b'"}\n{"n":3,"text":"short"}\n')


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("sink", ["jsonl", "parquet"])
def test_a_line_of_300_mb_passes_as_a_row(tmp_path: Path, sink: str) -> None:
    big_line(tmp_path / "in.jsonl")
    dataset = cs.read_jsonl(f"{tmp_path}/in.jsonl", max_row_bytes=512 << 20)
    written = dataset.write_jsonl(f"{tmp_path}/out") if sink == "jsonl" else dataset.map(shorten).write_parquet(f"{tmp_path}/out")
    result = written.run(f"{tmp_path}/run", processes=1, memory_per_child=GIB)
    assert result.seal is not None
    assert result.seal.counts.rows_out == 3
    assert peak_bytes(f"{tmp_path}/run") < GIB
    print(f"300 MB line to {sink}: peak {peak_bytes(f'{tmp_path}/run') >> 20} MiB")


@pytest.mark.slow
def test_a_line_beyond_max_row_bytes_is_refused_with_its_place_or_quarantined(tmp_path: Path) -> None:
    big_line(tmp_path / "in.jsonl")
    strict = cs.read_jsonl(f"{tmp_path}/in.jsonl").write_jsonl(f"{tmp_path}/out")
    with pytest.raises(cs.RunFailed, match=r"max_row_bytes"):
        strict.run(f"{tmp_path}/run", processes=1, memory_per_child=GIB, settings=cs.RunSettings(max_retries=0))
    lenient = cs.read_jsonl(f"{tmp_path}/in.jsonl", bad_rows="quarantine").write_jsonl(f"{tmp_path}/out-2")
    result = lenient.run(f"{tmp_path}/run-2", processes=1, memory_per_child=GIB)
    assert result.seal is not None
    assert (result.seal.counts.rows_out, result.seal.counts.quarantined) == (2, 1)
    assert peak_bytes(f"{tmp_path}/run-2") < GIB
