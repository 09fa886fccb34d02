"""The cloudshard side: ``python -m benchmarks.jobs w1 DATA OUT``. A new run each time: start-up, ledger and verification included."""

from __future__ import annotations

import sys

import cloudshard as cs
from benchmarks.user_code import clean_row


def main(workload: str, data: str, out: str) -> int:
    """Rows written."""
    if workload == "w1":
        dataset = cs.read_jsonl(f"{data}/w1/").map(clean_row)
    else:
        dataset = cs.read_jsonl(f"{data}/w5/").shards(1000).map(dict)
    result = dataset.named(workload).write_parquet(f"{out}/parts").run(f"{out}/run", processes=2)
    if result.seal is None:
        raise SystemExit("the run is not complete")
    return result.seal.counts.rows_out


if __name__ == "__main__":
    print(main(*sys.argv[1:4]))
