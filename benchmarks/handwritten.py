"""What a user writes by hand: orjson, pyarrow and multiprocessing with two processes. ``python -m benchmarks.handwritten w1 DATA OUT``."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.user_code import clean_row

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("text", pa.string()),
        ("lang", pa.string()),
        ("score", pa.float64()),
        (
            "meta",
            pa.struct(
                [
                    ("source", pa.string()),
                    ("ts", pa.int64()),
                    ("stats", pa.struct([("nchars", pa.int64()), ("q", pa.float64())])),
                    ("tags", pa.list_(pa.string())),
                ]
            ),
        ),
        ("n_words", pa.int64()),
    ]
)


def w1_file(task: tuple[str, str]) -> int:
    """One file: read, clean, write in batches of 8,192 rows."""
    path, out = task
    count = 0
    rows = []
    with open(path, "rb") as lines, pq.ParquetWriter(f"{out}/{Path(path).name}.parquet", SCHEMA, compression="zstd") as writer:
        for line in lines:
            row = clean_row(orjson.loads(line))
            if row is not None:
                rows.append(row)
                if len(rows) >= 8192:
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                    count += len(rows)
                    rows = []
        if rows:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
            count += len(rows)
    return count


def w5_file(task: tuple[str, str]) -> int:
    """One tiny file."""
    path, out = task
    with open(path, "rb") as lines:
        rows = [dict(orjson.loads(line)) for line in lines]
    pq.write_table(pa.Table.from_pylist(rows), f"{out}/{Path(path).name}.parquet", compression="zstd")
    return len(rows)


def main(workload: str, data: str, out: str) -> int:
    """Rows written."""
    Path(out).mkdir(parents=True, exist_ok=True)
    tasks = [(str(path), out) for path in sorted(Path(data, workload).glob("*.jsonl"))]
    function, chunk = {"w1": (w1_file, 1), "w5": (w5_file, 8)}[workload]
    with multiprocessing.Pool(2) as pool:
        return sum(pool.map(function, tasks, chunk))


if __name__ == "__main__":
    print(main(*sys.argv[1:4]))
