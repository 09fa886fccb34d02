"""run, prepare and worker for real: processes on a folder, with every ending that a user meets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.calling import Said, process

JOBS = """
import os
import time
import pyarrow as pa
from cloudshard.plan.logical import Pipeline, Sink, Source, Step

FLAG = {flag!r}

def double(row):
    return {{**row, "n": row["n"] * 2}}

def fails_until_mended(row):
    if row["n"] == 7 and not os.path.exists(FLAG):
        raise ValueError("seven is broken")
    return row

def slow(row):
    time.sleep(0.3)
    return row

def pipeline(function: str = "double", keep: int = 0, output: str = "out"):
    return Pipeline(
        "job",
        Source("jsonl", ("in/*.jsonl",)),
        (Step("map", globals()[function]), Step("filter", lambda row: row["n"] >= keep)),
        Sink("parquet", output, schema=pa.schema([("n", pa.int64())])),
        num_shards=4,
    )
"""

RECIPE = """
name: job
parameters: {keep: 0}
source: {read_jsonl: in/*.jsonl}
shards: {num_shards: 4}
steps:
  - map: jobs_module:double
  - filter: n >= ${keep}
sink: {write_parquet: out}
summary: {title: Totals, sql: select count(*) as rows from output}
"""


class Folder:
    """A working folder with input, a recipe and a Python file; calls the command line in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "in").mkdir()
        for file in range(4):
            (path / f"in/{file}.jsonl").write_text("".join(f'{{"n": {file * 5 + row}}}\n' for row in range(5)))
        code = JOBS.format(flag=str(path / "mended"))
        (path / "job.py").write_text(code)
        (path / "jobs_module.py").write_text(code)
        (path / "job.yaml").write_text(RECIPE)

    def __call__(self, *arguments: str) -> Said:
        return process(*arguments, cwd=self.path, env=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        import os

        return {**os.environ, "PYTHONPATH": str(self.path)}

    def output(self, folder: str = "out") -> list[int]:
        """The numbers in the output's parts."""
        parts = sorted((self.path / folder).glob("part-*"))
        return sorted(n for part in parts for n in pq.read_table(part)["n"].to_pylist())

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and go on."""
        command = [sys.executable, "-m", "cloudshard.cli", *arguments]
        return subprocess.Popen(
            command, cwd=self.path, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_run_resume_refuse_verify_and_ask(folder: Folder) -> None:
    said = folder("run", "job.yaml", "--processes", "2")
    assert said.code == 0, said.err
    assert "rows      20 in → 20 out" in said.out
    assert said.out.endswith("Totals\nrows\n  20\n")
    assert "stage 0 complete: 20 rows in, 20 out, 4 parts" in said.err
    assert folder.output() == [2 * n for n in range(20)]

    again = folder("run", "job.yaml")
    assert again.code == 0
    assert again.err == "nothing to do: the run was complete already\n"

    other = folder("run", "job.yaml", "-p", "keep=10")
    assert other.code == 2
    assert "parameter keep: 0 -> 10" in other.err
    assert other.err.count("\n") == 1

    assert folder("verify", "out.run").code == 0
    assert folder("status", "out.run").code == 0
    asked = folder("query", "select outcome, count(*) as n from attempts group by outcome", "--run", "out.run", "--json")
    assert json.loads(asked.out) == {"outcome": "committed", "n": 4}
    assert "work items 4 of" in folder("explain", "out.run").out
    assert "nothing to delete" in folder("gc", "out.run", "--yes").out


def test_the_machines_summary(folder: Folder) -> None:
    said = folder("run", "job.yaml", "--json", "--quiet", "-p", "keep=10", "--run", "elsewhere")
    assert said.err == ""
    told = json.loads(said.out)
    assert told["url"] == f"file://{folder.path}/elsewhere"
    assert (told["rows_in"], told["rows_out"], told["filtered"], told["parts"], told["exit_code"]) == (20, 15, 5, 3, 0)
    assert (told["complete"], told["nothing_to_do"], told["items"], told["committed"]) == (True, False, 4, 4)
    assert told["requests"]["create"] > 0


def test_prepare_then_workers(folder: Folder) -> None:
    prepared = folder("prepare", "job.py", "-p", "keep=4")
    assert (prepared.code, prepared.out) == (0, f"file://{folder.path}/out.run\n")
    again = json.loads(folder("prepare", "job.py", "-p", "keep=4", "--json").out)
    assert again.pop("run_id").startswith("job-")
    assert again == {"url": f"file://{folder.path}/out.run", "created": False, "items": 4, "stages": 1}
    refused = folder("worker", "out.run", "--safe")
    assert refused.code == 2
    assert "pickled functions" in refused.err
    assert folder("worker", "out.run", "--max-shards", "1").code == 0
    assert folder("status", "out.run").code == 1
    assert folder("worker", "out.run").code == 0
    assert folder.output() == [2 * n for n in range(2, 20)]


@pytest.mark.slow
def test_max_shards_leaves_work_and_says_so(folder: Folder) -> None:
    said = folder("run", "job.yaml", "--max-shards", "2", "--processes", "1")
    assert said.code == 1
    assert "incomplete: 2 work items left" in said.err
    assert "2 of 4 items committed" in said.out
    assert folder("run", "job.yaml").code == 0


def test_a_failure_for_good_is_told_mended_and_retried(folder: Folder) -> None:
    run = ("run", "job.py", "-p", "function=fails_until_mended", "--max-retries", "1", "--processes", "2")
    said = folder(*run)
    assert said.code == 2
    assert "seven is broken" in said.err
    assert "Traceback" not in said.err
    status = folder("status", "out.run")
    assert status.code == 2
    assert "1 dead" in status.out
    assert folder("verify", "out.run").code == 1
    (folder.path / "mended").touch()
    assert "1 item revived" in folder("retry", "out.run", "--all-failed").out
    assert folder(*run).code == 0
    assert folder.output() == list(range(20))
    asked = folder("query", "select outcome, count(*) as n from attempts group by 1 order by 1", "--run", "out.run", "--csv")
    assert asked.out.splitlines() == ['"outcome","n"', '"committed",4', '"failed",2']


def test_a_run_without_output_rows_says_so_loudly(folder: Folder) -> None:
    said = folder("run", "job.py", "-p", "keep=1000")
    assert said.code == 0, said.err
    assert "NO ROWS: all 20 rows were filtered" in said.err
    assert folder("verify", "out.run").code == 0


@pytest.mark.slow
def test_a_target_that_is_not_empty_is_refused_or_replaced(folder: Folder) -> None:
    (folder.path / "out").mkdir()
    (folder.path / "out/old.parquet").write_bytes(b"old")
    said = folder("run", "job.yaml")
    assert said.code == 2
    assert "not empty" in said.err
    assert folder("run", "job.yaml", "--overwrite").code == 0
    assert not (folder.path / "out/old.parquet").exists()
    assert folder("verify", "out.run").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.yaml"], "no such recipe"),
        (["job.yaml", "-p", "nonsense=1"], "nonsense"),
        (["job.yaml", "-p", "keep"], "name=value"),
        (["job.yaml", "--processes", "many"], "neither 'auto' nor a number"),
        (["job.yaml", "--memory-per-child", "lots"], "no size"),
        (["jobs_module:nothing"], "nothing"),
        (["s3://bucket/run"], "names no pipeline"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_2(folder: Folder, arguments: list[str], words: str) -> None:
    said = folder("run", *arguments)
    assert said.code == 2
    assert words in said.err
    assert "Traceback" not in said.err
    assert not (folder.path / "out.run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_exits_3_releases_and_goes_on_later(folder: Folder, number: signal.Signals) -> None:
    run = ("run", "job.py", "-p", "function=slow", "--processes", "2")
    child = folder.begin(*run)
    ledger = folder.path / "out.run/stages/00/claims"
    deadline = time.monotonic() + 20
    while not ledger.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 3, err
    assert "run the same command again" in err
    claims = json.loads(folder("status", "out.run", "--json").out)["claims"]
    assert not [claim for claim in claims if claim["state"] == "held"]
    assert folder(*run).code == 0
    assert folder.output() == list(range(20))
