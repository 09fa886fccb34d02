"""W1 and W5 with macrodata-refiner: ``python refiner.py w1 DATA OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import pyarrow as pa  # noqa: E402
import refiner  # noqa: E402


def collapse(row: Any) -> Any:
    """W1's function on the text."""
    words = row["text"].split()
    return row.update(text=" ".join(words), n_words=len(words))


if __name__ == "__main__":
    workload, data, out = sys.argv[1:4]
    shards = 10 if workload == "w1" else 1000
    rows = refiner.read_jsonl(f"{data}/{workload}/*.jsonl", file_path_column=None, num_shards=shards)
    if workload == "w1":
        rows = rows.filter(refiner.col("score") >= 0.2).map(collapse, dtypes={"n_words": pa.int64()})
        rows = rows.filter(lambda row: len(row["text"]) >= 200)
    else:
        rows = rows.map(lambda row: row)
    rows.write_parquet(f"{out}/o", compression="zstd").launch_local(name="b", num_workers=2, rundir=f"{out}/.run")
