"""Real worker processes on a real S3 server, killed, frozen and drained while they work (invariants 1, 2, 3, 4, 6)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cloudshard.ledger import keys
from cloudshard.store.registry import open_store
from tests.chaos.fleet import Fleet, session_members, wait_until

SHARDS = 240
FILES = 12
ROWS_PER_FILE = 1500
LEASE_SECONDS = 6.0

PIPELINE = """
import time
import cloudshard as cs

def work(row):
    time.sleep(0.002)
    if row["n"] % 7 == 0:
        return None
    row["double"] = 2 * row["n"]
    row["words"] = len(row["text"].split())
    return row

pipeline = (
    cs.read_jsonl("{url}/in/")
    .named("chaos")
    .shards({shards})
    .map(work)
    .write_parquet("{url}/out")
)
"""


def plain_loop() -> Counter[tuple[int, int, int]]:
    """What the pipeline does, by hand."""
    expected: Counter[tuple[int, int, int]] = Counter()
    for file in range(FILES):
        for row in rows_of(file):
            if row["n"] % 7:
                expected[row["n"], 2 * row["n"], len(row["text"].split())] += 1
    return expected


def rows_of(file: int) -> list[dict[str, object]]:
    return [{"n": file * ROWS_PER_FILE + i, "text": "a few words " * (i % 5)} for i in range(ROWS_PER_FILE)]  # type: ignore[misc]


@pytest.fixture
def bucket(s3_url: str) -> str:
    store = open_store(s3_url)
    for file in range(FILES):
        store.put(f"in/part-{file:03d}.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in rows_of(file)))
    return s3_url


@pytest.fixture
def fleet(bucket: str, tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "job.py").write_text(PIPELINE.format(url=bucket, shards=SHARDS))
    command = [
        "run",
        "job.py",
        "--run",
        f"{bucket}/run",
        "--lease-seconds",
        str(LEASE_SECONDS),
        "--processes",
        "1",
        "--poll-interval",
        "0.5",
    ]
    made = Fleet(command, tmp_path)
    yield made
    made.close()


def committed(url: str) -> list[str]:
    store = open_store(url)
    return [info.key for page in store.list(keys.folder(0, "commits")) for info in page.objects]


def cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cloudshard.cli", *arguments], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_invariants_1_to_4_with_kill_freeze_and_drain(fleet: Fleet, bucket: str, tmp_path: Path) -> None:
    run = f"{bucket}/run"
    first, second, third, fourth = (fleet.start() for _ in range(4))
    survivors = []

    def reached(fraction: float) -> None:
        wait_until(lambda: len(committed(run)) >= fraction * SHARDS, 120, f"{fraction:.0%} committed\n{fleet.logs()}")

    try:
        reached(0.05)
        fleet.kill(first)
        survivors.append(fleet.start())
        reached(0.15)
        second.signal_all(signal.SIGSTOP)
        frozen_at = time.monotonic()
        reached(0.30)
        fleet.kill(third)
        survivors.append(fleet.start())
        wait_until(lambda: time.monotonic() - frozen_at > 2 * LEASE_SECONDS, 60, "the frozen worker's lease is over")
        second.signal_all(signal.SIGCONT)
        survivors.append(second)
        fourth.terminate()
        drained_at = time.monotonic()
        assert fourth.process.wait(25) == 3, fourth.text()
        drain_seconds = time.monotonic() - drained_at
        survivors.append(fleet.start())
        codes = fleet.wait(survivors, 240)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"{error}\n{fleet.logs()}") from error
    assert codes == [0] * len(survivors), fleet.logs()
    assert drain_seconds < 25

    records = committed(run)
    assert len(records) == len({keys.parse_entry(key).item for key in records}) == SHARDS  # one commit record per item
    store = open_store(bucket)
    named = {
        part["key"]
        for page in store.list("run/stages/00/blocks/")
        for info in page.objects
        for line in store.get(info.key).splitlines()
        for part in json.loads(line)["parts"]
    }
    present = {info.key.removeprefix("out/") for page in store.list("out/part-") for info in page.objects}
    assert present == named  # no partial or losing object
    found: Counter[tuple[int, int, int]] = Counter()
    for name in present:
        import io

        table = pq.read_table(io.BytesIO(store.get(f"out/{name}")))
        found.update((row["n"], row["double"], row["words"]) for row in table.to_pylist())
    assert found == plain_loop()

    verified = cli("verify", run, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    who = cli(
        "query", "--run", run, "--json", "select worker, count(*) as items from commits group by worker order by worker", cwd=tmp_path
    )
    assert who.returncode == 0, who.stderr
    shares = [json.loads(line) for line in who.stdout.splitlines()]
    assert sum(share["items"] for share in shares) == SHARDS
    assert len(shares) >= 4
    print(f"drained in {drain_seconds:.1f} s; items per worker: {[share['items'] for share in shares]}")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_kill_9_leaves_no_process_and_the_next_run_continues(fleet: Fleet, bucket: str) -> None:
    import psutil

    run = f"{bucket}/run"
    worker = fleet.start()
    wait_until(lambda: len(committed(run)) >= 8, 60, f"some items are committed\n{fleet.logs()}")
    tree = session_members(worker.process.pid)
    assert len(tree) >= 3, "supervisor, zygote and child"
    worker.process.send_signal(signal.SIGKILL)  # the supervisor alone: its tree must follow
    worker.process.wait(10)
    wait_until(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in tree), 10, "the tree is gone")
    before = len(committed(run))
    again = fleet.start()
    assert fleet.wait([again], 200) == [0], fleet.logs()
    assert len(committed(run)) == SHARDS > before
