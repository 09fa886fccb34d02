"""Real workers on a real S3 server that answers badly: lost requests and answers, throttling, conflicts, doubled writes, torn reads."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cloudshard.ledger import keys
from cloudshard.store.registry import open_store
from tests.chaos.fleet import Fleet
from tests.chaos.test_kill import cli

ITEMS = 60
ROWS = 50

PIPELINE = """
import cloudshard as cs

def work(row):
    return {{"n": row["n"], "square": row["n"] ** 2}} if row["n"] % 3 else None

pipeline = cs.read_jsonl("{url}/in/").named("faulty").shards({items}).map(work).checkpoint().filter("n % 2 = 1").write_parquet("{url}/out")
"""

FAULTS = "lost_request=0.02,lost_answer=0.03,throttled=0.03,create.conflict=0.05,duplicate=0.02,torn_read=0.01"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_invariants_1_to_4_on_a_store_that_answers_badly(seed: int, s3_url: str, tmp_path: Path) -> None:
    store = open_store(s3_url)
    for file in range(6):
        rows = [{"n": file * ITEMS * ROWS // 6 + i} for i in range(ITEMS * ROWS // 6)]
        store.put(f"in/{file}.jsonl", b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (tmp_path / "job.py").write_text(PIPELINE.format(url=s3_url, items=ITEMS))
    command = ["run", "job.py", "--run", f"{s3_url}/run", "--processes", "1", "--poll-interval", "0.3"]
    fleet = Fleet(command, tmp_path, {"CLOUDSHARD_CHAOS": f"seed={seed}+pid,{FAULTS}"})
    try:
        workers = [fleet.start() for _ in range(3)]
        codes = fleet.wait(workers, 240)
        assert codes == [0, 0, 0], fleet.logs()
    finally:
        fleet.close()
    records = [keys.parse_entry(info.key).item for page in store.list("run/" + keys.folder(0, "commits")) for info in page.objects]
    assert sorted(records) == list(range(ITEMS))
    found: Counter[int] = Counter()
    for page in store.list("out/part-"):
        for info in page.objects:
            found.update(pq.read_table(io.BytesIO(store.get(info.key)))["n"].to_pylist())
    assert found == Counter(n for n in range(ITEMS * ROWS) if n % 3 and n % 2)
    verified = cli("verify", f"{s3_url}/run", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    failed = cli("query", "--run", f"{s3_url}/run", "--json", "select count(*) as n from failures", cwd=tmp_path)
    assert json.loads(failed.stdout)["n"] == 0  # invariant 7: the store's faults spend no retry budget
