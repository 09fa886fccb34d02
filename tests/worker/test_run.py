"""Whole runs with the real planner, engine and ledger: rows that kill, rows that hang, resuming, joining, stopping."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cloudshard as cs
from cloudshard.observe.verify import verify_run
from cloudshard.plan.logical import Pipeline
from cloudshard.store.registry import open_store
from cloudshard.worker.run import RunResult, run_pipeline, work

ROWS = 120


def write_jsonl(folder: Path, files: int = 4, rows: int = ROWS) -> None:
    folder.mkdir()
    each = rows // files
    for file in range(files):
        lines = [orjson.dumps({"n": n, "text": f"row {n}"}) + b"\n" for n in range(file * each, (file + 1) * each)]
        (folder / f"{file}.jsonl").write_bytes(b"".join(lines))


def write_parquet(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(pa.table({"n": range(ROWS)}), folder / "0.parquet", row_group_size=40)


def numbers(folder: Path) -> list[int]:
    return sorted(n for path in folder.glob("part-*.parquet") for n in pq.read_table(path).column("n").to_pylist())


def all_but(*missing: int) -> list[int]:
    return [n for n in range(ROWS) if n not in missing]


def quarantined(run: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(run.rglob("quarantine/**/*.parquet")) for row in pq.read_table(path).to_pylist()]


def planned(folder: Path) -> bool:
    """Whether the run has begun: planning tries steps on a sample, in the planner's own process."""
    return (folder / "run/run.json").exists()


def segfault_at(n: int, folder: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def step(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == n and planned(folder):
            ctypes.string_at(0)
        return row

    return step


def pipeline_of(dataset: Any, folder: Path) -> Pipeline:
    made: Pipeline = dataset.write_parquet(str(folder / "out")).pipeline
    return made


def run(folder: Path, dataset: Any, **options: Any) -> RunResult:
    return run_pipeline(pipeline_of(dataset, folder), str(folder / "run"), **{"processes": 2, **options})


def check(folder: Path) -> None:
    report = verify_run(open_store(str(folder / "run")), lambda sink: open_store(sink.url or ""))
    assert report.ok, report


def test_a_jsonl_row_that_segfaults_is_quarantined_with_its_place(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    result = run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(segfault_at(47, tmp_path)))
    assert result.exit_code == 0
    assert numbers(tmp_path / "out") == all_but(47)
    (row,) = quarantined(tmp_path / "run")
    assert row["object"].endswith("/1.jsonl")
    assert orjson.loads(row["row"])["n"] == 47
    assert "SIGSEGV" in str(row)
    check(tmp_path)


@pytest.mark.slow
def test_a_parquet_row_that_segfaults_in_a_batch_step_is_quarantined(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in")

    def batch(table: pa.Table) -> pa.Table:
        if 71 in table.column("n").to_pylist() and planned(tmp_path):
            ctypes.string_at(0)
        return table

    result = run(tmp_path, cs.read_parquet(str(tmp_path / "in")).map_batches(batch, batch_rows=16))
    assert result.exit_code == 0
    assert numbers(tmp_path / "out") == all_but(71)
    check(tmp_path)


@pytest.mark.slow
def test_a_row_that_hangs_is_quarantined_and_a_slow_block_is_no_hang(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in", files=1)

    def slow(row: dict[str, Any]) -> dict[str, Any]:
        if planned(tmp_path):
            time.sleep(0.02 if row["n"] != 90 else 3600)
        return row

    began = time.monotonic()
    result = run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(slow), hang_seconds=1.0)
    assert result.exit_code == 0
    assert numbers(tmp_path / "out") == all_but(90)
    assert time.monotonic() - began > 2 * (1.8 + 1.0) + 2.4, "blocks of 2 s were given their time, three times over"
    check(tmp_path)


def test_the_same_pipeline_again_does_nothing_and_another_worker_may_finish(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    dataset = cs.read_jsonl(str(tmp_path / "in")).shards(12).map(segfault_at(-1, tmp_path))
    first = run(tmp_path, dataset, max_shards=5)
    assert first.created
    assert first.seal is None
    second = work(str(tmp_path / "run"), processes=2)
    assert second.exit_code == 0
    assert second.seal is not None
    assert numbers(tmp_path / "out") == all_but()
    third = run(tmp_path, dataset)
    assert third.was_complete
    check(tmp_path)


def test_preparing_makes_the_run_and_does_no_work(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    result = run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(segfault_at(-1, tmp_path)), prepare_only=True)
    assert result.created
    assert not (tmp_path / "run/stages").exists()


def test_asked_to_stop_while_planning_it_says_so(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")

    def stop(row: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return row

    with pytest.raises(cs.Preempted, match="SIGTERM while planning"):
        run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(stop))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not (tmp_path / "run/run.json").exists()


def test_what_user_code_prints_and_what_goes_wrong_is_told_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "in")

    def step(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 5 and planned(tmp_path):
            print("five is here")
            os._exit(9)
        return row

    assert run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(step)).exit_code == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "] five is here" in err
    assert "exit status 9" in err


@pytest.mark.slow
def test_safe_refuses_pickled_functions_before_anything_is_written(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    dataset = cs.read_jsonl(str(tmp_path / "in")).map(segfault_at(-1, tmp_path))
    with pytest.raises(cs.RecipeError, match="pickled functions"):
        run(tmp_path, dataset, safe=True)
    assert not (tmp_path / "run/run.json").exists()
    run(tmp_path, dataset, max_shards=1)
    with pytest.raises(cs.RecipeError, match="pickled functions"):
        work(str(tmp_path / "run"), safe=True)


@pytest.mark.slow
def test_an_output_folder_that_is_not_empty_is_refused_or_replaced(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.parquet").write_bytes(b"old")
    dataset = cs.read_jsonl(str(tmp_path / "in"))
    with pytest.raises(cs.RecipeError, match="not empty"):
        run(tmp_path, dataset)
    pipeline = dataset.write_parquet(str(tmp_path / "out"), mode="overwrite").pipeline
    assert run_pipeline(pipeline, str(tmp_path / "run"), processes=1).exit_code == 0
    assert numbers(tmp_path / "out") == all_but()
    assert not (tmp_path / "out/old.parquet").exists()


def test_a_class_is_set_up_once_per_child_and_torn_down(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    marks = tmp_path / "marks"
    marks.mkdir()

    class Step:
        def setup(self) -> None:
            (marks / f"setup-{os.getpid()}").touch()

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return row

        def teardown(self) -> None:
            (marks / f"teardown-{os.getpid()}").touch()

    assert run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).shards(20).map(Step)).exit_code == 0
    names = sorted(path.name for path in marks.iterdir() if not path.name.endswith(f"-{os.getpid()}"))  # planning tries it here
    pids = {name.rpartition("-")[2] for name in names}
    assert 1 <= len(pids) <= 2
    assert names == sorted(f"{what}-{pid}" for pid in pids for what in ("setup", "teardown"))


@pytest.mark.slow
def test_two_stages_follow_each_other(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    assert (
        run(
            tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(segfault_at(3, tmp_path)).checkpoint().map(segfault_at(100, tmp_path))
        ).exit_code
        == 0
    )
    assert numbers(tmp_path / "out") == all_but(3, 100)
    check(tmp_path)


def test_a_missing_module_ends_the_worker_with_one_sentence(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")

    class Step:
        def __init__(self) -> None:
            if planned(tmp_path):
                raise ModuleNotFoundError("No module named 'torch'")

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return row

    with pytest.raises(cs.StepError, match="No module named 'torch'"):
        run(tmp_path, cs.read_jsonl(str(tmp_path / "in")).map(Step))
