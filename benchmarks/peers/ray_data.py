"""W1 and W5 with Ray Data: ``python ray_data.py w1 DATA OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """W1's function as a flat map."""
    from benchmarks.user_code import clean_row

    made = clean_row(row)
    return [] if made is None else [made]


if __name__ == "__main__":
    workload, data, out = sys.argv[1:4]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=3 << 30)
    read = {"w1": {}, "w5": {"override_num_blocks": 1000}}[workload]
    dataset = ray.data.read_json(f"{data}/{workload}", **read)
    dataset = dataset.flat_map(rows) if workload == "w1" else dataset.map(dict)
    dataset.write_parquet(f"{out}/o", compression="zstd", compression_level=1)
